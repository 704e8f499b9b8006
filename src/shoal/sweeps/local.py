"""The local engine: processes that walk through the runs and train those that are free.

There is no queue: the lock of a run's folder marks it as taken. So workers, drivers and other
machines on the same file system share a sweep without talking to each other, and any of them can be
killed at any moment.
"""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..runs.machine import count_devices
from ..runs.run import Run
from .attempt import DeviceLost, Workspace
from .status import SILENT, RunState, SweepStatus, SweepWatcher
from .worker import Stopped, Worker, ending_on_sigterm

# Seconds between two checks for dead workers, and until a worker that was asked to end is killed.
LIVES, GRACE = 0.2, 10.0
# The number of workers in a row that die before their first run; the next would as well.
EARLY_DEATHS = 5
# The exit status of a worker that must be replaced.
REPLACE = 3


def run_locally(
    out: Path,
    runs: Sequence[Run],
    workspace: Workspace,
    workers: int,
    watcher: SweepWatcher = SILENT,
) -> Counter[RunState]:
    """Train these runs of the plan in ``out``; return the number in each state at the end.

    Workers that die are replaced, and their runs resume from checkpoints. Runs of another driver
    are waited for, and taken over if it dies. Runs that ran out of memory are tried again at the
    end, one at a time on each device.
    """
    status, tried_alone = SweepStatus(out, runs), set[str]()
    with ending_on_sigterm():
        while True:
            pool = _WorkerPool(out, runs, workspace, workers)
            _until_settled(status, pool, lambda counts: watcher.status(counts, workers))
            again = [run for run in status.out_of_memory() if run.identity not in tried_alone]
            if not again:
                return status.refresh()
            tried_alone |= {run.identity for run in again}
            size = count_devices(workspace.machine().device, workers)
            pool = _WorkerPool(out, again, workspace, size, alone=True)

            def report(_: object, size: int = size) -> None:
                watcher.status(status.refresh(), size)

            _until_settled(SweepStatus(out, again), pool, report)


def _until_settled(
    status: SweepStatus, pool: "_WorkerPool", report: Callable[[Counter[RunState]], object]
) -> None:
    """Return when no run waits and none is trained, here or by another driver."""
    try:
        while True:
            pool.reap()
            counts = status.refresh_if_due(report)
            # Living workers take what waits, except what a dead one left behind it.
            if counts is not None:
                pool.grow(counts[RunState.WAITING])
                if not pool.living and not counts[RunState.RUNNING]:
                    return
            time.sleep(LIVES)
    finally:
        pool.end()


@dataclass
class _WorkerProcess:
    process: Any
    messages: Connection
    begun: bool = False


class _WorkerPool:
    """The workers of this driver.

    Args:
        alone: whether each worker is alone on its device, and walks once through its share.
    """

    def __init__(
        self, out: Path, runs: Sequence[Run], workspace: Workspace, size: int, alone: bool = False
    ) -> None:
        self.out, self.workspace = out, workspace
        self.runs, self.size, self.alone = list(runs), size, alone
        self.living: dict[int, _WorkerProcess] = {}
        self.early, self.walked, self.lost = 0, set[int](), Counter[int]()
        # A fork would inherit the GPU's state and the locks.
        self.context = multiprocessing.get_context("spawn")

    def grow(self, waiting: int) -> None:
        """Start as many workers as there is work for, up to the pool's size."""
        coming = sum(not worker.begun for worker in self.living.values())
        wanted = waiting - coming
        for number in range(self.size):
            due = number not in self.walked if self.alone else wanted > 0
            if number not in self.living and due:
                self.living[number] = self._start(number)
                wanted -= 1

    def _start(self, number: int) -> _WorkerProcess:
        begin = number * len(self.runs) // self.size
        walk = [*self.runs[begin:], *self.runs[:begin]]
        if self.alone:
            # After a lost device the next worker starts with another run, so that each is tried.
            share = self._share(number)
            first = self.lost[number] % len(share) if share else 0
            walk = [*share[first:], *share[:first]]
        ours, theirs = self.context.Pipe(duplex=False)
        arguments = (self.out, self.workspace, number, walk, self.alone, theirs)
        process = self.context.Process(target=_work, args=arguments)
        process.start()
        theirs.close()
        return _WorkerProcess(process, ours)

    def _share(self, number: int) -> list[Run]:
        return self.runs[number :: self.size]

    def reap(self) -> None:
        """Remove dead workers; raise if one reported that no other would do better."""
        for number, worker in list(self.living.items()):
            dead = not worker.process.is_alive()
            if message := _read_message(worker):
                raise Stopped(message)
            if not dead:
                continue
            del self.living[number]
            status = worker.process.exitcode
            self.lost[number] += status == REPLACE
            # A worker that loses its device with every run would be replaced for ever.
            if status == 0 or self.lost[number] > len(self._share(number)):
                self.walked.add(number)
            self.early = 0 if worker.begun else self.early + 1
            if self.early >= EARLY_DEATHS:
                raise Stopped(
                    f"{self.early} workers in a row ended before their first run (status {status}, "
                    "-9 often means too little memory); try fewer --workers"
                )

    def end(self) -> None:
        """End all workers; their runs resume from checkpoints another time."""
        for worker in self.living.values():
            worker.process.terminate()
        until = time.monotonic() + GRACE
        for worker in self.living.values():
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _read_message(worker: _WorkerProcess) -> str:
    """Return the reason for which the worker ended, if it sent one; mark it as begun."""
    try:
        while worker.messages.poll():
            message: str = worker.messages.recv()
            if message:
                return message
            worker.begun = True
    except (EOFError, OSError):
        pass  # it is dead, and nothing more comes
    return ""


def _work(
    out: Path,
    workspace: Workspace,
    number: int,
    runs: Sequence[Run],
    alone: bool,
    messages: Connection,
) -> None:
    """Walk once through the runs; send "" before the first, or why no worker can go on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver gets it too, and ends its workers
    with ending_on_sigterm():
        try:
            worker = Worker(out, workspace, number)
            _send(messages, "")
            for run in runs:
                worker.attempt(run, alone)
        except DeviceLost:
            raise SystemExit(REPLACE) from None
        except Exception as error:
            _send(messages, str(error) or type(error).__name__)
            raise SystemExit(1) from None


def _send(messages: Connection, text: str) -> None:
    with suppress(BrokenPipeError):  # the driver was killed, and the worker goes on without it
        messages.send(text)
