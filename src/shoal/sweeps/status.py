"""How the runs of a sweep stand, looked at as seldom and as cheaply as will do."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ..results.records import failure_of
from ..runs.run import Run
from ..training.watcher import Watcher
from .attempt import RunState, state_of
from .plan import RUNS, folder_of, read_plan, replaced

# Seconds between two looks, and how much longer than a look it is until the next.
LOOK, SPARING = 1.0, 20


class SweepWatcher(Watcher):
    """Follows a sweep; what its workers do is another process's."""

    def status(self, counts: Counter[RunState], workers: int) -> None:
        """Called now and then with the number of runs in each state, and of workers."""


SILENT = SweepWatcher()


def count_states(out: Path, runs: Sequence[Run]) -> Counter[RunState]:
    """Return how many of the runs are done, running, failed and waiting."""
    return SweepStatus(out, runs).refresh()


class SweepStatus:
    """What is known of the runs; one that is done is not looked at again."""

    def __init__(self, out: Path, runs: Sequence[Run]) -> None:
        self.out, self.runs = out, list(runs)
        self.paths = [folder_of(out, run) for run in runs]
        self.states = [RunState.WAITING] * len(self.runs)
        self._next = 0.0

    def refresh(self) -> Counter[RunState]:
        """Return how many runs are in each state now."""
        try:
            there = set(os.listdir(self.out / RUNS))
        except FileNotFoundError:
            there = set()
        for number, path in enumerate(self.paths):
            if self.states[number] is not RunState.DONE:
                self.states[number] = state_of(path) if path.name in there else RunState.WAITING
        return Counter(self.states)

    def refresh_if_due(
        self, report: Callable[[Counter[RunState]], object]
    ) -> Counter[RunState] | None:
        """Refresh and report; return None if the last time was a moment ago.

        The slower both are, the longer it is until they are due again.
        """
        begin = time.monotonic()
        if begin < self._next:
            return None
        found = self.refresh()
        report(found)
        end = time.monotonic()
        self._next = end + max(LOOK, SPARING * (end - begin))
        return found

    def waiting(self) -> list[Run]:
        """Return the runs that waited at the last look."""
        found = zip(self.runs, self.states, strict=True)
        return [run for run, state in found if state is RunState.WAITING]

    def out_of_memory(self) -> list[Run]:
        """Return the runs that failed for want of memory."""
        found = []
        for run, path, state in zip(self.runs, self.paths, self.states, strict=True):
            if state is RunState.FAILED and (failure_of(path) or {"memory": False})["memory"]:
                found.append(run)
        return found


def current(out: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the runs but for those of data that have changed since, which nobody will finish.

    What is done stays, whatever became of its data, and so does what somebody is at.
    """
    gone = {run.identity for run in _gone(out, runs)}
    return [run for run in runs if run.identity not in gone]


def left_behind(out: Path) -> list[Path]:
    """Return the folders in which runs of the plan in ``out`` were begun that are not current."""
    folders = (folder_of(out, run) for run in _gone(out, read_plan(out)))
    return sorted(folder for folder in folders if folder.is_dir())


def _gone(out: Path, runs: Sequence[Run]) -> list[Run]:
    lost = (RunState.FAILED, RunState.WAITING)
    return [run for run in replaced(runs) if state_of(folder_of(out, run)) in lost]
