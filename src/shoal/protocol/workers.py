"""The local engine: processes that walk through a plan and carry out what nobody else does.

There is no queue: the lock of a run's folder says whose it is, so that workers, drivers and other
machines on the same file system share a plan without speaking to each other, and any of them may
be killed at any moment.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from .attempt import State, attempt, failure_of, state_of
from .execute import Machine
from .plan import Data, Method, folder_of, read_plan
from .run import Run

# Seconds between two looks at how the runs stand.
LOOK = 1.0


class World(Protocol):
    """Where names become methods and data, in every worker anew; it must be picklable."""

    def method(self, name: str) -> Method: ...

    def data(self, name: str, trial: int) -> Data: ...

    def machine(self) -> Machine: ...


@dataclass(frozen=True)
class Shard:
    """Every count-th run of a plan from ``index`` on; 0 of 1 is all of it."""

    index: int = 0
    count: int = 1

    def of(self, runs: Sequence[Run]) -> list[Run]:
        return list(runs[self.index :: self.count])


ALL = Shard()


def carry_out(
    out: Path,
    world: World,
    workers: int,
    shard: Shard = ALL,
    told: Callable[[Counter[State]], object] = lambda _: None,
) -> Counter[State]:
    """Carry out the plan in ``out`` and return how its runs stand in the end.

    Workers that die are replaced, and their runs go on from their checkpoints. Runs that ran out
    of memory are tried again at the end, one at a time.
    """
    runs = shard.of(read_plan(out))
    _until_nothing_waits(out, runs, shard, world, workers, False, told)
    if any(_out_of_memory(folder_of(out, run)) for run in runs):
        _until_nothing_waits(out, runs, shard, world, 1, True, told)
    return standing(out, runs)


def standing(out: Path, runs: Sequence[Run]) -> Counter[State]:
    """Return how many of the runs are done, running, failed and waiting."""
    return Counter(state_of(folder_of(out, run)) for run in runs)


def _until_nothing_waits(
    out: Path,
    runs: Sequence[Run],
    shard: Shard,
    world: World,
    workers: int,
    alone: bool,
    told: Callable[[Counter[State]], object],
) -> None:
    context = multiprocessing.get_context("spawn")  # a fork would take over the GPU's state

    def start(number: int) -> Any:
        arguments = (out, shard, world, number, workers, alone)
        process = context.Process(target=_work, args=arguments)
        process.start()
        return process

    living = {number: start(number) for number in range(workers)}
    try:
        while living:
            time.sleep(LOOK)
            told(standing(out, runs))
            for number, process in list(living.items()):
                if process.is_alive():
                    continue
                del living[number]
                if process.exitcode == FULL:
                    raise OSError(f"a worker cannot write to {out}; make room and start again")
                if process.exitcode != 0 or State.WAITING in standing(out, runs):
                    living[number] = start(number)
    finally:
        for process in living.values():
            process.kill()
            process.join()


FULL = 3  # the exit status of a worker that could not write


def _work(out: Path, shard: Shard, world: World, number: int, workers: int, alone: bool) -> None:
    """Walk once through the shard, each worker from another place."""
    runs = shard.of(read_plan(out))
    begin = number * len(runs) // workers
    data = lru_cache(maxsize=2)(world.data)
    machine = world.machine()
    try:
        for run in [*runs[begin:], *runs[:begin]]:
            attempt(
                run,
                lambda run=run: world.method(run.algorithm)[0],  # type: ignore[misc]
                lambda run=run: data(run.dataset, run.trial),  # type: ignore[misc]
                folder_of(out, run),
                replace(machine, weights=run.protocol.weights),
                lambda failure: alone and failure["memory"],
            )
    except OSError as error:
        raise SystemExit(FULL) from error


def _out_of_memory(path: Path) -> bool:
    return state_of(path) is State.FAILED and bool(failure_of(path)["memory"])
