"""Micro-batches inside an update change nothing, and are chosen when memory runs out."""

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.networks.backbones import Features
from shoal.training.batches import Batches, Normalise
from shoal.training.step import Step, Update, set_runner

from .cut import METHODS, SIZES, batches, make, trained
from .little import CPU

# The same sums in another order, after a few updates by Adam.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_change_nothing(method: str) -> None:
    expected = trained(method)
    for size in (5, 1):
        found = trained(method, size)
        for key, tensor in expected.items():
            torch.testing.assert_close(
                found[key], tensor, msg=lambda m, k=key: f"{k}: {m}", **CLOSE
            )


class Given(Batches):
    """Made-up batches as a training's."""

    def __init__(self) -> None:
        super().__init__([], Normalise(None, False, CPU))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self) -> list[tuple[Tensor, Tensor]]:
        self.count += 1  # an update that did not fit must not count
        return batches(int(self.count))


class Narrow(nn.Module):
    """Room for so many images at a time."""

    def __init__(self, network: nn.Module, room: int, captured: bool = False) -> None:
        super().__init__()
        self.network, self.room, self.captured = network, room, captured
        self.most = 0

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.room:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            finally:
                if self.captured:
                    raise RuntimeError("operation failed due to a previous error during capture")
        self.most = max(self.most, len(images))
        return self.network(images)


def updates(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> tuple[Update, list[str]]:
    """Return the training after three updates, and what it noted."""
    monkeypatch.setattr(Update, "images", property(lambda _: sum(SIZES)))
    update, notes = Update(algorithm, Given(), "float32"), []
    step = Step(update, "eager", notes.append)
    for number in range(3):
        step(number)
    return update, notes


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("method", ["fishr", "fishr-theta"])
def test_memory_that_runs_out(method: str, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, silence = updates(make(method), monkeypatch)
    assert silence == []
    algorithm = make(method)
    features = algorithm.model.features
    features.network = Narrow(features.network, 5, captured)
    update, notes = updates(algorithm, monkeypatch)
    assert notes == [
        f"memory ran out: images go through the network {size} at a time" for size in (8, 4)
    ]
    assert features.network.most == 4
    assert update.algorithm.steps == 3
    found = {k.replace("network.network", "network"): v for k, v in update.state_dict().items()}
    for key, tensor in whole.state_dict().items():
        torch.testing.assert_close(found[key], tensor, msg=lambda m, k=key: f"{k}: {m}", **CLOSE)


def test_a_device_is_waited_for_before_an_attempt_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What did not fit ran on a stream of its own, and may still be writing."""
    algorithm = make("erm")
    algorithm.model.features.network = Narrow(algorithm.model.features.network, room=5)
    monkeypatch.setattr(Update, "images", property(lambda _: sum(SIZES)))
    update = Update(algorithm, Given(), "float32")
    step = Step(update, "eager")
    # As if on a GPU, as far as an eager step minds.
    called: list[str] = []
    monkeypatch.setattr(type(algorithm), "device", torch.device("cuda"))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: called.append(name))
    plain = step._undo
    monkeypatch.setattr(step, "_undo", lambda: (called.append("undo"), plain()))
    step(0)
    assert called == ["synchronize", "empty_cache", "undo"] * 2


def test_memory_that_not_even_one_image_fits_into(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("erm")
    algorithm.model.features.network = Narrow(algorithm.model.features.network, room=0)
    with pytest.raises(torch.OutOfMemoryError, match="with one image at a time; choose a smaller"):
        updates(algorithm, monkeypatch)


def test_statistics_of_the_batch_allow_no_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("erm", frozen=False)
    algorithm.model.features.network = Narrow(algorithm.model.features.network, room=5)
    with pytest.raises(torch.OutOfMemoryError, match="change the batch-norm statistics"):
        updates(algorithm, monkeypatch)


def test_a_small_network_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("erm")
    algorithm.model.features = Narrow(algorithm.model.features.network, room=5)
    with pytest.raises(torch.OutOfMemoryError, match="memory ran out; choose a smaller batch_size"):
        updates(algorithm, monkeypatch)


def test_other_errors_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make("erm")

    def broken(images: Tensor) -> Tensor:
        raise RuntimeError("something else")

    monkeypatch.setattr(algorithm.model.features.network, "forward", broken)
    with pytest.raises(RuntimeError, match="something else"):
        updates(algorithm, monkeypatch)


def test_a_network_that_is_not_cut_is_simply_called() -> None:
    algorithm = make("erm")
    set_runner(algorithm)
    (features,) = (part for part in algorithm.modules() if isinstance(part, Features))
    assert features.runner is None
