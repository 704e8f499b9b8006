"""Schedule: which run of a fit comes next, so that what is compared was tried on every domain.

A block is the runs that count only together, such as a candidate with every fold left out once. It
is begun if there is time to end it, and left if it turns out that there is not. First come all
candidates, the simplest first; then other settings of the good ones; then runs with two folds left
out, for an expectation that is nested; then further splits.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median_low

import numpy as np

from ..results.records import DONE, RunTiming, failure_of, read_timing
from ..runs.run import Run
from ..sweeps.plan import folder_of
from ..training.watcher import Progress
from .candidates import CandidateSettings, Recipe
from .choice import ROUNDING, choose_candidate, judged
from .decision import domain_weights
from .estimates import Estimates
from .folds import Fold
from .paired import standard_error
from .setup import FitSetup

FIRST, SPLIT, SETTINGS = "first", "split", "settings"
PRICE, PAIRS, TRIALS = "price", "pairs", "trials"
# Candidates that get further runs: so many of the best, if they are within so many paired standard
# errors of the best one.
GOOD, ERRORS = 4, 2.0
# Time for the final run, in runs: it has more domains to train on. And for the files after it; the
# ONNX file of a network for images takes longest.
LAST, FILES, IMAGE_FILES = 1.3, 6.0, 18.0
# What a whole network still needs after its final run, in times that one of its runs evaluates:
# features of all domains by every run, and adaptations.
EVALUATIONS = 2.5
# Methods that train whole networks after their heads.
WHOLE = 2
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
        head: the key of the head that stands for a whole network.
        whole: whether whole networks are trained.
    """

    stage: str
    key: str
    title: str
    base: str
    runs: tuple[Run, ...]
    head: str | None = None
    whole: bool = False


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
            stage=stage,
            key=recipe.key,
            title=recipe.candidate.title,
            base=recipe.base,
            runs=runs,
            head=recipe.head,
            whole=recipe.setup.whole,
        )

    singles = [fold.domains for fold in folds]
    usual = [one for one in recipes if one.key == one.base]
    others = [one for one in recipes if one.key != one.base]
    # Heads take seconds, whole networks minutes.
    quick = sorted(usual, key=lambda one: one.head is not None)
    found = [block(FIRST, one, singles, 0) for one in quick]
    if make_split_run is not None:
        found += [block_of(SPLIT, one, (make_split_run(one),)) for one in usual if one.fitted]
    found += [block(SETTINGS, one, singles, 0) for one in others]
    if make_split_run is not None:
        found += [block_of(SPLIT, one, (make_split_run(one),)) for one in others if one.fitted]
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


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """What a fit is about to do.

    Args:
        candidates: with their default settings, and what else may be tried of them.
        metric, judge: what decides.
        folds: each is left out in turn.
        trials: maximum number of random splits.
        shortest: seconds that the fit takes at least; 0 if unknown.
        without_gpu: whether only a head is trained because there is no GPU.
        networks: whether networks are trained, and not only baselines fitted.
    """

    setup: FitSetup
    candidates: tuple[CandidateSettings, ...]
    metric: str
    judge: str
    folds: tuple[Fold, ...]
    trials: int
    budget: Budget
    shortest: float
    without_gpu: bool
    networks: bool = True


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
        probed: the seconds of a run by a probe, by candidate; the first run says better.
        files: seconds for the files after the final run.
    """

    def __init__(
        self,
        out: Path,
        blocks: Sequence[Block],
        budget: Budget,
        estimates: Callable[[Sequence[tuple[str, Run]]], Estimates],
        probed: Mapping[str, float] | None = None,
        files: float = FILES,
    ) -> None:
        self.out, self.blocks, self.budget, self.estimates = out, blocks, budget, estimates
        self.runs = [run for block in blocks for run in block.runs]
        self._number = {run.identity: k for k, run in enumerate(self.runs)}
        self._block = {run.identity: block for block in blocks for run in block.runs}
        self._base = {block.key: block.base for block in blocks}
        self._pairs = {block.key: k for k, block in enumerate(blocks) if block.stage == PAIRS}
        self._current: int | None = None
        self._done: set[str] = set()
        self._failed: dict[str, Run] = {}
        # Of a candidate's runs: what a finished one took, and what the first one seems to take.
        self._seconds: dict[str, float] = {}
        self._pace: dict[str, float] = {}
        # What a finished run of a whole network took to evaluate.
        self._evaluating: dict[str, float] = {}
        self._probed = probed or {}
        self._files = files
        self._earlier = 0.0
        self._known: tuple[int, _Standing] | None = None
        for run in self.runs:
            self._look(run, earlier=True)

    def next(self) -> int:
        """Return the number of the run to train next, among ``runs``; ``END`` if there is none."""
        while True:
            if self._current is None:
                self._current = self._pick()
            if self._current is None:
                return END
            waiting = self._waiting(self._current)
            goes_on = waiting and not self._has_failed(self._current)
            if goes_on and self._fits(self._together(self._current)):
                return self._number[waiting[0].identity]
            self._current = None

    def ended(self, run: Run, seconds: float) -> None:
        """Take note that a run has ended, done or failed, after so many seconds of this command."""
        self._look(run)
        key = self._block[run.identity].key
        if run.identity in self._done and key in self._seconds:
            # Its own timing has no time for files.
            self._seconds[key] = max(self._seconds[key], min(seconds, 2 * self._seconds[key]))

    @property
    def done(self) -> list[Run]:
        """The finished runs."""
        return [run for run in self.runs if run.identity in self._done]

    def title_of(self, run: Run) -> str:
        """Return the title of a run's candidate."""
        return self._block[run.identity].title

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
        return [(self._block[one].key, run) for one, run in self._failed.items()]

    @property
    def more_seconds(self) -> float | None:
        """The time in which the rest of the candidates could be compared; None if unknown."""
        if self.budget.seconds is None:
            return None
        first = [k for k, block in enumerate(self.blocks) if block.stage == FIRST]
        rest = {self.blocks[k].key: len(self._waiting(k)) for k in first if not self._has_failed(k)}
        if not any(rest.values()) or not self._times:
            return None
        slowest = max(self._times.values())
        return sum(count * (self._measured(key) or slowest) for key, count in rest.items())

    @property
    def nesting_seconds(self) -> float | None:
        """The time in which the choice could be nested; None if unknown, or if it is already.

        It includes what comes before the pairs of folds, and the pairs of settings tried there.
        """
        now = self._standing
        if self.budget.seconds is None or not now.complete or now.nested:
            return None
        before = [
            k
            for k, block in enumerate(self.blocks)
            if block.stage not in (PAIRS, TRIALS) and self._may_begin(k)
        ]
        compared = {self.blocks[k].key for k in before if self.blocks[k].stage in (FIRST, SETTINGS)}
        compared |= now.complete
        if not compared <= self._pairs.keys():
            return None
        numbers = [self._pairs[key] for key in compared]
        failed = any(map(self._has_failed, numbers))
        return None if failed else self._cost([*before, *numbers])[0] or None

    def progress(self, run: Run, progress: Progress | None) -> FitProgress:
        """Return the progress of the fit, given that of the current run; None: it begins."""
        key = self._block[run.identity].key
        if progress is not None and progress.seconds_left and progress.done:
            self._pace[key] = progress.seconds_left / (1 - progress.done / progress.steps)
        seconds, runs = self._ahead()
        done, total = len(self._done), len(self._done) + runs
        if not self._times:
            return FitProgress(done, total, None)
        mine = rest = self._expected(key)
        if progress is not None and progress.seconds_left is not None:
            rest = progress.seconds_left
        left = seconds - mine + rest + self._last()
        if self.budget.seconds is not None:
            left = min(left, max(self._time_left() + self._last(), rest))
        return FitProgress(done, total, left)

    def _ahead(self) -> tuple[float, int]:
        """Return the seconds and the number of runs to come, if nothing changes any more."""
        if self._current is None:
            return 0.0, 0
        found = {self._current}
        seconds, runs = self._cost(found)
        for number in range(len(self.blocks)):
            if number not in found and self._may_begin(number):
                more = set(self._together(number)) - found
                if self._fits(more, seconds, runs):
                    cost = self._cost(more)
                    found |= more
                    seconds, runs = seconds + cost[0], runs + cost[1]
        return seconds, runs

    def _look(self, run: Run, earlier: bool = False) -> None:
        """Read whether a run is done or has failed, and its time.

        Args:
            earlier: whether an earlier command trained it, if it is done. The time of its file
                does not say so: clocks are set, and differ between machines.
        """
        if run.identity in self._done:
            return
        folder = folder_of(self.out, run)
        if not (folder / DONE).exists():
            if failure_of(folder) is not None:
                self._failed[run.identity] = run
            return
        self._done.add(run.identity)
        timing = read_timing(folder)
        if timing is None:
            return
        if earlier:
            self._earlier += timing.seconds
        block, seconds = self._block[run.identity], _whole(run, timing)
        key = block.key
        if block.whole:
            self._evaluating[key] = timing.evaluating
        # The fastest: on a GPU, the first run also compiles.
        self._seconds[key] = min(seconds, self._seconds.get(key, seconds))

    def _waiting(self, number: int) -> list[Run]:
        return [run for run in self.blocks[number].runs if run.identity not in self._done]

    def _has_failed(self, number: int) -> bool:
        runs = self.blocks[number].runs if self._failed else ()
        return any(run.identity in self._failed for run in runs)

    @property
    def _times(self) -> dict[str, float]:
        """The seconds that a run of a candidate takes, by key, as far as known."""
        return self._pace | self._seconds

    def _measured(self, key: str) -> float | None:
        times = self._times
        return times.get(key, times.get(self._base[key], self._probed.get(key)))

    def _expected(self, key: str) -> float:
        """Return the seconds of a run; of a candidate that was not tried yet, as of most others."""
        measured = self._measured(key)
        return median_low(self._times.values() or [0.0]) if measured is None else measured

    def _last(self) -> float:
        """Return the seconds of the final run and of the files written after it."""
        best = self._standing.good or self._times
        return max(map(self._last_of, best), default=0.0) + self._files

    def _last_of(self, key: str) -> float:
        """Return the seconds of a candidate's final run, and of what its network needs after it."""
        return LAST * self._expected(key) + EVALUATIONS * self._evaluating.get(key, 0.0)

    def _time_left(self) -> float:
        left = self.budget.seconds_left
        return math.inf if left is None else left - self._earlier - self._last()

    def _cost(self, numbers: Collection[int]) -> tuple[float, int]:
        """Return the seconds and the number of the runs that wait in these blocks."""
        waiting = [(len(self._waiting(k)), self.blocks[k].key) for k in numbers]
        seconds = sum(count * self._expected(key) for count, key in waiting)
        return seconds, sum(count for count, _ in waiting)

    def _fits(self, numbers: Collection[int], seconds: float = 0.0, runs: int = 0) -> bool:
        """Return whether time and number of runs allow these blocks, after other runs."""
        cost = self._cost(numbers)
        seconds, runs = seconds + cost[0], runs + cost[1]
        if self.budget.runs is not None and len(self._done) + runs > self.budget.runs:
            return False
        if any(self._measured(self.blocks[k].key) is None for k in numbers):
            # After its first run it is known what a block takes; that one may be slow.
            seconds = max(seconds, max(self._times.values(), default=0.0))
        return seconds <= self._time_left()

    def _pick(self) -> int | None:
        """Return the number of the next block that is worth its time; None if there is none."""
        numbers = range(len(self.blocks))
        fitting = (k for k in numbers if self._may_begin(k) and self._fits(self._together(k)))
        return next(fitting, None)

    def _may_begin(self, number: int) -> bool:
        """Return whether a block has runs to train, and they are of use."""
        if self._has_failed(number) or not self._waiting(number):
            return False
        block, now = self.blocks[number], self._standing
        if block.stage == FIRST and block.head is not None:
            return block.head in self._best_heads()
        if block.stage == SPLIT:
            return block.key in now.complete and block.key in (block.base, now.deploy)
        if block.stage == SETTINGS:
            return block.base in now.good
        if block.stage == TRIALS:
            return block.key in now.good
        if block.stage == PRICE:
            return block.key == now.deploy
        if block.stage == PAIRS:
            failed = any(map(self._has_failed, self._together(number)))
            return block.key in now.complete and not failed
        return True

    def _best_heads(self) -> list[str]:
        """Return the heads whose methods train whole networks: the best of those that can."""
        heads = {block.head for block in self.blocks if block.head is not None}
        ranked = [key for key in self._standing.ranked if key in heads]
        # A head that was not measured says nothing against its method.
        return ranked[:WHOLE] + sorted(heads - set(ranked))

    def _together(self, number: int) -> list[int]:
        """Return the blocks that are of use only together with this one, and itself.

        An expectation is nested only if all candidates that are compared have left out all pairs.
        """
        block, now = self.blocks[number], self._standing
        if block.stage == PAIRS:
            return [self._pairs[key] for key in now.complete]
        if block.stage == SETTINGS and now.nested and block.key in self._pairs:
            return [number, self._pairs[block.key]]
        return [number]

    @property
    def _standing(self) -> "_Standing":
        """What the results so far say, found anew only if a run was added."""
        if self._known is None or self._known[0] != len(self._done):
            counted = self.counted
            found = _Standing.of(self.estimates(counted)) if counted else _Standing()
            self._known = len(self._done), found
        return self._known[1]


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """What results say of candidates.

    Args:
        complete: the keys of those that have left out every fold.
        good: of those near the best one, the best first.
        ranked: of all that are complete, the best first.
        deploy: of the one that would be deployed.
        nested: whether all that are complete have left out all pairs of folds.
    """

    complete: frozenset[str] = frozenset()
    good: tuple[str, ...] = ()
    ranked: tuple[str, ...] = ()
    deploy: str | None = None
    nested: bool = False

    @staticmethod
    def of(estimates: Estimates) -> "_Standing":
        if not estimates.complete or len(estimates.domains) < 2:
            return _Standing()
        gains, weights = estimates.measure.sign * estimates.table(), domain_weights(estimates)
        chosen = choose_candidate(gains, weights, estimates.judge, estimates.simplicity)
        keys = [one.key for one in estimates.complete]
        values = judged(gains, weights, estimates.judge)
        return _Standing(
            complete=frozenset(keys),
            good=tuple(good_candidates(estimates)),
            ranked=tuple(keys[k] for k in np.argsort(-values, kind="stable")),
            deploy=keys[chosen.deploy],
            nested=estimates.nested,
        )


def good_candidates(estimates: Estimates) -> list[str]:
    """Return the candidates that are near the best one, the best first."""
    if not estimates.complete or len(estimates.domains) < 2:
        return []
    gains = estimates.measure.sign * estimates.table()
    weights = domain_weights(estimates)
    values = judged(gains, weights, estimates.judge)
    best = int(values.argmax())
    error = np.nan_to_num(standard_error(gains[best] - gains, weights), posinf=0.0)
    near = values[best] - values <= ERRORS * error + ROUNDING
    order = [k for k in np.argsort(-values, kind="stable") if near[k]][:GOOD]
    return [estimates.complete[k].key for k in order]


def _whole(run: Run, timing: RunTiming) -> float:
    """Return the seconds of a whole run; one that was resumed has timed only its last part."""
    share = run.protocol.steps / max(timing.updates, 1)
    return timing.seconds + (share - 1) * timing.updating
