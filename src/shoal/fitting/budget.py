"""Budget: how long runs are, how many there is time for, and a forecast while they train."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from ..results.records import DONE, RunTiming, read_timing
from ..runs.run import Run
from ..sweeps.cost import Rates
from ..sweeps.plan import folder_of
from ..sweeps.probe import probe_rates
from ..training.watcher import Progress
from .run_estimates import BASELINE
from .setup import FitSetup, FitWorkspace, plan_runs

# Every method is measured on at least this many domains; with fewer, nothing can be compared.
LEAST = 2
# Time of the final run, in runs: it has one more domain to train on, and files are written after.
LAST = 1.5
# Numbers of updates to choose from, from those that the methods' defaults are meant for down to the
# fewest that still learn: a penalty that starts late in a short run hardly helps before it ends.
LENGTHS = (5000, 4000, 3000, 2500, 2000, 1500, 1000, 700, 500, 300)
# The share of the time for holding each domain out once and training the model. The rest is for
# decoding images and for errors of the estimate.
SHARE = 0.7


def length_within(seconds: float, setup: FitSetup, workspace: FitWorkspace) -> tuple[int, float]:
    """Return the number of updates for each run, and the least seconds that the fit then takes.

    A short probe times ERM on this machine; all methods are assumed to cost the same, as most do.
    If the probe fails, return the setup's number of updates and 0 seconds.
    """
    first = plan_runs(setup, workspace, trials=1)[0]
    probed = [run for run in first if run.algorithm == BASELINE]
    erm_only = replace(workspace, methods={BASELINE: workspace.methods[BASELINE]}, cache=None)
    found = probe_rates(probed, erm_only, lambda *_: workspace.dataset)
    if not found:
        return setup.steps, 0.0
    (rates,) = found.values()
    steps = longest(SHARE * seconds, rates, setup, workspace)
    return steps, _seconds(rates, replace(setup, steps=steps), workspace, LEAST)


def longest(seconds: float, rates: Rates, setup: FitSetup, workspace: FitWorkspace) -> int:
    """Return the largest of ``LENGTHS`` with which one round fits into the time, or the smallest.

    A round holds each domain out once, and trains the model.
    """
    for steps in LENGTHS:
        if _seconds(rates, replace(setup, steps=steps), workspace) <= seconds:
            return steps
    return LENGTHS[-1]


def _seconds(
    rates: Rates, setup: FitSetup, workspace: FitWorkspace, domains: int | None = None
) -> float:
    """Return the seconds to hold this many domains out once (None: all) and train the model."""
    runs = [run for group in plan_runs(setup, workspace, trials=1)[:domains] for run in group]
    runs.append(setup.run(workspace.dataset, BASELINE, workspace.methods[BASELINE], (), 0))
    return sum(map(rates.seconds, runs))


@dataclass
class Budget:
    """The time and the number of runs that a user allows; None is no limit.

    Time counts from the creation of this object, plus the time of runs from earlier commands.
    """

    seconds: float | None = None
    runs: int | None = None
    _begun: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """Seconds left to this command; None is no limit."""
        if self.seconds is None:
            return None
        return self.seconds - (time.monotonic() - self._begun)

    def within(self, groups: Sequence[Sequence[Run]]) -> Sequence[Sequence[Run]]:
        """Return the first groups, as many as the number of runs allows."""
        ends = list(accumulate(map(len, groups)))
        most = ends[-1] if self.runs is None else self.runs
        return groups[: max(LEAST, sum(end <= most for end in ends))]

    def allows(self, out: Path, groups: Sequence[Sequence[Run]], number: int) -> bool:
        """Return whether there is time for group ``number``, once all before it are done.

        A group is the runs of all methods on one split with one domain held out.
        """
        if number < LEAST:
            return True
        if number >= len(self.within(groups)):
            return False
        speeds = RunSpeeds.of(out, groups[:number])
        ahead = sum(map(speeds.seconds_of, groups[number])) + speeds.last
        return time.monotonic() + ahead <= self.end(out, groups)

    def end(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return when the time is over, on the monotonic clock."""
        if self.seconds is None:
            return math.inf
        return time.monotonic() + self.seconds - self.spent(out, groups)

    def spent(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return the seconds of this command, plus those of runs from earlier commands."""
        now = time.monotonic() - self._begun
        timings = _timings(out, groups, before=time.time() - now)
        return now + sum(timing.seconds for _, timing in timings)


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What a fit is about to do.

    Args:
        methods: names of the methods that are compared.
        domains: number of domains, each of which is held out in turn.
        trials: maximum number of random splits.
        shortest: seconds that the fit takes at least; 0 if unknown.
        without_gpu: whether only a head is trained because there is no GPU.
    """

    setup: FitSetup
    methods: tuple[str, ...]
    domains: int
    trials: int
    budget: Budget
    shortest: float
    without_gpu: bool


@dataclass(frozen=True)
class RunSpeeds:
    """Expected seconds of the runs ahead, from the finished ones.

    Args:
        each: the fastest run of each method: on a GPU, the first one also compiles.
        slowest: of all; the final run trains on more domains, and compiles too.
    """

    each: Mapping[str, float]
    slowest: float

    @staticmethod
    def of(out: Path, groups: Sequence[Sequence[Run]]) -> "RunSpeeds":
        """Return the speeds of the finished runs among these."""
        each: dict[str, float] = {}
        slowest = 0.0
        for run, timing in _timings(out, groups):
            # A run that was resumed has timed only its last part.
            share = run.protocol.steps / max(timing.updates, 1)
            seconds = timing.seconds + (share - 1) * timing.updating
            each[run.algorithm] = min(seconds, each.get(run.algorithm, seconds))
            slowest = max(slowest, timing.seconds)
        return RunSpeeds(each, slowest)

    def with_current(self, algorithm: str, seconds: float) -> "RunSpeeds":
        """Return the speeds including the current run, if no run of its method is finished."""
        if algorithm in self.each:
            return self
        return RunSpeeds({**self.each, algorithm: seconds}, max(self.slowest, seconds))

    def seconds_of(self, run: Run) -> float:
        """Return the expected seconds of a run."""
        return self.each.get(run.algorithm, self.slowest)

    @property
    def last(self) -> float:
        """Expected seconds of the final run and of the files written after it."""
        return LAST * self.slowest


def _timings(
    out: Path, groups: Sequence[Sequence[Run]], before: float | None = None
) -> Iterable[tuple[Run, RunTiming]]:
    """Yield the finished runs and their timings; only those finished ``before``, if given."""
    for run in (run for group in groups for run in group):
        folder = folder_of(out, run)
        done, timing = folder / DONE, read_timing(folder)
        if timing is None or not done.exists():
            continue
        if before is None or done.stat().st_mtime < before:
            yield run, timing


@dataclass(frozen=True)
class FitProgress:
    """Progress of a fit: runs done, runs planned, and seconds left if known.

    ``inside`` is the current run's accuracy so far, on held-out examples of its training domains;
    None if it is not known yet.
    """

    done: int
    total: int
    left: float | None
    inside: float | None = None


class FitForecast:
    """Forecasts a fit from its finished runs and the current one.

    Args:
        groups: all of them, as in ``Budget.allows``.
    """

    def __init__(self, out: Path, groups: Sequence[Sequence[Run]], budget: Budget) -> None:
        self.out, self.groups, self.budget = out, budget.within(groups), budget
        self._known = self._speeds = RunSpeeds({}, 0.0)
        self._group, self._done, self._end = 0, 0, math.inf
        self._waiting: set[str] = set()

    def __call__(self, run: Run, progress: Progress | None) -> FitProgress:
        """Return the progress of the fit, given that of the current run; None: it begins."""
        if progress is None:
            self._begin(run)
        elif progress.seconds_left:
            # After the last update 0 s are left, which says nothing about the next runs.
            share = 1 - progress.done / progress.steps
            self._speeds = self._known.with_current(run.algorithm, progress.seconds_left / share)
        if not self._speeds.each:
            return FitProgress(self._done, sum(map(len, self.groups)), None)
        rest = progress.seconds_left if progress is not None else None
        return self._forecast(self._speeds.seconds_of(run) if rest is None else rest)

    def _begin(self, run: Run) -> None:
        """Read the files of finished runs; once a run is enough."""
        self._known = self._speeds = RunSpeeds.of(self.out, self.groups)
        self._end = self.budget.end(self.out, self.groups)
        self._group = next(k for k, group in enumerate(self.groups) if run in group)
        runs = [run for group in self.groups for run in group]
        self._done = runs.index(run)
        self._waiting = {
            one.identity
            for one in runs[self._done + 1 :]
            if not (folder_of(self.out, one) / DONE).exists()
        }

    def _forecast(self, seconds: float) -> FitProgress:
        """Return the runs that there is time for, after ``seconds`` of the current one."""
        total, now = 0, time.monotonic()
        for number, group in enumerate(self.groups):
            waiting = [run for run in group if run.identity in self._waiting]
            more = seconds + sum(map(self._speeds.seconds_of, waiting))
            sure = number < LEAST or number <= self._group
            if not sure and now + more + self._speeds.last > self._end:
                break
            total, seconds = total + len(group), more
        return FitProgress(self._done, total, seconds + self._speeds.last)
