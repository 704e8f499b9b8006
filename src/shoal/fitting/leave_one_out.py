"""How methods do on a domain that they never saw: each left out in turn, as far as the budget goes.

Every run is one of the protocol, in a folder of its own under ``out``: it goes on after an
interruption, and a second command on the same folder shares the work.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..distributed import copy_from_first_rank, rank
from ..results.records import RunResult, failure_of, read_runs
from ..runs.machine import Machine
from ..runs.run import Run
from ..sweeps.attempt import EVERYWHERE, RunState
from ..sweeps.plan import LoadedData, MethodChoice, folder_of, write_plan
from ..sweeps.worker import Worker
from ..training.watcher import Progress, Watcher
from .budget import Budget, FitForecast, FitProgress
from .setup import FitSetup

# Instead of the number of a run: there is no other.
END = -1


def agreed(found: Callable[[], int]) -> int:
    """Return what the first process finds, in all of them; the others find nothing themselves."""
    value = torch.tensor([found() if rank() == 0 else 0])
    copy_from_first_rank([value])
    return int(value)


def say(number: int) -> None:
    """Tell the other processes which run begins now, or ``END``."""
    agreed(lambda: number)


def follow(worker: Worker, runs: Sequence[Run]) -> None:
    """Take part in those of the runs that the first process carries out, until it says ``END``."""
    while (number := agreed(lambda: END)) != END:
        with suppress(*EVERYWHERE):  # which the first process writes down
            worker.assist(runs[number])


# Seconds between two looks at a run that another command carries out.
LOOK = 1.0
# Of a fit, from the run at hand and its progress.
Forecast = Callable[[Run, Progress | None], FitProgress]


class FitWatcher(Watcher):
    """Follows a fit: what is read or computed before its runs, and every run of it."""

    def amount(self, name: str, done: int, total: int) -> None:
        """Called while images are read, decoded or turned into features."""

    def run(self, title: str, progress: Progress | None, forecast: FitProgress) -> None:
        """Called while a run is trained, with the forecast of the fit; None: the run begins."""


class _RunWatcher(Watcher):
    """Follows one run of a fit for ``watcher``, and announces it to the other processes."""

    def __init__(self, run: Run, number: int, watcher: FitWatcher, forecast: Forecast) -> None:
        self.watched, self.number, self.watcher, self.forecast = run, number, watcher, forecast

    def starts(self) -> None:
        say(self.number)

    def progress(self, progress: Progress | None) -> None:
        forecast = self.forecast(self.watched, progress)
        self.watcher.run(run_title(self.watched), progress, forecast)


def run_title(run: Run) -> str:
    """Return a few words for progress lines."""
    if not run.test_domains:
        return f"{run.algorithm} on all domains"
    return f"{run.algorithm} without {run.test_domains[0]}, trial {run.trial}"


@dataclass(frozen=True)
class FitWorkspace:
    """What runs need beside themselves; a ``World`` of the protocol's."""

    methods: Mapping[str, MethodChoice]
    dataset: DomainDataset
    cache: ImageCache | None
    on: Machine

    def method(self, name: str) -> MethodChoice:
        return self.methods[name]

    def data(self, name: str, trial: int) -> LoadedData:
        return self.dataset, self.cache

    def machine(self) -> Machine:
        # What is wrong is shown in the end.
        return replace(self.on, predictions=True)


def groups_of(setup: FitSetup, world: FitWorkspace, trials: int) -> list[list[Run]]:
    """Return the runs of all methods for every trial and domain left out, trial by trial."""
    return [
        [
            setup.run(world.dataset, name, method, (domain,), trial)
            for name, method in world.methods.items()
        ]
        for trial in range(trials)
        for domain in world.dataset.names
    ]


def estimate(
    out: Path, groups: list[list[Run]], world: FitWorkspace, budget: Budget, watcher: FitWatcher
) -> list[RunResult]:
    """Carry out the groups that the budget allows, in order; return the runs that are done."""
    worker, asked = Worker(out, world), list[Run]()
    forecast = FitForecast(out, groups, budget)
    for number, group in enumerate(groups):
        if not agreed(partial(budget.allows, out, groups, number)):
            break
        if rank() == 0:
            write_plan(out, group)
        run_group(worker, group, watcher, forecast)
        asked += group
    if rank() > 0:
        return []  # what came of it is for the first process to say
    found = finished(out, asked)
    if not found:
        raise ValueError(f"all {len(asked)} runs failed: {'; '.join(failures(out, asked)[:1])}")
    return found


def run_group(worker: Worker, runs: Sequence[Run], watcher: FitWatcher, forecast: Forecast) -> None:
    """Carry out some runs; those that another command is at are waited for in the end."""
    if rank() > 0:
        return follow(worker, runs)
    waiting = list(runs)
    while waiting:
        for run in tuple(waiting):
            follows = _RunWatcher(run, runs.index(run), watcher, forecast)
            if _attempt(worker, run, follows) is not RunState.RUNNING:
                waiting.remove(run)
        if waiting:
            time.sleep(LOOK)
    return say(END)


def _attempt(worker: Worker, run: Run, watcher: _RunWatcher) -> RunState:
    watcher.progress(None)
    state = worker.attempt(run, watcher=watcher)
    if state is RunState.FAILED and (failure_of(folder_of(worker.out, run)) or {}).get("memory"):
        # What did not fit beside another program may fit now.
        state = worker.attempt(run, alone=True, watcher=watcher)
    return state


def finished(out: Path, runs: list[Run]) -> list[RunResult]:
    """Return what those of the runs have recorded that are done."""
    folders = [folder_of(out, run) for run in runs]
    return read_runs([folder for folder in folders if folder.is_dir()])


def failures(out: Path, runs: list[Run]) -> list[str]:
    """Return which of the runs failed and why, a line each."""
    found = []
    for run in runs:
        failure = failure_of(folder_of(out, run))
        if failure is not None:
            tests = ", ".join(run.test_domains) or "nothing"
            found.append(f"{run.algorithm} without {tests}, trial {run.trial}: {failure['reason']}")
    return found
