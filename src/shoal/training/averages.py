"""Averages of the weights along a run: SMA, its second half, and SWAD.

They leave training alone. Each update adds the weights to one sum, the *segment*; at the end of a
segment the sum moves into the averages that want it. All state is in buffers, so that a checkpoint
holds it, and no update waits for the host.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from ..algorithms.hparams import WARMUPS
from ..catalogue import AVERAGES
from ..choices import choose
from ..distributed import alone, copy_from_first_rank, processes, without_sharing
from ..internals import foreach
from ..randomness import Draws
from ..results.records import Record
from ..scalars import widest
from ..weight_average import StoredWeights, fold, use_weights
from .evaluation import Evaluation, EvaluationSet, eval_mode, record_of
from .step import Step, Update, precision_context

# SMA starts with update 100 of the paper's count, or at the end of a method's warm-up.
SMA_START = 100
# SWAD: losses that must not fall for it to start, losses that must be high for it to end, and how
# high (N_s, N_e and r of the paper).
START_WINDOW, END_WINDOW, TOLERANCE = 3, 6, 1.3
# SWAD evaluates 50 times a run, but not more often than every 10 updates; with fewer evaluations
# after the warm-up than this it says nothing.
EVALUATIONS, EVERY_LEAST, FEWEST = 50, 10, 12
# Segments that SWAD can take when it starts: N_s − 1 after its start, and N_e − N_s before. Once it
# has started, three of these places hold the segment that is being filled, the mean of the segments
# that wait for a loss within the threshold, and the mean of those that were taken.
RECENT = END_WINDOW - 1
FILLED, WAITING, TAKEN = range(3)
# Batches of which batch norm that follows the data gets its statistics for an average, and the step
# whose random draws they begin with.
STATISTICS, UNREACHED = 100, 2**40


class Window(NamedTuple):
    """The evaluations between which SWAD averages.

    ``start`` is that of t_s: the segments after it are averaged. ``last`` is the latest evaluation
    whose loss was within the threshold, ``end`` that of t_e, None while it has not come.
    """

    start: int
    threshold: float
    last: int
    end: int | None

    def later(self, evaluations: int) -> "Window":
        """Return the window with all evaluations counted from so many before."""
        end = None if self.end is None else self.end + evaluations
        return Window(self.start + evaluations, self.threshold, self.last + evaluations, end)


def swad_window(losses: Sequence[float]) -> Window | None:
    """Return SWAD's window from the validation losses so far; None if it has not started.

    It starts at the first loss that is the smallest of the N_s from it on; the threshold is r times
    their mean. From there the start moves back, by at most N_e − N_s evaluations, over losses
    within the threshold. It ends at the last loss within the threshold before N_e larger ones. If
    that is its start, so that no update lies in it, the search begins again at the last of the N_e:
    the loss jumped and stayed, as it can when a penalty begins to act.
    """
    converged = next(
        (
            k
            for k in range(len(losses) - START_WINDOW + 1)
            if losses[k] == min(losses[k : k + START_WINDOW])
        ),
        None,
    )
    if converged is None:
        return None
    threshold = TOLERANCE * sum(losses[converged : converged + START_WINDOW]) / START_WINDOW
    start = converged
    while (
        start > max(0, converged - (END_WINDOW - START_WINDOW)) and losses[start - 1] <= threshold
    ):
        start -= 1
    last = converged
    for k in range(converged + 1, len(losses)):
        if losses[k] <= threshold:
            last = k
        elif k - last == END_WINDOW:
            if last == start:
                again = swad_window(losses[k:])
                return None if again is None else again.later(k)
            return Window(start, threshold, last, last)
    return Window(start, threshold, last, None)


@dataclass(frozen=True)
class AveragePlan:
    """Which updates enter which average; updates are counted from 0, as in records.

    Args:
        steps: updates of the run.
        warmup: updates before a method's penalty acts; SWAD starts after them, because the jump of
            the loss would end it.
        swad: whether SWAD's loss is evaluated.
    """

    steps: int
    warmup: int = 0
    swad: bool = True

    @property
    def sma_start(self) -> int:
        """The first update of SMA; the paper's t₀ counts from 1 and includes update t₀ − 1."""
        return max(0, min(max(SMA_START, self.warmup), self.steps // 2) - 2)

    @property
    def half_start(self) -> int:
        """The first update of the second half."""
        return self.steps // 2

    @cached_property
    def _evaluations(self) -> tuple[int, ...]:
        """The updates after which SWAD's loss would be evaluated; none if the run is too short."""
        every = max(EVERY_LEAST, self.steps // EVALUATIONS)
        last = self.steps - 1
        found = [k for k in range(self.warmup, self.steps) if k % every == 0 or k == last]
        return tuple(found) if len(found) >= FEWEST else ()

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The updates after which SWAD's loss is evaluated."""
        return self._evaluations if self.swad else ()

    @cached_property
    def segments(self) -> dict[int, int]:
        """The first update of every segment, by its last; none straddles the start of an average.

        What comes before the first update that any average can contain is in no segment. They are
        the same without SWAD, so that the sums of the others are the same to the last bit.
        """
        # SWAD averages what follows an evaluation, so never what precedes the first.
        first = min([self.sma_start, *(step + 1 for step in self._evaluations[:1])])
        ends = {self.sma_start - 1, self.half_start - 1, *self._evaluations, self.steps - 1}
        lasts = sorted(end for end in ends if end >= first)
        return dict(zip(lasts, [first, *(end + 1 for end in lasts)], strict=False))

    @property
    def first(self) -> int:
        """The first update that any average can contain."""
        return min(self.segments.values())

    @property
    def copies(self) -> int:
        """How many copies of the weights the averages hold."""
        return 3 + (RECENT if self.evaluated else 0)


class Average(NamedTuple):
    """The mean of some weights over the updates of an average.

    ``about`` has further entries of its record. Those of SWAD: whether it ``converged``, which is
    to say started, and the updates ``t_s`` and ``t_e`` of the paper; the mean begins with the
    update after t_s. t_e is None while it has not come.
    """

    weights: list[Tensor]
    updates: range
    about: Mapping[str, Any]


class Averages(nn.Module):
    """The averages of one run.

    Call ``add`` after every update, and after the last update of each of the plan's segments
    ``end_segment``, with the validation loss where the plan evaluates it. ``current`` returns the
    mean of an average so far.

    Args:
        weights: those that the method trains; they are read, and never changed.
    """

    losses: Tensor

    def __init__(self, weights: Sequence[Tensor], plan: AveragePlan) -> None:
        super().__init__()
        self.plan = plan
        self._weights = (list(weights),)  # in a tuple: they are not weights of this module
        self.segment = StoredWeights(weights)  # a sum; all others are means
        self.early = StoredWeights(weights)  # updates of SMA before the second half
        self.late = StoredWeights(weights)  # updates of the second half
        if plan.evaluated:
            self.recent = nn.ModuleList(StoredWeights(weights) for _ in range(RECENT))
            losses = torch.full((len(plan.evaluated),), torch.inf, dtype=torch.float64)
            self.register_buffer("losses", losses)

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the weights after update ``step`` to the segment."""
        if step >= self.plan.first:
            foreach("add_", self.segment.tensors, self._weights[0])

    @torch.no_grad()
    def end_segment(self, step: int, loss: float | None = None) -> None:
        """Move the sum of the segment that ends with update ``step`` into the averages.

        Args:
            loss: on the held-out parts of the training domains, after an update that the plan
                evaluates; a loss that is not a number counts as infinite.
        """
        plan = self.plan
        start = plan.segments.get(step)
        if start is not None:
            self._move(start, step)
        if step in plan.evaluated:
            if loss is None:
                raise ValueError(f"SWAD needs the validation loss after update {step}")
            number = plan.evaluated.index(step)
            before = self.window(number)
            self.losses[number] = loss if math.isfinite(loss) else math.inf
            self._evaluated(number, before, self.window(number + 1))

    def _move(self, start: int, step: int) -> None:
        plan, count = self.plan, step + 1 - start
        total = self.segment.tensors
        mean = foreach("div", total, count)
        if start >= plan.half_start:
            fold(self.late.tensors, start - plan.half_start, mean, count)
        elif start >= plan.sma_start:
            fold(self.early.tensors, start - plan.sma_start, mean, count)
        if plan.evaluated and start > plan.evaluated[0]:
            number = bisect_left(plan.evaluated, step)
            begun = start - 1 - plan.evaluated[number - 1]
            place = number if self.window(number) is None else FILLED
            fold(self._recent(place), begun, mean, count)
        foreach("zero_", total)

    def _recent(self, place: int) -> list[Tensor]:
        found = self.recent[place % RECENT]
        if not isinstance(found, StoredWeights):
            raise TypeError(f"expected weights, got {type(found).__name__}")
        return found.tensors

    def window(self, evaluations: int) -> Window | None:
        """Return SWAD's window after so many evaluations."""
        return swad_window(self.losses[:evaluations].tolist())

    def _evaluated(self, number: int, before: Window | None, after: Window | None) -> None:
        """Take in the segment that ends with evaluation ``number``; None: SWAD has not started."""
        if before is None:
            if after is not None:
                # Both are read before either is written over a segment.
                within = self._mean_of(after.start, after.last)
                beyond = self._mean_of(after.last, number)
                foreach("copy_", self._recent(TAKEN), within)
                foreach("copy_", self._recent(WAITING), beyond)
        elif after is None:  # it ended with no update in it
            foreach("copy_", self._recent(number), self._recent(FILLED))
        elif before.end is None and after.end is None:
            # Segments beyond the threshold are taken together or not at all: one mean holds them.
            waited = self._between(before.last, number - 1)
            added = self._between(number - 1, number)
            fold(self._recent(WAITING), waited, self._recent(FILLED), added)
            if after.last == number:
                taken = self._between(after.start, before.last)
                fold(self._recent(TAKEN), taken, self._recent(WAITING), waited + added)

    def _mean_of(self, start: int, last: int) -> list[Tensor]:
        """Return the mean of the recent segments after one evaluation, up to another."""
        mean = [torch.zeros_like(tensor) for tensor in self.segment.tensors]
        for number in range(start + 1, last + 1):
            count, added = self._between(start, number - 1), self._between(number - 1, number)
            fold(mean, count, self._recent(number), added)
        return mean

    def _between(self, number: int, other: int) -> int:
        """Return how many updates lie between two evaluations."""
        return self.plan.evaluated[other] - self.plan.evaluated[number]

    @torch.no_grad()
    def current(self, name: str, step: int) -> Average | None:
        """Return the mean of an average and its updates, as if update ``step`` were the last.

        None if the average has not begun.

        Args:
            name: one of ``AVERAGES``.
        """
        if name == "swad":
            return self._current_swad(step)
        plan = self.plan
        start = plan.sma_start if name == "sma" else plan.half_start
        if step < start:
            return None
        mean = [torch.zeros_like(tensor) for tensor in self.segment.tensors]
        count = 0
        for tensors, added in self._pieces(start, step):
            fold(mean, count, tensors, added)
            count += added
        return Average(mean, range(start, step + 1), {})

    def _pieces(self, start: int, step: int) -> Iterator[tuple[list[Tensor], int]]:
        """Yield the means that updates ``start`` to ``step`` are in, and how many of them."""
        plan = self.plan
        ended = max((end for end in plan.segments if end <= step), default=plan.first - 1)
        half = min(plan.half_start, ended + 1)
        if start < half:
            yield self.early.tensors, half - start
        if plan.half_start <= ended:
            yield self.late.tensors, ended + 1 - plan.half_start
        if step > ended:
            count = step - ended
            yield foreach("div", self.segment.tensors, count), count

    def _current_swad(self, step: int) -> Average | None:
        """Return SWAD's mean; while it has not started, that of the segment before now."""
        at = self.plan.evaluated
        newest = bisect_right(at, step) - 1
        if newest < 1:
            return None
        window = self.window(newest + 1)
        if window is None:
            mean = [tensor.clone() for tensor in self._recent(newest)]
            never = {"converged": False, "t_s": None, "t_e": None}
            return Average(mean, range(at[newest - 1] + 1, at[newest] + 1), never)
        mean, last = [tensor.clone() for tensor in self._recent(TAKEN)], window.last
        if window.end is None and newest > last:  # what waits counts while nothing has ended it
            count, added = self._between(window.start, last), self._between(last, newest)
            fold(mean, count, self._recent(WAITING), added)
            last = newest
        ended = None if window.end is None else at[window.end]
        about = {"converged": True, "t_s": at[window.start], "t_e": ended}
        return Average(mean, range(at[window.start] + 1, at[last] + 1), about)


def _follows_data(part: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Return whether a module is a batch norm whose statistics change in training."""
    return (
        isinstance(part, nn.modules.batchnorm._BatchNorm)
        and part.training
        and part.track_running_stats
    )


class Averaging:
    """Follows the weights of a training, and evaluates their averages at its records.

    Call ``begin`` before the first update. ``names`` are then the averages that are followed, of
    those that were asked for.

    Args:
        update: a method and its batches; every weight that the method trains is averaged.
        evaluate: measures the method with the weights that it has.
        validation: the held-out parts of the training domains, for SWAD's loss.
        names: which averages are recorded, of ``AVERAGES``.
    """

    averages: Averages

    def __init__(
        self,
        update: Update,
        evaluate: Evaluation,
        validation: Sequence[EvaluationSet],
        steps: int,
        names: Sequence[str] = tuple(AVERAGES),
    ) -> None:
        algorithm = update.algorithm
        self.update, self.evaluate, self.validation = update, evaluate, list(validation)
        self.names = [choose("average", name, AVERAGES) for name in names]
        self.weights = [weight for weight in algorithm.parameters() if weight.requires_grad]
        self._steps = steps
        self._warmup = max(int(getattr(algorithm.hparams, name, 0)) for name in WARMUPS)
        self.records: list[Record] = []

    @property
    def plan(self) -> AveragePlan:
        """Which updates enter which of the averages."""
        swad = "swad" in self.names and bool(self.validation) and all(map(len, self.validation))
        return AveragePlan(self._steps, self._warmup, swad=swad)

    def begin(self, checkpoint: Mapping[str, Any] | None = None) -> str:
        """Follow the weights from here on; return a line for the user if something is lost.

        Where memory does not hold the averages, training goes on without them. Neither can a run
        that resumes have an average that it began without.

        Args:
            checkpoint: of the training that is resumed.
        """
        lost, saved = "", None
        if checkpoint is not None:
            saved = checkpoint.get("averages", {})
            began = saved.get("names", ())  # none in checkpoints from before averages were saved
            without = [AVERAGES[name] for name in self.names if name not in began]
            self.names = [name for name in self.names if name in began]
            if without:
                which = ", ".join(without) if self.names else "averages"
                lost = f"the run began without {which}: not recorded"
        plan = self.plan
        if self.names and not self._fit(plan):
            self.names = []
            size = plan.copies * sum(weight.nbytes for weight in self.weights)
            lost = (
                f"there is no memory for averages of the weights, which take {size / 1e9:.2g} GB "
                f"({plan.copies} copies of the weights): not recorded"
            )
        if self.names and saved:
            self._load(saved)
        return lost

    def _fit(self, plan: AveragePlan) -> bool:
        """Make the averages and return True, or return False if memory does not hold them."""
        # A function of its own, so that no traceback keeps what was made.
        try:
            self.averages = Averages([weight.detach() for weight in self.weights], plan)
        except torch.OutOfMemoryError:
            if processes() > 1:  # the others may have room, and all must do the same
                raise
            return False
        return True

    def after_update(self, step: int, run: Step) -> None:
        """Take in the weights after update ``step``, without waiting for them if possible."""
        averages, plan = self.averages, self.averages.plan
        run.between(lambda: averages.add(step))
        if step in plan.evaluated:
            run.wait()
            loss = self.validation_loss()
            run.between(lambda: averages.end_segment(step, loss))
        elif step in plan.segments:
            run.between(lambda: averages.end_segment(step))

    def validation_loss(self) -> float:
        """Return the mean over training domains of the mean cross-entropy on held-out examples."""
        losses = []
        for part in self.validation:
            logits = torch.cat(list(self.evaluate.logits(part)))
            logits = logits.to(widest(logits.device))
            labels = part.labels.to(logits.device)
            losses.append(nn.functional.cross_entropy(logits, labels))
        mean = torch.stack(losses).mean()
        copy_from_first_rank([mean])  # all ranks must see the same window
        return float(mean)

    def record(self, step: int) -> None:
        """Add a record of every average that has begun."""
        for name in self.names:
            if current := self.averages.current(name, step):
                with self._use(current.weights):
                    found = self.evaluate()
                updates = [current.updates.start, current.updates.stop - 1]
                about = {"average": name, "updates": updates, **current.about}
                self.records.append(record_of(step, {}, found, about))

    @contextmanager
    def as_recorded(self, record: Record) -> Iterator[None]:
        """Give the method the weights that the newest record of an average measured, inside.

        The weights stay as they are for a record of the training itself. Each process does this
        alone.
        """
        name = record.extra.get("average")
        current = None if name is None else self.averages.current(name, record.step)
        with nullcontext() if current is None else self._use(current.weights):
            yield

    @contextmanager
    def _use(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Give the method these weights inside, and batch norm the statistics for them."""
        with use_weights(self.weights, values), self._own_statistics():
            yield

    @contextmanager
    def _own_statistics(self) -> Iterator[None]:
        """Give batch norm that follows the data the statistics of the present weights inside.

        They are means over training batches from a part of the random streams that no training
        reaches. Every process runs whole batches, which gives all of them the same statistics.
        Frozen batch norm stays as it is.
        """
        algorithm, batches = self.update.algorithm, self.update.batches
        norms = [part for part in algorithm.modules() if _follows_data(part)]
        if not norms:
            yield
            return
        draws = [part for part in batches.modules() if isinstance(part, Draws)]
        kept = [tensor for part in (*norms, *draws) for tensor in part.buffers()]
        before = [tensor.clone() for tensor in kept]
        momenta = [norm.momentum for norm in norms]
        with eval_mode(algorithm):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean over batches
                norm.train()
            for part in draws:
                part.count.fill_(UNREACHED)
            for number in range(STATISTICS):
                batches.fetch(UNREACHED + number)
                images = torch.cat([images for images, _ in batches()])
                precision = precision_context(self.update.precision, algorithm.device)
                with precision, alone(), without_sharing():
                    algorithm.predict(images)
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        try:
            yield
        finally:
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must hold."""
        lines = [record.to_json() for record in self.records]
        return {"names": self.names, "weights": self.averages.state_dict(), "records": lines}

    def _load(self, saved: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, which can have more averages than are followed."""
        mine = self.averages.state_dict().keys()
        self.averages.load_state_dict({k: v for k, v in saved["weights"].items() if k in mine})
        records = map(Record.from_json, saved["records"])
        self.records = [one for one in records if one.extra["average"] in self.names]
