"""Images on the host: the batches of images on the device, bit for bit, made a few steps ahead."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.datasets import DomainDataset, image_folders, splits
from shoal.datasets.cache import ImageCache, build
from shoal.randomness import Draws
from shoal.training.augmentation import draw_parameters
from shoal.training.batches import BatchSource, Sampler
from shoal.training.pillow import exact_training
from shoal.training.placement import DataRequest, place
from shoal.training.streaming import AHEAD, Prefetcher, Streamed
from tests.datasets.pictures import photograph

from .little import CPU, placed

STEPS = (0, 1, 2, 7, 8, 3)  # with a leap ahead, and one back


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> tuple[DomainDataset, ImageCache]:
    """One domain of images of several sizes and shapes."""
    root = tmp_path_factory.mktemp("photographs")
    for number, (height, width) in enumerate([(40, 60), (90, 33), (300, 280), (20, 20), (31, 70)]):
        photograph(root / "set/a/xy"[: 7 + number % 2] / f"{number}.png", height, width, number)
    dataset = image_folders("set", root / "set")
    return dataset, build(dataset, root / "cache")


def source(
    photographs: tuple[DomainDataset, ImageCache], where: str, exact: bool = False, size: int = 3
) -> BatchSource:
    dataset, cache = photographs
    wanted = DataRequest(test_domains=(), trial=0, size=size, exact=exact)
    return place(dataset, splits(dataset, 0), cache, wanted, CPU, where).sources[0]


def at(source: BatchSource, step: int, counts: int = 1) -> tuple[Tensor, Tensor]:
    """Return the batch of any step of images on the device."""
    source.sampler.draws.count.fill_(step)  # type: ignore[union-attr,operator]
    if hasattr(source, "draws"):
        source.draws.count.fill_(counts * step)  # type: ignore[union-attr,operator]
    return source()


def same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    for found, expected in zip(one, other, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_whole_images() -> None:
    for fed, resident in zip(placed("host").sources, placed("device").sources, strict=True):
        for step in STEPS:
            fed.fetch(step)
            same(fed(), at(resident, step))
            assert fed.sampler.draws.count == step + 1


def test_crops(photographs: tuple[DomainDataset, ImageCache]) -> None:
    fed, resident = source(photographs, "host"), source(photographs, "device")
    seen = set()
    for step in (0, 1, 5, 2):
        fed.fetch(step)
        fed.draws.count.fill_(2 * step)  # which moves with the updates, on the device
        same(fed(), at(resident, step, counts=2))
        assert fed.state_dict() == resident.state_dict()
        seen.add(float(fed.get_buffer("part_0").sum()))
    assert len(seen) > 1


def test_exact_images(photographs: tuple[DomainDataset, ImageCache]) -> None:
    """The files themselves, one by one, with what was drawn for each."""
    dataset, cache = photographs
    fed = source(photographs, "host", exact=True)
    kept = splits(dataset, 0)["a"].kept
    frames, paths = cache["a"].training.frames, dataset["a"].images
    for step in (0, 1, 6, 4):
        fed.fetch(step)
        sampler = Sampler(kept, None, ("set", 0, "a"), CPU)
        sampler.draws.count.fill_(step)
        draws = Draws("augmentation", "set", 0, "a")
        for _ in range(step + 1):
            parameters = draw_parameters(frames[:3], draws)  # two draws each, whatever the frames
        draws.count.sub_(2)
        indices = sampler(3)
        parameters = draw_parameters(frames[indices], draws)
        images, labels = fed()
        assert torch.equal(labels, dataset["a"].labels[indices])
        for k, index in enumerate(indices.tolist()):
            expected = exact_training(paths[index], parameters.of(k)).float() / 255
            assert torch.equal(images[k], expected)
        assert fed.state_dict().keys() == {"sampler.draws.count", "draws.count"}
        assert fed.draws.count == draws.count


def test_its_state_is_that_of_images_on_the_device() -> None:
    """So a run goes on with its images in another place, and no thread moves what is saved."""
    for where in ("device", "host"):
        assert list(placed(where).sources[0].state_dict()) == ["sampler.draws.count"]
    fed = placed("host").sources[0]
    fed.fetch(4)
    _wait_for_threads(fed)
    assert int(fed.state_dict()["sampler.draws.count"]) == 5


def test_what_lies_on_the_device_stays_where_it_is() -> None:
    fed = placed("host").sources[0]
    fed.fetch(0)
    addresses = [fed.get_buffer(f"part_{k}").data_ptr() for k in range(2)]
    fed.fetch(1)
    assert [fed.get_buffer(f"part_{k}").data_ptr() for k in range(2)] == addresses
    before = fed()[1].clone()
    same(fed(), fed())  # a batch is there until the next is fetched
    fed.fetch(2)
    assert not torch.equal(fed()[1], before)


def test_some_steps_ahead_and_no_more() -> None:
    made: list[int] = []
    ahead = Prefetcher(lambda step: made.append(step) or step)
    assert ahead(0) == 0
    for step in range(1, 5):
        assert ahead(step) == step
    _wait_for_threads(ahead)
    assert made == list(range(5 + AHEAD))
    assert ahead(20) == 20
    _wait_for_threads(ahead)
    assert made[5 + AHEAD :] == list(range(20, 21 + AHEAD))


def test_a_leap_makes_nothing_that_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is given up; only what the thread is just making is made in vain."""
    made: list[int] = []
    begun, gate = threading.Event(), threading.Event()

    def make(step: int) -> int:
        if step == 1:
            begun.set()
            gate.wait(20)
        made.append(step)
        return step

    ahead = Prefetcher(make)
    submit = ahead._pool.submit

    def submitted(function: Any, step: int) -> Any:
        if step == 9:  # by now the others have been given up
            gate.set()
        return submit(function, step)

    monkeypatch.setattr(ahead._pool, "submit", submitted)
    assert ahead(0) == 0
    assert begun.wait(20)
    assert ahead(9) == 9
    assert made[:3] == [0, 1, 9]


