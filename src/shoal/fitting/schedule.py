"""Schedule: which run of a fit comes next, so that what is compared was tried on every domain.

A block is the runs that count only together, such as a candidate with every fold left out once. It
is begun if there is time to end it, and given up if it turns out that there is not. First come all
candidates, the simplest first; then other settings of the good ones; then runs with two folds left
out, for an expectation that is nested; then further splits.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from ..results.records import DONE, RunTiming, failure_of, read_timing
from ..runs.run import Run
from ..sweeps.plan import folder_of
from ..training.watcher import Progress
from .candidates import Recipe
from .choice import judged
from .decision import domain_weights, make_decision
from .estimates import Estimates
from .folds import Fold
from .paired import standard_error
from .setup import FitSetup

FIRST, SPLIT, SETTINGS = "first", "split", "settings"
PRICE, PAIRS, TRIALS = "price", "pairs", "trials"
# Candidates that get further runs: so many of the best, if they are within so many paired standard
# errors of the best one.
GOOD, ERRORS = 4, 2.0
# What a run is taken to need whose candidate was not tried yet, in times of the slowest so far.
UNKNOWN = 2.0
# Time for the final run, in runs: it has more domains to train on. And for the files after it.
LAST, FILES = 1.3, 6.0
# No run to train.
END = -1


# From a recipe, the domains to leave out, and the trial.
MakeRun = Callable[[Recipe, tuple[str, ...], int], Run]
# The run of a baseline on an ordinary split of all domains.
MakeSplitRun = Callable[[Recipe], Run]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Runs that count together.

    Args:
        stage: what for.
        key, title: of the candidate.
        base: the key of the candidate with the defaults.
    """

    stage: str
    key: str
    title: str
    base: str
    runs: tuple[Run, ...]


