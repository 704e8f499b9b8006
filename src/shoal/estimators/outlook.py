"""What is still ahead of a fit: how many runs there will be, and how long they take."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic

from ..results.records import DONE
from ..runs.run import Run
from ..sweeps.plan import folder_of
from ..training.loop import Progress
from .budget import LEAST, Budget, Pace


@dataclass(frozen=True)
class Ahead:
    """Where an estimation stands: runs that are done, of how many, and seconds left if known."""

    done: int
    total: int
    left: float | None


class Outlook:
    """Where the whole stands, by the runs that are done and by the one at hand.

    Args:
        groups: as in ``Budget.allows``, all of them.
    """

    def __init__(self, out: Path, groups: Sequence[Sequence[Run]], budget: Budget) -> None:
        self.out, self.groups, self.budget = out, budget.within(groups), budget
        self._known = self._pace = Pace({}, 0.0)
        self._group, self._done, self._end = 0, 0, inf
        self._waiting: set[str] = set()

    def __call__(self, run: Run, progress: Progress | None) -> Ahead:
        """Return where it stands while ``run`` does so; None is that it begins."""
        if progress is None:
            self._begin(run)
        elif progress.seconds_left:
            # Nothing is left after its last update, which says nothing about the next runs.
            share = 1 - progress.done / progress.steps
            self._pace = self._known.beside(run.algorithm, progress.seconds_left / share)
        if not self._pace.each:
            return Ahead(self._done, sum(map(len, self.groups)), None)
        rest = progress.seconds_left if progress is not None else None
        return self._ahead(self._pace.of_run(run) if rest is None else rest)

    def _begin(self, run: Run) -> None:
        """Look at the files, which is enough once a run."""
        self._known = self._pace = Pace.of(self.out, self.groups)
        self._end = self.budget.end(self.out, self.groups)
        self._group = next(k for k, group in enumerate(self.groups) if run in group)
        runs = [run for group in self.groups for run in group]
        self._done = runs.index(run)
        self._waiting = {
            one.identity
            for one in runs[self._done + 1 :]
            if not (folder_of(self.out, one) / DONE).exists()
        }

    def _ahead(self, seconds: float) -> Ahead:
        """Return the runs that there is time for, after ``seconds`` of the one at hand."""
        total, now = 0, monotonic()
        for number, group in enumerate(self.groups):
            waiting = [run for run in group if run.identity in self._waiting]
            more = seconds + sum(map(self._pace.of_run, waiting))
            sure = number < LEAST or number <= self._group
            if not sure and now + more + self._pace.last > self._end:
                break
            total, seconds = total + len(group), more
        return Ahead(self._done, total, seconds + self._pace.last)
