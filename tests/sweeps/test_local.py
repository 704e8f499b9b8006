"""How a pool of workers replaces those that end, without any process."""

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.runs.run import Run
from shoal.sweeps.local import REPLACE, _WorkerPool
from shoal.sweeps.plan import read_plan
from tests.sweeps.workspaces import Squares, planned


class Losing:
    """A worker that begins, and loses its device with its first run."""

    exitcode = REPLACE

    def __init__(self, target: Any, args: tuple[Any, ...]) -> None:
        self.messages, self.first = args[-1], args[3][0]

    def start(self) -> None:
        self.messages.send("")

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize("alone", [False, True])
def test_who_is_alone_on_a_device_does_not_lose_it_for_ever(tmp_path: Path, alone: bool) -> None:
    planned(tmp_path)
    runs = read_plan(tmp_path)[:3]
    pool: Any = _WorkerPool(tmp_path, runs, Squares(), 1, alone)
    pool.context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Losing)
    begun: list[Run] = []
    while len(begun) < 20:
        pool.grow(waiting=len(runs))
        if not pool.living:
            break
        begun += [worker.process.first for worker in pool.living.values()]
        pool.reap()
    # Beside others a run that lost a device has failed and waits no more; alone each has its turn.
    assert begun == ([*runs, runs[0]] if alone else [runs[0]] * 20)