def plan_blocks(
    recipes: Sequence[Recipe],
    folds: Sequence[Fold],
    trials: int,
    make_run: MakeRun,
    *,
    nested: bool,
    make_split_run: MakeSplitRun | None = None,
    make_price_run: MakeRun | None = None,
) -> list[Block]:
    """Return all blocks, in the order in which they are begun.

    Args:
        make_run: from a recipe, the domains to leave out, and the trial.
        nested: whether to plan runs with two folds left out; three folds or more are needed.
        make_split_run: of a baseline on an ordinary split of all domains; methods with updates
            hold rows out in every run.
        make_price_run: as ``make_run``, without the unstable columns.
    """

    def block(
        stage: str,
        recipe: Recipe,
        left_out: Iterable[tuple[str, ...]],
        trial: int,
        make_run: MakeRun = make_run,
    ) -> Block:
        runs = tuple(make_run(recipe, domains, trial) for domains in left_out)
        return block_of(stage, recipe, runs)

    def block_of(stage: str, recipe: Recipe, runs: tuple[Run, ...]) -> Block:
        return Block(
            stage=stage, key=recipe.key, title=recipe.candidate.title, base=recipe.base, runs=runs
        )

    singles = [fold.domains for fold in folds]
    usual = [one for one in recipes if one.key == one.base]
    others = [one for one in recipes if one.key != one.base]
    found = list[Block]()
    for one in usual:
        found.append(block(FIRST, one, singles, 0))
        if one.fitted and make_split_run is not None:
            found.append(block_of(SPLIT, one, (make_split_run(one),)))
    found += [block(SETTINGS, one, singles, 0) for one in others]
    if make_price_run is not None:
        found += [block(PRICE, one, singles, 0, make_price_run) for one in recipes]
    if nested and len(folds) > 2:
        pairs = [one.domains + other.domains for one, other in combinations(folds, 2)]
        found += [block(PAIRS, one, pairs, 0) for one in recipes]
    for trial in range(1, trials):
        found += [block(TRIALS, one, singles, trial) for one in recipes if one.random]
    return found


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

    @property
    def began_at(self) -> float:
        """The time of day at which this command began."""
        return time.time() - (time.monotonic() - self._begun)


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What a fit is about to do.

    Args:
        candidates: titles of the candidates with their default settings.
        variants: the number of other settings that may be tried.
        folds: each is left out in turn.
        trials: maximum number of random splits.
        shortest: seconds that the fit takes at least; 0 if unknown.
        without_gpu: whether only a head is trained because there is no GPU.
    """

    setup: FitSetup
    candidates: tuple[str, ...]
    variants: int
    folds: tuple[Fold, ...]
    trials: int
    budget: Budget
    shortest: float
    without_gpu: bool


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


class Schedule:
    """Chooses the runs of a fit one after the other, from the results so far.

    Args:
        blocks: from ``plan_blocks``.
        estimates: returns the estimates from finished runs, each with the key of its candidate.
    """

    def __init__(
        self,
        out: Path,
        blocks: Sequence[Block],
        budget: Budget,
        estimates: Callable[[Sequence[tuple[str, Run]]], Estimates],
    ) -> None:
        self.out, self.blocks, self.budget, self.estimates = out, blocks, budget, estimates
        self.runs = [run for block in blocks for run in block.runs]
        self._number = {run.identity: k for k, run in enumerate(self.runs)}
        self._key = {run.identity: block.key for block in blocks for run in block.runs}
        self._title = {block.key: block.title for block in blocks}
        self._base = {block.key: block.base for block in blocks}
        self._given_up: set[int] = set()
        self._current: int | None = None
        self._seconds: dict[str, float] = {}
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._failures: list[Run] = []
        self._earlier = 0.0
        self._known: tuple[int, Estimates] | None = None
        for run in self.runs:
            self._look(run)

    def next(self) -> int:
        """Return the number of the run to train next, among ``runs``; ``END`` if there is none."""
        while True:
            if self._current is None:
                self._current = self._pick()
            if self._current is None:
                return END
            block = self.blocks[self._current]
            waiting = [run for run in block.runs if run.identity not in self._done]
            if not waiting or block.key in self._failed:
                self._current = None
            elif not self._fits(block, waiting):
                self._given_up.add(self._current)
                self._current = None
            else:
                return self._number[waiting[0].identity]

    def ended(self, run: Run, seconds: float) -> None:
        """Take note that a run has ended, done or failed, after so many seconds of this command."""
        self._look(run)
        key = self._key[run.identity]
        if run.identity in self._done and key in self._seconds:
            # Its own timing has no time for files.
            self._seconds[key] = max(self._seconds[key], min(seconds, 2 * self._seconds[key]))

    def title_of(self, run: Run) -> str:
        """Return the title of a run's candidate."""
        return self._title[self._key[run.identity]]

    @property
    def counted(self) -> list[tuple[str, Run]]:
        """The finished runs of the comparison, each with the key of its candidate."""
        return [
            (block.key, run)
            for block in self.blocks
            if block.stage != PRICE
            for run in block.runs
            if run.identity in self._done
        ]

    def price_runs(self, key: str) -> tuple[Run, ...]:
        """Return the runs of a candidate without the unstable columns, if all are finished."""
        blocks = [one for one in self.blocks if (one.stage, one.key) == (PRICE, key)]
        runs = blocks[0].runs if blocks else ()
        return runs if all(run.identity in self._done for run in runs) else ()

    @property
    def failed(self) -> list[tuple[str, Run]]:
        """The failed runs, each with the key of its candidate."""
        return [(self._key[run.identity], run) for run in self._failures]

    @property
    def more_seconds(self) -> float | None:
        """The time in which the rest of the candidates could be compared; None if unknown."""
        waiting = [
            block.key
            for block in self.blocks
            if block.stage == FIRST and block.key not in self._failed
            for run in block.runs
            if run.identity not in self._done
        ]
        if not waiting or not self._seconds:
            return None
        return sum(map(self._expected, waiting))

    def progress(self, run: Run, progress: Progress | None) -> FitProgress:
        """Return the progress of the fit, given that of the current run; None: it begins."""
        key = self._key[run.identity]
        rest = progress.seconds_left if progress is not None else None
        if progress is not None and progress.seconds_left and progress.done:
            whole = progress.seconds_left / (1 - progress.done / progress.steps)
            self._seconds.setdefault(key, whole)
        ahead = self._ahead()
        expected = [self._expected(self._key[one.identity]) for one in ahead if one is not run]
        if not self._seconds:
            return FitProgress(len(self._done), len(self._done) + len(ahead), None)
        mine = self._expected(key) if rest is None else rest
        left = mine + sum(expected) + self._last()
        if self.budget.seconds is not None:
            left = min(left, max(self._time_left() + self._last(), mine))
        return FitProgress(len(self._done), len(self._done) + len(ahead), left)

    def _ahead(self) -> list[Run]:
        """Return the runs of the current block and of those of its stage that are to come."""
        if self._current is None:
            return []
        stage = self.blocks[self._current].stage
        found = list[Run]()
        for number, block in enumerate(self.blocks):
            if block.stage == stage and number >= self._current and number not in self._given_up:
                waiting = [run for run in block.runs if run.identity not in self._done]
                if number == self._current or self._fits(block, [*found, *waiting]):
                    found += waiting
        return found

    def _look(self, run: Run) -> None:
        """Read whether a run is done or has failed, and its time."""
        if run.identity in self._done:
            return
        folder = folder_of(self.out, run)
        key = self._key[run.identity]
        if not (folder / DONE).exists():
            if failure_of(folder) is not None:
                self._failed.add(key)
                self._failures.append(run)
            return
        self._done.add(run.identity)
        timing = read_timing(folder)
        if timing is None:
            return
        if (folder / DONE).stat().st_mtime < self.budget.began_at:
            self._earlier += timing.seconds
        seconds = _whole(run, timing)
        # The fastest: on a GPU, the first run also compiles.
        self._seconds[key] = min(seconds, self._seconds.get(key, seconds))

    def _expected(self, key: str) -> float:
        """Return the seconds that a run of a candidate is expected to take."""
        if key in self._seconds:
            return self._seconds[key]
        if self._base[key] in self._seconds:
            return self._seconds[self._base[key]]
        return UNKNOWN * max(self._seconds.values(), default=0.0)

    def _last(self) -> float:
        """Return the seconds of the final run and of the files written after it."""
        best = self._good() or list(self._seconds)
        return LAST * max(map(self._expected, best), default=0.0) + FILES

    def _time_left(self) -> float:
        left = self.budget.seconds_left
        return math.inf if left is None else left - self._earlier - self._last()

    def _fits(self, block: Block, waiting: Sequence[Run]) -> bool:
        """Return whether time and number of runs allow these runs."""
        if self.budget.runs is not None and len(self._done) + len(waiting) > self.budget.runs:
            return False
        return sum(self._expected(self._key[run.identity]) for run in waiting) <= self._time_left()

    def _pick(self) -> int | None:
        """Return the number of the next block that is worth its time; None if there is none."""
        for number, block in enumerate(self.blocks):
            if number in self._given_up or block.key in self._failed:
                continue
            waiting = [run for run in block.runs if run.identity not in self._done]
            if not waiting:
                continue
            if self._worth(block) and self._fits(block, waiting):
                return number
            if block.stage == FIRST:
                self._given_up.add(number)
        return None

    def _worth(self, block: Block) -> bool:
        if block.stage == FIRST:
            return True
        if block.stage == SPLIT:
            return any(one.key == block.key for one in self._estimates().complete)
        if block.stage == SETTINGS:
            return block.base in self._good()
        if block.stage == TRIALS:
            return block.key in self._good()
        if block.stage == PRICE:
            estimates = self._estimates()
            return bool(estimates.complete) and block.key == make_decision(estimates).deploy
        # An expectation is nested only if all candidates have left out all pairs.
        complete = {one.key for one in self._estimates().complete}
        pairs = [one for one in self.blocks if one.stage == PAIRS and one.key in complete]
        waiting = [run for one in pairs for run in one.runs if run.identity not in self._done]
        return block.key in complete and self._fits(block, waiting)

    def _good(self) -> list[str]:
        """Return the candidates that are near the best one, the best first."""
        return good_candidates(self._estimates()) if self._done else []

    def _estimates(self) -> Estimates:
        """Return the estimates so far, made anew only if a run was added."""
        if self._known is None or self._known[0] != len(self._done):
            self._known = len(self._done), self.estimates(self.counted)
        return self._known[1]


def good_candidates(estimates: Estimates) -> list[str]:
    """Return the candidates that are near the best one, the best first."""
    if not estimates.complete or len(estimates.domains) < 2:
        return []
    gains = estimates.measure.sign * estimates.table()
    weights = domain_weights(estimates)
    values = judged(gains, weights, estimates.judge)
    best = int(values.argmax())
    error = np.nan_to_num(standard_error(gains[best] - gains, weights), posinf=0.0)
    near = values[best] - values <= ERRORS * error
    order = [k for k in np.argsort(-values, kind="stable") if near[k]][:GOOD]
    return [estimates.complete[k].key for k in order]


def _whole(run: Run, timing: RunTiming) -> float:
    """Return the seconds of a whole run; one that was resumed has timed only its last part."""
    share = run.protocol.steps / max(timing.updates, 1)
    return timing.seconds + (share - 1) * timing.updating
