"""A GPU in trouble: no memory left, a kill in a capture, two drivers. Records as undisturbed."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.results.records import FAILED, Record, failure_of
from shoal.runs.machine import Machine, be_deterministic
from shoal.sweeps.local import run_locally
from shoal.sweeps.plan import folder_of, read_plan
from shoal.sweeps.status import RunState
from shoal.sweeps.worker import Worker
from shoal.training.watcher import Watcher
from tests.sweeps.workspaces import Squares, contents, planned

pytestmark = pytest.mark.timeout(240)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
STEPS = 250  # three records


@dataclass(frozen=True)
class OnGpu(Squares):
    """Squares, trained by captured updates, whose sums a GPU takes in the same order each time."""

    def machine(self) -> Machine:
        be_deterministic()
        return Machine(device=torch.device("cuda", 0), step="graph", checkpoint_every=0.0)


class Hog(Watcher):
    """Takes all memory that is left, between two updates, after the first record."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def records(self, records: Sequence[Record]) -> None:
        if records and not self.taken:
            self.taken = fill(torch.device("cuda", 0))


def fill(device: torch.device, largest: int = 1 << 36) -> list[torch.Tensor]:
    """Allocate until not even a few bytes are left, neither of the device nor kept by torch."""
    taken, size = [], largest
    while size >= 512:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def drive(out: Path) -> None:
    """Drive the whole plan with one worker."""
    runs = read_plan(out)
    assert run_locally(out, runs, OnGpu(), 1) == {RunState.DONE: len(runs)}


def die_in_a_capture(out: Path) -> None:
    """Begin the first run, and be killed when its update is being captured."""
    begin = torch.cuda.CUDAGraph.capture_begin

    def capture_begin(*given: Any, **named: Any) -> None:
        begin(*given, **named)
        (out / "captures").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.cuda.CUDAGraph.capture_begin = capture_begin  # type: ignore[method-assign]
    Worker(out, OnGpu()).attempt(read_plan(out)[0])


def process(target: Any, out: Path) -> Any:
    """Start a process with a GPU context of its own."""
    started = multiprocessing.get_context("spawn").Process(target=target, args=(out,))
    started.start()
    return started


def changed(found: dict[str, dict[str, bytes]], wanted: dict[str, dict[str, bytes]]) -> list[str]:
    """Return the files that differ, with the first line that does; a whole diff takes minutes."""
    lines = []
    for run in found.keys() | wanted.keys():
        for name in found.get(run, {}).keys() | wanted.get(run, {}).keys():
            ours, theirs = (of.get(run, {}).get(name, b"") for of in (found, wanted))
            both = zip_longest(ours.splitlines(), theirs.splitlines())
            first = next((pair for pair in both if pair[0] != pair[1]), None)
            lines += [f"{name}: {first!r}"[:500]] if first else []
    return lines


@pytest.fixture(scope="module", autouse=True)
def undone() -> Iterator[None]:
    """Leave this process as it was; others end with their test."""
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(before)
    torch.backends.cudnn.benchmark = benchmark


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("whole")
    planned(out, ("erm",), steps=STEPS)
    worker = Worker(out, OnGpu())
    runs = read_plan(out)
    assert [worker.attempt(run) for run in runs] == [RunState.DONE] * len(runs)
    return contents(out)


@needs_gpu
def test_no_memory_in_the_middle_of_a_captured_run(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    planned(tmp_path, ("erm",), steps=STEPS)
    run, hog, worker = read_plan(tmp_path)[0], Hog(), Worker(tmp_path, OnGpu())
    # A captured update needs no memory, but an evaluation does.
    assert worker.attempt(run, watcher=hog) is RunState.FAILED
    assert hog.taken
    hog.taken.clear()
    torch.cuda.empty_cache()
    failure = failure_of(folder_of(tmp_path, run))
    assert failure is not None and failure["memory"]
    # By a new process, as in a sweep: this one remembers kernels that need little memory.
    driver = process(drive, tmp_path)
    driver.join(200)
    assert driver.exitcode == 0
    assert not (folder_of(tmp_path, run) / FAILED).exists()
    assert changed(contents(tmp_path), whole) == []


@needs_gpu
def test_a_worker_killed_in_a_capture(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    planned(tmp_path, ("erm",), steps=STEPS)
    killed = process(die_in_a_capture, tmp_path)
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL and (tmp_path / "captures").exists()
    run = read_plan(tmp_path)[0]
    assert not (folder_of(tmp_path, run) / "done").exists()
    assert Worker(tmp_path, OnGpu()).attempt(run) is RunState.DONE
    assert changed(contents(tmp_path, [run]), {run.identity: whole[run.identity]}) == []


@needs_gpu
def test_two_drivers_on_one_gpu(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    planned(tmp_path, ("erm",), steps=STEPS)
    drivers = [process(drive, tmp_path) for _ in range(2)]
    for one in drivers:
        one.join(200)
    assert [one.exitcode for one in drivers] == [0, 0]
    assert changed(contents(tmp_path), whole) == []


def test_memory_is_taken_to_the_last_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device of a thousand bytes, played by this machine."""
    left = [5000]

    def empty(size: int, **_: Any) -> torch.Tensor:
        if size > left[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        left[0] -= size
        return torch.zeros(0)

    monkeypatch.setattr(torch, "empty", empty)
    assert len(fill(torch.device("cuda"), 4096)) == 2
    assert left[0] == 5000 - 4096 - 512