class Failing(Streamed):
    """Cannot read step 3."""

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        if step == 3:
            raise OSError("the disk of step 3 is gone")
        return (indices,)

    def finish(self, *parts: Tensor) -> Tensor:
        return parts[0]


def test_an_error_arrives_with_its_step() -> None:
    sampler = Sampler(torch.arange(9), None, ("x",), CPU)
    fed = Failing(torch.arange(9), sampler, 4, CPU)
    for step in range(3):
        fed.fetch(step)  # though step 3 has failed by the last of them
    with pytest.raises(OSError, match="the disk of step 3 is gone"):
        fed.fetch(3)
    fed.fetch(4)


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    for k in range(3):
        photograph(tmp_path / f"set/a/x/{k}.png", 30, 30, k)
    dataset = image_folders("set", tmp_path / "set")
    photographs = dataset, build(dataset, tmp_path / "cache")
    for path in dataset["a"].images:
        path.unlink()
    with pytest.raises(OSError, match=r"set/a/x/\d.png"):
        source(photographs, "host", exact=True).fetch(0)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """A training with images on the host that fails in its third update."""
    path = tmp_path / "failing.py"
    path.write_text(
        """
import time
import torch
from shoal.training.loop import Schedule, train
from tests.training.little import training

update, evaluate = training(where="host")
assert all(type(source).__name__ == "StreamedImages" for source in update.batches.sources)


def fail(*_):
    if update.algorithm.steps >= 2:
        print(time.time(), flush=True)
        raise RuntimeError("in the third update")


update.algorithm.register_forward_pre_hook(fail)
train(update, evaluate, Schedule(100, 50), "eager")
"""
    )
    yield path


def test_no_thread_keeps_a_process_alive_that_has_failed(script: Path) -> None:
    found = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )
    ended = time.time()
    assert found.returncode == 1
    assert "RuntimeError: in the third update" in found.stderr
    assert ended - float(found.stdout) < 5


def _wait_for_threads(of: Streamed | Prefetcher[int]) -> None:
    ahead = of._ahead if isinstance(of, Streamed) else of
    ahead._pool.submit(lambda: None).result()
