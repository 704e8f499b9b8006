"""The local engine: processes that walk through runs and carry out what nobody else does.

There is no queue: the lock of a run's folder says whose it is, so that workers, drivers and other
machines on the same file system share a sweep without speaking to each other, and any of them may
be killed at any moment.
"""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..runs.machine import different
from ..runs.run import Run
from .attempt import DeviceLost, RunState
from .status import SweepStatus, Told, Watch
from .worker import Stopped, Worker, Workspace, ending_on_sigterm

# Seconds between two looks whether workers live, and until one that was asked to end is killed.
LIVES, GRACE = 0.2, 10.0
# Workers that die one after the other before their first run: the next would, too.
EARLY_DEATHS = 5
# The exit status of a worker that another must replace.
REPLACE = 3


def run_locally(
    out: Path,
    runs: Sequence[Run],
    world: Workspace,
    workers: int,
    told: Told = lambda *_: None,
) -> Counter[RunState]:
    """Carry out these runs of the plan in ``out``; return how they stand in the end.

    Workers that die are replaced, and their runs go on from their checkpoints. Runs that another
    driver carries out are waited for, and taken over if it dies. Runs that ran out of memory are
    tried again at the end, one at a time on each device.
    """
    watched, alone = SweepStatus(out, runs), set[str]()
    with ending_on_sigterm():
        while True:
            _until_settled(watched, _Crew(out, runs, world, workers), lambda f: told(f, workers))
            again = [run for run in watched.out_of_memory() if run.identity not in alone]
            if not again:
                return watched.look()
            alone |= {run.identity for run in again}
            size = different(world.machine().device, workers)
            crew = _Crew(out, again, world, size, alone=True)
            tell = lambda _, size=size: told(watched.look(), size)  # noqa: E731
            _until_settled(SweepStatus(out, again), crew, tell)


def _until_settled(watched: SweepStatus, crew: "_Crew", told: Watch) -> None:
    """Return when no run waits or is carried out by anyone."""
    try:
        while True:
            crew.bury()
            found = watched.look_if_due(told)
            # Who lives has an eye on all that waits, save what a dead one left behind it.
            if found is not None:
                crew.grow(found[RunState.WAITING])
                if not crew.living and not found[RunState.RUNNING]:
                    return
            time.sleep(LIVES)
    finally:
        crew.end()


@dataclass
class _WorkerProcess:
    process: Any
    word: Connection
    begun: bool = False


class _Crew:
    """The workers of this driver.

    Args:
        alone: on their devices, each with its share of the runs, which it walks through once.
    """

    def __init__(
        self, out: Path, runs: Sequence[Run], world: Workspace, size: int, alone: bool = False
    ) -> None:
        self.work, self.runs, self.size, self.alone = (out, world), list(runs), size, alone
        self.living: dict[int, _WorkerProcess] = {}
        self.early, self.walked, self.lost = 0, set[int](), Counter[int]()
        # A fork would take over the GPU's state, and the locks.
        self.context = multiprocessing.get_context("spawn")

    def grow(self, waiting: int) -> None:
        """Start as many workers as there is work for, up to the crew's size."""
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
            # After a lost device the next begins with another run, so that all have their turn.
            share = self._share(number)
            first = self.lost[number] % len(share) if share else 0
            walk = [*share[first:], *share[:first]]
        ours, theirs = self.context.Pipe(duplex=False)
        work = (*self.work, number, walk, self.alone, theirs)
        process = self.context.Process(target=_work, args=work)
        process.start()
        theirs.close()
        return _WorkerProcess(process, ours)

    def _share(self, number: int) -> list[Run]:
        return self.runs[number :: self.size]

    def bury(self) -> None:
        """Take the dead out; raise where one said that no other would do better."""
        for number, worker in list(self.living.items()):
            dead = not worker.process.is_alive()
            if said := _said(worker):
                raise Stopped(said)
            if not dead:
                continue
            del self.living[number]
            status = worker.process.exitcode
            self.lost[number] += status == REPLACE
            # One that loses its device with every run would be replaced for ever.
            if status == 0 or self.lost[number] > len(self._share(number)):
                self.walked.add(number)
            self.early = 0 if worker.begun else self.early + 1
            if self.early >= EARLY_DEATHS:
                raise Stopped(
                    f"{self.early} workers in a row ended before their first run (status {status}, "
                    "-9 is often too little memory); try fewer --workers"
                )

    def end(self) -> None:
        """End all workers; what they were at goes on from its checkpoint another time."""
        for worker in self.living.values():
            worker.process.terminate()
        until = time.monotonic() + GRACE
        for worker in self.living.values():
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _said(worker: _WorkerProcess) -> str:
    """Return why the worker ended, if it said so; note that it has begun."""
    try:
        while worker.word.poll():
            word: str = worker.word.recv()
            if word:
                return word
            worker.begun = True
    except (EOFError, OSError):
        pass  # it is dead, and has said all
    return ""


def _work(
    out: Path, world: Workspace, number: int, runs: Sequence[Run], alone: bool, word: Connection
) -> None:
    """Walk once through the runs; send "" before the first, and why where no other may go on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver gets it too, and says what follows
    with ending_on_sigterm():
        try:
            hand = Worker(out, world, number)
            _say(word, "")
            for run in runs:
                hand(run, alone)
        except DeviceLost:
            raise SystemExit(REPLACE) from None
        except Exception as error:
            _say(word, str(error) or type(error).__name__)
            raise SystemExit(1) from None


def _say(word: Connection, text: str) -> None:
    with suppress(BrokenPipeError):  # its driver was killed, and the runs go on
        word.send(text)
