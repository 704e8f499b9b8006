"""Algorithm: the base class of all methods, and its three doors.

A method defines ``penalty(forward)`` for risk + λ · penalty, ``objective(forward)`` for one loss,
or ``update(batches)`` for anything else. It is one file and one line in ``shoal.catalogue``; its
class is final.

Every step can be captured in a CUDA graph: state changes in place, counts and weights that change
are tensors on the device, and no step reads a value on the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..catalogue import StepKind
from ..checks import check_labels, without_value_checks
from ..statistics import Recorded
from .forward import Batch, Forward
from .hparams import Hparams as BaseHparams
from .optimiser import Optimisation, Optimiser, ResetState

#: How far a step can be captured: its loss compiled, all of it a CUDA graph, or not at all.
Capture = StepKind

# Class attributes that had other names before; a user's own class can still set those.
RENAMED = {
    "together": "predicts_batchwise",
    "apart": "separate_passes",
    "individual": "record_gradients_of",
}


def _count_classes(classifier: Any) -> int | None:
    """Return the number of logits; None if the last layer is not linear."""
    last = classifier[-1] if isinstance(classifier, nn.Sequential) and classifier else classifier
    return last.out_features if isinstance(last, nn.Linear) else None


def _are_finite(terms: Mapping[str, Tensor]) -> Tensor:
    """Return whether each term is finite, a bool vector."""
    return torch.stack([term.detach() for term in terms.values()]).isfinite()


def _old_name_of(attribute: str) -> property:
    """Return a property that reads and sets ``attribute``."""

    def read(self: nn.Module) -> Any:
        return getattr(self, attribute)

    def write(self: nn.Module, value: Any) -> None:
        setattr(self, attribute, value)

    return property(read, write)


class Algorithm(nn.Module, ABC):
    """A method: trains ``model`` on batches of the training domains, one update at a time.

    Args:
        model: f_θ = w_ω ∘ Φ_φ, with attributes ``features`` and ``classifier``, on its device.
        num_domains: E, the number of training domains.
        hparams: an instance of the method's own ``Hparams``; the defaults if None.
        seed: of all random numbers that the method draws, and of the networks that it adds.
    """

    Hparams: ClassVar[type[BaseHparams]] = BaseHparams
    paper: ClassVar[str]
    year: ClassVar[int]
    capture: Capture = "graph"
    # Channels that the method adds to those of the images.
    extra_channels: ClassVar[int] = 0
    # Whether ``predict`` looks at a batch as a whole: its size and its other images then matter.
    predicts_batchwise: ClassVar[bool] = False
    # Whether it keeps the network near the weights that it has at the start.
    stays_near_start: ClassVar[bool] = False

    # Images that go through the network at a time; None for a whole batch. Changes no result.
    micro_batch: int | None = None

    steps: Tensor
    failed: Tensor

    # Names of earlier versions.
    together = _old_name_of("predicts_batchwise")
    apart = _old_name_of("separate_passes")
    individual = _old_name_of("record_gradients_of")
    sound = _old_name_of("all_finite")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Move class attributes set under an old name to the new one."""
        super().__init_subclass__(**kwargs)
        for old, new in RENAMED.items():
            if old in vars(cls):
                setattr(cls, new, vars(cls)[old])
                delattr(cls, old)  # so that instances reach the property above

    def __init__(
        self, model: nn.Module, num_domains: int, hparams: BaseHparams | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        hparams = self.Hparams() if hparams is None else hparams
        if not isinstance(hparams, self.Hparams):
            raise TypeError(
                f"hparams of {type(self).__name__} must be {self.Hparams.__name__}, "
                f"got {type(hparams).__name__}"
            )
        if not isinstance(num_domains, int) or num_domains < 1:
            raise ValueError(f"num_domains must be a whole number, 1 or more, got {num_domains!r}")
        for part in ("features", "classifier"):
            if not isinstance(getattr(model, part, None), nn.Module):
                raise TypeError(
                    f"model must have the modules .features and .classifier, "
                    f"{type(model).__name__} has no .{part}"
                )
        self.model = model
        self.num_domains = num_domains
        self.hparams = hparams
        self.seed = seed
        self._terms: tuple[str, ...] = ()
        self._classes = _count_classes(model.classifier)
        device = next(model.parameters()).device
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))
        # Checkpoints know the state of ``first_failure`` by this name.
        self.register_buffer("failed", torch.full((2,), -1, dtype=torch.int64, device=device))

    @property
    def device(self) -> torch.device:
        """The device of the network and of everything that the method adds."""
        return self.steps.device

    @property
    def all_finite(self) -> Tensor:
        """Whether every term and gradient so far was finite; no weight moves after one was not."""
        return self.first_failure[0] < 0

    @property
    def first_failure(self) -> Tensor:
        """Step and term of the first value that was not finite, ``[2]``; −1 if all were."""
        return self.failed

    def _optimisers(self) -> list[Optimiser]:
        return [part for part in self.children() if isinstance(part, Optimiser)]

    def optimise(self, optimisation: Optimisation) -> None:
        """Use this rule, schedule and clipping; call it before the first update."""
        name, optimisers = type(self).__name__, self._optimisers()
        if not self.steps.is_meta and int(self.steps) > 0:
            raise RuntimeError(
                f"{name} has already made {int(self.steps)} updates; build it again, call "
                "optimise(...) first, and then load the saved state"
            )
        if not optimisers and replace(optimisation, steps=None) != Optimisation():
            raise TypeError(
                f"{name} has no shoal.algorithms.Optimiser, so it cannot follow {optimisation}; "
                "train its weights with one"
            )
        for optimiser in optimisers:
            optimiser.use(optimisation)

    @abstractmethod
    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one update on one batch per training domain; return its terms, on the device."""

    @abstractmethod
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits of ``inputs``."""

    def check_batches(self, batches: Sequence[Batch]) -> None:
        """Raise unless there is one batch with examples and labels for each training domain."""
        if not self.training:
            raise RuntimeError(f"{type(self).__name__} is in eval mode; call train() to update it")
        held = {id(weight) for weight in self.parameters()}
        for optimiser in self._optimisers():
            if not held.issuperset(map(id, optimiser.weights)):
                raise RuntimeError(
                    f"{type(self).__name__} trains weights that it no longer holds; load the whole "
                    "method if assign=True, and build it again after its network has changed"
                )
        if len(batches) != self.num_domains:
            raise ValueError(
                f"{type(self).__name__} was made for {self.num_domains} training domains, "
                f"got {len(batches)} batches; pass one (inputs, labels) for each"
            )
        for domain, (inputs, labels) in enumerate(batches):
            if len(inputs) != len(labels) or len(labels) == 0:
                raise ValueError(
                    f"batch {domain} must have as many labels as inputs and at least one, "
                    f"got {len(inputs)} inputs and {len(labels)} labels"
                )
            if self._classes is not None:
                # Only the number of logits and the labels matter; on a GPU no value is read.
                check_labels(torch.empty(len(labels), self._classes, device="meta"), labels)

    def report(self, **terms: Tensor) -> dict[str, Tensor]:
        """Count the step and return its terms, detached; remember the first that is not finite."""
        found = {name: term.detach() for name, term in terms.items()}
        self._terms = self._terms or (*found, "gradient")
        if self._terms != (*found, "gradient"):
            raise ValueError(
                f"{type(self).__name__} must report the same terms in every step: "
                f"{', '.join(self._terms[:-1])}; got {', '.join(found)}"
            )
        optimisers = self._optimisers()
        flags = [optimiser.all_finite for optimiser in optimisers]
        gradients = torch.stack(flags).all() if flags else self.all_finite
        for optimiser in optimisers:
            optimiser.all_finite.fill_(True)
            optimiser.advance()
        finite = torch.cat([_are_finite(found), gradients[None]])
        bad = (~finite).long()
        first = (bad.amax() > 0) & (self.first_failure[0] < 0)
        here = torch.stack([self.steps, bad.argmax()])
        self.first_failure.copy_(torch.where(first, here, self.first_failure))
        self.steps += 1
        return found

    def check(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the terms as numbers; raise if any was not finite, now or in an earlier step.

        This waits for the device: call it only when you need the numbers.
        """
        step, term = (int(number) for number in self.first_failure.tolist())
        if step >= 0:
            name = self._terms[term] if self._terms else "a term"
            raise FloatingPointError(
                f"{type(self).__name__}: {name} was not finite at step {step}, and no later step "
                "has moved a weight; try a smaller learning rate or penalty weight"
            )
        return {name: float(value) for name, value in terms.items()}

    def _apply(self, fn: Any, recurse: bool = True) -> "Algorithm":
        with self._relinking():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load all state in place; with ``assign=True`` training continues with the new weights."""
        with self._relinking():
            return super().load_state_dict(*args, **kwargs)

    @contextmanager
    def _relinking(self) -> Iterator[None]:
        """Let every optimiser follow its weights if they become other objects inside."""
        names = {id(weight): name for name, weight in self.named_parameters()}
        yield
        weights = dict(self.named_parameters())

        def new(weight: nn.Parameter) -> nn.Parameter:
            if id(weight) not in names:
                raise RuntimeError(
                    f"{type(self).__name__} trains a weight of shape {list(weight.shape)} that it "
                    "no longer holds; build the method again after its network has changed"
                )
            return weights[names[id(weight)]]

        for optimiser in self._optimisers():
            optimiser.follow(new)


class UpdateAlgorithm(Algorithm):
    """A method that defines ``update(batches)`` and predicts with its network alone."""

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the network's logits."""
        logits: Tensor = self.model(inputs)
        return logits


# The old name, which a user's own method can still import.
Classifying = UpdateAlgorithm


class Objective(UpdateAlgorithm):
    """A method with one loss of one forward pass, defined by ``objective(forward)``.

    Calling it returns the terms of the loss. That moves the averages and counts of a regulariser,
    but no weight; ``compile()`` compiles just that.
    """

    # The step before which the optimiser is reset, or several; None for never. What is reset, and
    # the learning rate from the first of them on, None for the same.
    reset_step: int | tuple[int, ...] | None = None
    reset_state: ResetState = "all"
    reset_lr: float | None = None
    # Whether each domain has a forward pass of its own: its gradient then costs no pass over the
    # others and can be differentiated itself.
    separate_passes: bool = False
    # Weights whose gradients per example the penalty takes from the same pass; None for none.
    record_gradients_of: str | None = None

    def __init__(
        self, model: nn.Module, num_domains: int, hparams: BaseHparams | None = None, seed: int = 0
    ) -> None:
        super().__init__(model, num_domains, hparams, seed)
        self.optimiser = Optimiser(model.parameters(), self.hparams.lr, self.hparams.weight_decay)

    @abstractmethod
    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return ``loss`` and the terms of it to record."""

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return the terms of the loss on one batch per training domain."""
        wanted = self.record_gradients_of
        recorded = None if wanted is None else Recorded(self.model, wanted, self.micro_batch)
        return self.objective(Forward.of(self.model, batches, self.separate_passes, recorded))

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down the loss."""
        self.check_batches(batches)
        with without_value_checks():  # a loss that is not finite shows in the terms
            terms = self(batches)
        resets = self._resets()
        if any(resets):  # at step 0 there is nothing to reset
            now = torch.stack([self.steps == step for step in resets]).any()
            self.optimiser.reset(now, self.reset_state)
        lr = None
        if self.reset_lr is not None and resets:
            new = self.steps >= min(resets)
            lr = new * self.reset_lr + ~new * self.optimiser.lr
        self.optimiser.minimise(terms["loss"], _are_finite(terms).all() & self.all_finite, lr)
        return self.report(**terms)

    def _resets(self) -> tuple[int, ...]:
        if self.reset_step is None or isinstance(self.reset_step, int):
            return () if self.reset_step is None else (self.reset_step,)
        return self.reset_step


class Penalised(Objective):
    """Risk plus a penalty, defined by ``penalty(forward)``.

    λ, its warm-up and any moving average belong to a regulariser that the method holds.
    """

    @abstractmethod
    def penalty(self, forward: Forward) -> Tensor:
        """Return the weighted penalty, a scalar."""

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return risk, penalty and their sum."""
        risk, penalty = forward.risk, self.penalty(forward)
        return {"loss": risk + penalty, "risk": risk, "penalty": penalty}
