"""How much may be tried: runs by number, or by the time that they take."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from pathlib import Path
from time import monotonic

from ..results.records import DONE, RunTiming, read_timing
from ..runs.run import Run
from ..sweeps.plan import folder_of
from ..training.watcher import Progress

# Domains that every method is measured on at least, or nothing could be compared.
LEAST = 2
# The last run has one domain more to train on, and is not the only thing left to do.
LAST = 1.5


@dataclass
class Budget:
    """What is left of the time and of the runs that a user allows; None is no limit.

    Time counts from when this is made, and the runs of earlier commands with what they took.
    """

    seconds: float | None = None
    runs: int | None = None
    _begun: float = field(default_factory=time.monotonic)

    def within(self, groups: Sequence[Sequence[Run]]) -> Sequence[Sequence[Run]]:
        """Return the first of the groups, as many as the number of runs allows."""
        ends = list(accumulate(map(len, groups)))
        most = ends[-1] if self.runs is None else self.runs
        return groups[: max(LEAST, sum(end <= most for end in ends))]

    def allows(self, out: Path, groups: Sequence[Sequence[Run]], number: int) -> bool:
        """Return whether group ``number`` may be carried out, once all before it are.

        A group is the runs of all methods on one split with one domain left out.
        """
        if number < LEAST:
            return True
        if number >= len(self.within(groups)):
            return False
        pace = RunSpeeds.of(out, groups[:number])
        ahead = sum(map(pace.of_run, groups[number])) + pace.last
        return time.monotonic() + ahead <= self.end(out, groups)

    def end(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return when the time is over, by the monotonic clock."""
        if self.seconds is None:
            return math.inf
        return time.monotonic() + self.seconds - self.spent(out, groups)

    def spent(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return the seconds of this command, and of the runs that others made before it."""
        now = time.monotonic() - self._begun
        timings = _timings(out, groups, before=time.time() - now)
        return now + sum(timing.seconds for _, timing in timings)


@dataclass(frozen=True)
class RunSpeeds:
    """What the runs ahead will take, by those that are done.

    Args:
        each: seconds of a run of each method, the quickest: on a GPU its first one is compiled.
        slowest: of all; the last run has more domains than they, and is compiled, too.
    """

    each: Mapping[str, float]
    slowest: float

    @staticmethod
    def of(out: Path, groups: Sequence[Sequence[Run]]) -> "RunSpeeds":
        each: dict[str, float] = {}
        slowest = 0.0
        for run, timing in _timings(out, groups):
            # Of a run that went on after an interruption only the rest was timed.
            share = run.protocol.steps / max(timing.updates, 1)
            seconds = timing.seconds + (share - 1) * timing.updating
            each[run.algorithm] = min(seconds, each.get(run.algorithm, seconds))
            slowest = max(slowest, timing.seconds)
        return RunSpeeds(each, slowest)

    def beside(self, algorithm: str, seconds: float) -> "RunSpeeds":
        """Return the pace with that of a run at hand, where no run of its method is done."""
        if algorithm in self.each:
            return self
        return RunSpeeds({**self.each, algorithm: seconds}, max(self.slowest, seconds))

    def of_run(self, run: Run) -> float:
        """Return about how many seconds a run takes."""
        return self.each.get(run.algorithm, self.slowest)

    @property
    def last(self) -> float:
        """About how many seconds the last run takes, and what is done after it."""
        return LAST * self.slowest


def _timings(
    out: Path, groups: Sequence[Sequence[Run]], before: float | None = None
) -> Iterable[tuple[Run, RunTiming]]:
    """Yield the finished runs and their timings; only those from before a time, where given."""
    for run in (run for group in groups for run in group):
        folder = folder_of(out, run)
        done, timing = folder / DONE, read_timing(folder)
        if timing is None or not done.exists():
            continue
        if before is None or done.stat().st_mtime < before:
            yield run, timing


@dataclass(frozen=True)
class FitProgress:
    """Where an estimation stands: runs that are done, of how many, and seconds left if known."""

    done: int
    total: int
    left: float | None


class FitForecast:
    """Where the whole stands, by the runs that are done and by the one at hand.

    Args:
        groups: as in ``Budget.allows``, all of them.
    """

    def __init__(self, out: Path, groups: Sequence[Sequence[Run]], budget: Budget) -> None:
        self.out, self.groups, self.budget = out, budget.within(groups), budget
        self._known = self._pace = RunSpeeds({}, 0.0)
        self._group, self._done, self._end = 0, 0, inf
        self._waiting: set[str] = set()

    def __call__(self, run: Run, progress: Progress | None) -> FitProgress:
        """Return where it stands while ``run`` does so; None is that it begins."""
        if progress is None:
            self._begin(run)
        elif progress.seconds_left:
            # Nothing is left after its last update, which says nothing about the next runs.
            share = 1 - progress.done / progress.steps
            self._pace = self._known.beside(run.algorithm, progress.seconds_left / share)
        if not self._pace.each:
            return FitProgress(self._done, sum(map(len, self.groups)), None)
        rest = progress.seconds_left if progress is not None else None
        return self._ahead(self._pace.of_run(run) if rest is None else rest)

    def _begin(self, run: Run) -> None:
        """Look at the files, which is enough once a run."""
        self._known = self._pace = RunSpeeds.of(self.out, self.groups)
        self._end = self.budget.end(self.out, self.groups)
        self._group = next(k for k, group in enumerate(self.groups) if run in group)
        runs = [run for group in self.groups for run in group]
        self._done = runs.index(run)
        self._waiting = {
            one.identity
            for one in runs[self._done + 1 :]
            if not (folder_of(self.out, one) / DONE).exists()
        }

    def _ahead(self, seconds: float) -> FitProgress:
        """Return the runs that there is time for, after ``seconds`` of the one at hand."""
        total, now = 0, monotonic()
        for number, group in enumerate(self.groups):
            waiting = [run for run in group if run.identity in self._waiting]
            more = seconds + sum(map(self._pace.of_run, waiting))
            sure = number < LEAST or number <= self._group
            if not sure and now + more + self._pace.last > self._end:
                break
            total, seconds = total + len(group), more
        return FitProgress(self._done, total, seconds + self._pace.last)
