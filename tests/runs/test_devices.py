"""Which device of a machine is whose."""

import threading
from pathlib import Path

import pytest
import torch

from shoal.runs.machine import count_devices, device_id, worker_device
from shoal.storage import hold_lock
from shoal.sweeps.attempt import attempt
from shoal.sweeps.plan import LoadedData, read_plan
from shoal.sweeps.status import RunState
from shoal.sweeps.worker import Worker
from tests.sweeps.workspaces import Squares, planned, pretend_gpus

GPU, SECOND, CPU = torch.device("cuda"), torch.device("cuda:1"), torch.device("cpu")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A machine with three GPUs, and those that this process makes its own."""
    for name in ("device_count", "set_device", "synchronize", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))  # undone in the end
    found: list[torch.device] = []
    pretend_gpus(3, found.append)
    return found


def test_gpus_are_dealt_in_turn(taken: list[torch.device]) -> None:
    assert [worker_device(GPU, worker).index for worker in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [device.index for device in taken] == [0, 1, 2, 0, 1, 2, 0]


def test_what_was_asked_for_stays(taken: list[torch.device]) -> None:
    assert [worker_device(SECOND, worker) for worker in range(3)] == [SECOND] * 3
    assert taken == [SECOND] * 3
    assert worker_device(CPU, 1) == CPU and len(taken) == 3


def test_how_many_devices_workers_have(taken: list[torch.device]) -> None:
    assert [count_devices(GPU, workers) for workers in (1, 2, 3, 8)] == [1, 2, 3, 3]
    assert count_devices(SECOND, 8) == count_devices(CPU, 8) == 1


def test_a_device_has_one_mark_by_whatever_number(taken: list[torch.device]) -> None:
    assert device_id(GPU) == device_id(torch.device("cuda:0")) != device_id(SECOND)
    assert device_id(CPU) == "cpu"


def test_only_a_worker_has_a_gpu_dealt(tmp_path: Path, taken: list[torch.device]) -> None:
    class World(Squares):
        def machine(self):  # type: ignore[no-untyped-def]
            from shoal.runs.machine import Machine

            return Machine(device=GPU, step="eager")

    assert Worker(tmp_path, World()).machine.device == GPU and not taken
    assert Worker(tmp_path, World(), 4).machine.device == SECOND and taken == [SECOND]


@pytest.mark.timeout(60)
def test_who_is_alone_waits_for_nobody_on_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, ("erm",), steps=2)
    run, *_ = read_plan(tmp_path)
    worker = Worker(tmp_path, Squares())
    marks = iter(["A", "B"])
    monkeypatch.setattr("shoal.sweeps.worker.device_id", lambda _: next(marks))
    monkeypatch.setattr("shoal.sweeps.worker.platform.node", lambda: "here")

    class Exhausted(Squares):
        def data(self, name: str, trial: int) -> LoadedData:
            raise torch.OutOfMemoryError("CUDA out of memory")

    attempt(run, Exhausted(), tmp_path, Squares().machine())
    with hold_lock(tmp_path / "alone-here-A.lock"):
        first = threading.Thread(target=worker.attempt, args=(run, True), daemon=True)
        first.start()
        first.join(1.0)
        assert first.is_alive()  # it waits for us
        assert worker.attempt(run, alone=True) is RunState.DONE
    first.join()
