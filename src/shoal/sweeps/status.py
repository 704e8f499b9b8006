"""The status of a sweep: the state of every run, read from the folders as seldom as will do.

Free of torch, like everything that ``shoal status`` needs.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from ..files import UnfitFile
from ..results.index import RUNS
from ..results.records import DONE, FAILED, RUN, failure_of
from ..runs.folder import in_use
from ..runs.run import Run
from ..training.watcher import Watcher
from .plan import folder_of, folders_of, read_plan, superseded

# Seconds between two refreshes; and their distance in multiples of the time that one takes.
EVERY, SPARING = 1.0, 20


class RunState(Enum):
    """The state of a run of a sweep."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    WAITING = "waiting"


def state_of(path: Path) -> RunState:
    """Return the state of the run in this folder; a killed run waits.

    One that cannot be opened has failed, and ``why_closed`` says why. Without its description it is
    not done, because no report could name it.
    """
    try:
        # A Path would take longer to make than to look at.
        if all(os.path.exists(f"{path}{os.sep}{name}") for name in (DONE, RUN)):
            return RunState.DONE
        if in_use(path):
            return RunState.RUNNING
        return RunState.FAILED if (path / FAILED).exists() else RunState.WAITING
    except (OSError, UnfitFile):
        return RunState.FAILED


def why_closed(path: Path) -> str:
    """Return why the folder of a run, or its lock, cannot be opened; "" if they can."""
    try:
        os.listdir(path)
        in_use(path)
    except (OSError, UnfitFile) as error:
        return f"it cannot be opened: {error}"
    return ""


def count_states(out: Path, runs: Sequence[Run]) -> Counter[RunState]:
    """Return how many of the runs are done, running, failed and waiting."""
    return Counter(read_status(out, runs).states)


class SweepWatcher(Watcher):
    """Follows a sweep. Its workers are other processes, so only ``status`` is called."""

    def status(self, counts: Counter[RunState], workers: int) -> None:
        """Called every few seconds with the number of runs in each state, and of workers."""


SILENT = SweepWatcher()


class SweepStatus:
    """The states of runs; a run that is done is not looked at again."""

    def __init__(self, out: Path, runs: Sequence[Run]) -> None:
        self.out, self.runs = out, list(runs)
        self.paths = folders_of(out, runs)
        self.states = [RunState.WAITING] * len(self.runs)
        self._next = 0.0

    def refresh(self) -> Counter[RunState]:
        """Return how many runs are in each state now."""
        try:
            existing = set(os.listdir(self.out / RUNS))
        except FileNotFoundError:
            existing = set()
        for number, path in enumerate(self.paths):
            if self.states[number] is not RunState.DONE:
                self.states[number] = state_of(path) if path.name in existing else RunState.WAITING
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
        counts = self.refresh()
        report(counts)
        end = time.monotonic()
        self._next = end + max(EVERY, SPARING * (end - begin))
        return counts

    def waiting(self) -> list[Run]:
        """Return the runs that waited at the last refresh."""
        both = zip(self.runs, self.states, strict=True)
        return [run for run, state in both if state is RunState.WAITING]

    def out_of_memory(self) -> list[Run]:
        """Return the runs that failed for want of memory."""
        found = []
        for run, path, state in zip(self.runs, self.paths, self.states, strict=True):
            if state is RunState.FAILED and (failure_of(path) or {"memory": False})["memory"]:
                found.append(run)
        return found


def read_status(out: Path, runs: Sequence[Run]) -> SweepStatus:
    """Return the states of these runs now."""
    status = SweepStatus(out, runs)
    status.refresh()
    return status


def stale_runs(out: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the unfinished runs of data that have changed since, which cannot be finished.

    Runs that are done are not stale, whatever became of their data, nor are those in use.
    """
    unfinished = (RunState.FAILED, RunState.WAITING)
    return [run for run in superseded(runs) if state_of(folder_of(out, run)) in unfinished]


def without_stale(out: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not stale."""
    stale = set(map(id, stale_runs(out, runs)))
    return [run for run in runs if id(run) not in stale]


def stale_folders(out: Path, plan: Sequence[Run] | None = None) -> list[Path]:
    """Return the folders of the stale runs of the plan in ``out`` that were begun.

    Args:
        plan: what ``read_plan`` returned, if it was called already.
    """
    runs = read_plan(out) if plan is None else plan
    folders = (folder_of(out, run) for run in stale_runs(out, runs))
    return sorted(folder for folder in folders if folder.is_dir())
