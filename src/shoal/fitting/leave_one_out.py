"""Leave one out: methods are trained with each domain held out in turn, within the budget.

Every run is a run of a sweep, in its own folder under ``out``. It resumes after an interruption,
and a second command on the same folder shares the work.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from ..distributed import copy_from_first_rank, rank
from ..results.records import RunResult, failure_of, mean_inside, read_runs
from ..runs.run import Run
from ..sweeps.attempt import EVERYWHERE
from ..sweeps.plan import folder_of, write_plan
from ..sweeps.status import RunState
from ..sweeps.worker import Worker
from ..training.watcher import Progress, Watcher
from .inspection import FitData
from .schedule import END, FitPlan, FitProgress, Schedule
from .setup import FitWorkspace

__all__ = ["FitWatcher"]

# Seconds between two looks at a run that another command trains.
LOOK = 1.0
# Time between two additions to the plan, in multiples of the time that one takes: a plan can have
# thousands of runs that take a moment each.
SPARING = 20
# Returns the forecast of the whole fit, from the current run and its progress.
Forecast = Callable[[Run, Progress | None], FitProgress]


class FitWatcher(Watcher):
    """Follows a fit. Override the methods of interest; here all of them do nothing."""

    def data(self, data: FitData) -> None:
        """Called once all data is read."""

    def plan(self, plan: FitPlan) -> None:
        """Called before the first run is trained."""

    def amount(self, name: str, done: int, total: int) -> None:
        """Called while images are read, decoded or turned into features."""

    def run(self, title: str, progress: Progress | None, forecast: FitProgress) -> None:
        """Called while a run is trained, with the forecast of the fit; None: the run begins."""


class _RunWatcher(Watcher):
    """Follows one run of a fit for ``watcher``, and announces it to the other processes."""

    def __init__(
        self, run: Run, title: str, number: int, watcher: FitWatcher, forecast: Forecast
    ) -> None:
        self.watched, self.title, self.number = run, title, number
        self.watcher, self.forecast = watcher, forecast

    def starts(self) -> None:
        announce_run(self.number)

    def progress(self, progress: Progress | None) -> None:
        forecast = self.forecast(self.watched, progress)
        if progress is not None and progress.record is not None:
            inside = mean_inside(progress.record.accuracy, self.watched.test_domains)
            forecast = replace(forecast, inside=None if math.isnan(inside) else inside)
        self.watcher.run(run_title(self.watched, self.title), progress, forecast)


def run_title(run: Run, title: str) -> str:
    """Return a few words for progress lines.

    Args:
        title: of the candidate.
    """
    if not run.test_domains:
        return f"{title} on all domains"
    left_out = " and ".join(run.test_domains[:2])
    if len(run.test_domains) > 2:
        left_out = f"{run.test_domains[0]} and {len(run.test_domains) - 1} more"
    split = f", split {run.trial + 1}" if run.trial else ""
    return f"{title}, {left_out} held out{split}"


def train_in_turn(
    out: Path, schedule: Schedule, workspace: FitWorkspace, watcher: FitWatcher
) -> None:
    """Train the runs that the schedule names, one after the other, until it names none.

    In several processes all must call it, and the schedule of the first decides.
    """
    worker = Worker(out, workspace)
    with _planning(out, schedule.done) as plan:
        while (number := broadcast_int(schedule.next)) != END:
            run = schedule.runs[number]
            begin = time.monotonic()
            plan(run)
            run_group(worker, [run], schedule.title_of(run), watcher, schedule.progress)
            schedule.ended(run, time.monotonic() - begin)


@contextmanager
def _planning(out: Path, done: Sequence[Run]) -> Iterator[Callable[[Run], None]]:
    """Yield a function that adds a run to the plan in ``out``, at the latest in the end.

    Args:
        done: runs of earlier commands, of which one that was killed may have added none.
    """
    waiting, due = list(done), 0.0

    def write() -> None:
        nonlocal due
        if waiting and rank() == 0:
            begin = time.monotonic()
            write_plan(out, waiting)
            due = time.monotonic() + SPARING * (time.monotonic() - begin)
        waiting.clear()

    def add(run: Run) -> None:
        waiting.append(run)
        if time.monotonic() >= due:
            write()

    try:
        yield add
    finally:
        write()


def run_group(
    worker: Worker, runs: Sequence[Run], title: str, watcher: FitWatcher, forecast: Forecast
) -> None:
    """Train some runs of a candidate; wait for those that another command is training."""
    if rank() > 0:
        return assist_until_done(worker, runs)
    waiting = list(runs)
    while waiting:
        for run in tuple(waiting):
            follows = _RunWatcher(run, title, runs.index(run), watcher, forecast)
            if _attempt(worker, run, follows) is not RunState.RUNNING:
                waiting.remove(run)
        if waiting:
            time.sleep(LOOK)
    return announce_run(END)


def _attempt(worker: Worker, run: Run, watcher: _RunWatcher) -> RunState:
    watcher.progress(None)
    state = worker.attempt(run, watcher=watcher)
    if state is RunState.FAILED and (failure_of(folder_of(worker.out, run)) or {}).get("memory"):
        # It ran out of memory, which another program may have freed by now.
        state = worker.attempt(run, alone=True, watcher=watcher)
    return state


def broadcast_int(compute: Callable[[], int]) -> int:
    """Return in every process what ``compute`` returns in the first; the others do not call it."""
    value = torch.tensor([compute() if rank() == 0 else 0])
    copy_from_first_rank([value])
    return int(value)


def announce_run(number: int) -> None:
    """Send the other processes the number of the run that begins now, or ``END``."""
    broadcast_int(lambda: number)


def assist_until_done(worker: Worker, runs: Sequence[Run]) -> None:
    """Take part in each run that the first process announces, until it announces ``END``."""
    while (number := broadcast_int(lambda: END)) != END:
        with suppress(*EVERYWHERE):  # the first process records the failure
            worker.assist(runs[number])


def finished_runs(out: Path, runs: Sequence[Run]) -> dict[str, RunResult]:
    """Return the results of those runs that are finished, by their identities."""
    folders = {folder_of(out, run): run.identity for run in runs}
    found = read_runs([folder for folder in folders if folder.is_dir()])
    return {folders[run.path]: run for run in found if run.path in folders}


def failures(out: Path, runs: Iterable[tuple[str, Run]]) -> list[str]:
    """Return a line for each failed run, with the reason.

    Args:
        runs: each with the title of its candidate.
    """
    found = []
    for title, run in runs:
        failure = failure_of(folder_of(out, run))
        if failure is not None:
            found.append(f"{run_title(run, title)}: {failure['reason']}")
    return found
