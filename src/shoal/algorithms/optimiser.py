"""Optimiser: Adam, AdamW or SGD with state in buffers, a schedule and clipping.

State changes in place and is switched on the device, so a captured step can replay it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..catalogue import OPTIMISERS, SCHEDULES, LearningRateSchedule, OptimiserName
from ..choices import choose
from ..internals import Tensors, adam_step, find_non_finite, foreach, norms, sgd_step
from .distributions import holds

# What a reset sets to zero.
ResetState = Literal["all", "mean"]

MOMENTUM = 0.9  # SGD's default
EPS = 1e-8  # Adam's, as in torch


@dataclass(frozen=True)
class Optimisation:
    """How the optimisers of a method move its weights; by default Adam, as in the paper.

    Learning rates and weight decay remain hyperparameters of the method; values for Adam do not
    suit another rule. Weight decay is L2 in Adam and SGD and decoupled in AdamW, as in torch.

    A schedule counts the method's updates: t starts at 0 and is the same for all its optimisers,
    even if an optimiser makes several steps in an update (Fish, SagNet), takes turns with another
    (DANN), or is reset (the end of a warm-up).

    Args:
        rule: adam, adamw or sgd.
        momentum: of SGD.
        schedule: constant, or cosine: lr · ½ (1 + cos(π t / T)), and 0 from T on.
        steps: T, the updates of the whole training; required by a cosine.
        clip: the largest norm of a gradient, over all weights of one optimiser.
    """

    rule: OptimiserName = "adam"
    momentum: float = MOMENTUM
    schedule: LearningRateSchedule = "constant"
    steps: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        choose("rule", self.rule, OPTIMISERS)
        choose("schedule", self.schedule, SCHEDULES)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.rule != "sgd" and self.momentum != MOMENTUM:
            raise ValueError(
                f"momentum is an option of sgd, got {self.momentum} with {self.rule}; drop it"
            )
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps > 0):
            raise ValueError(f"steps must be a whole number, 1 or more, got {self.steps!r}")
        if self.schedule == "cosine" and self.steps is None:
            raise ValueError("a cosine schedule needs steps, the updates of the whole training")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ValueError(f"clip must be a norm above 0, or None for none, got {self.clip}")


def state_names(optimisation: Optimisation) -> tuple[str, ...]:
    """Return the names of the state that a rule has for each weight."""
    if optimisation.rule == "sgd":
        return ("velocity",) if optimisation.momentum > 0 else ()
    return "count", "mean", "square"


@torch.no_grad()
def fused_step(
    optimisation: Optimisation,
    weights: Tensors,
    grads: Tensors,
    state: Mapping[str, Tensors],
    lr: float | Tensor,
    weight_decay: float,
    betas: tuple[float, float],
    stop: Tensor,
) -> None:
    """Make one step in place with torch's kernel for many weights at once.

    ``torch.optim`` would load the compiler, which takes more than a second in every process.

    Args:
        state: tensors of each weight by the names of ``state_names``; zeros before the first step.
        stop: a float scalar on the device; if it is 1, neither weights nor state change.
    """
    for places in _places_by_dtype(weights):
        mine = [weights[k] for k in places]
        slopes = [grads[k] for k in places]
        has = {name: [values[k] for k in places] for name, values in state.items()}
        if optimisation.rule == "sgd":
            sgd_step(
                mine,
                slopes,
                has.get("velocity", []),
                lr=lr,
                weight_decay=weight_decay,
                momentum=optimisation.momentum,
                stop=stop,
            )
        else:
            foreach("add_", has["count"], 1)
            adam_step(
                mine,
                slopes,
                has["mean"],
                has["square"],
                has["count"],
                lr=lr,
                weight_decay=weight_decay,
                betas=betas,
                eps=EPS,
                decoupled=optimisation.rule == "adamw",
                stop=stop,
            )
            foreach("sub_", has["count"], [stop] * len(places))


def _places_by_dtype(tensors: Tensors) -> Iterable[list[int]]:
    """Return the indices of the tensors of each dtype, since a kernel takes only one."""
    found: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(place)
    return found.values()


@torch.no_grad()
def joint_norm(grads: Tensors) -> Tensor:
    """Return the norm over all gradients together, in float64, where no square overflows."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms(grads, 2, torch.float64)))
    return norm


@torch.no_grad()
def scale_gradients(grads: Tensors, factor: Tensor) -> list[Tensor]:
    """Return the gradients times one number on the device."""
    found = list(grads)  # not in place: two weights can share one gradient tensor
    for places in _places_by_dtype(grads):
        dtype = grads[places[0]].dtype
        # Not infinity in half precision: ∞ · 0 is not zero.
        own = factor.clamp(max=torch.finfo(dtype).max).to(dtype)
        mine = foreach("mul", [grads[k] for k in places], own)
        for place, grad in zip(places, mine, strict=True):
            found[place] = grad
    return found


def clip_gradients(grads: Tensors, norm: float) -> Tensors:
    """Return the gradients, scaled down by one factor if their joint norm is above ``norm``."""
    return scale_gradients(grads, (norm / (joint_norm(grads) + 1e-6)).clamp(max=1))


@torch.no_grad()
def first_step(
    optimisation: Optimisation,
    weights: Tensors,
    grads: Tensors,
    lr: float | Tensor,
    weight_decay: float,
) -> list[Tensor]:
    """Return the weights after the first step of a new optimiser; nothing changes in place.

    Adam subtracts lr · ĝ / (|ĝ| + ε), with ĝ the gradient plus its L2 term; SGD subtracts lr · ĝ.
    """
    if optimisation.rule == "adamw":
        weights = foreach("mul", weights, 1 - lr * weight_decay)
    else:
        grads = foreach("add", grads, weights, alpha=weight_decay)
    sizes = None if optimisation.rule == "sgd" else foreach("abs", grads)
    if isinstance(lr, Tensor):
        grads = foreach("mul", grads, lr)
        lr = 1.0
    if sizes is None:
        return foreach("add", weights, grads, alpha=-lr)
    foreach("add_", sizes, EPS)
    return foreach("addcdiv", weights, grads, sizes, value=-lr)


class Optimiser(nn.Module):
    """Adam, or another rule chosen with ``use``; moments and counts are in ``state_dict()``.

    It reads no value on the host: a bool on the device can skip a step or reset the state, so a
    captured step follows the count of steps. A step with a gradient that is not finite changes
    nothing but ``all_finite``.

    Args:
        weights: the weights to train; frozen ones are ignored.
        lr, weight_decay, betas: as in ``torch.optim.Adam``; SGD has no betas.
    """

    all_finite: Tensor  # whether all gradients since it was last set were finite
    updates: Tensor  # t of a schedule; absent without one

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__()
        right = holds("[0, ∞)", lr) and holds("[0, ∞)", weight_decay)
        if not (right and all(holds("[0, 1)", beta) for beta in betas)):
            raise ValueError(
                "lr and weight_decay must be in [0, ∞), and betas in [0, 1), "
                f"got {lr}, {weight_decay} and {betas}"
            )
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.lr, self.weight_decay, self.betas = lr, weight_decay, betas
        device = self.weights[0].device if self.weights else None
        all_finite = torch.ones((), dtype=torch.bool, device=device)
        self.register_buffer("all_finite", all_finite, persistent=False)
        self.register_load_state_dict_post_hook(_relink)  # type: ignore[no-untyped-call]
        self.use(Optimisation())

    def use(self, optimisation: Optimisation) -> None:
        """Start again with this rule, schedule and clipping."""
        self.optimisation = optimisation
        for name in set(self._buffers) - {"all_finite"}:
            delattr(self, name)
        for k, weight in enumerate(self.weights):
            for name in state_names(optimisation):
                self.register_buffer(f"{name}_{k}", _zeros(weight, name))
        if self._scheduled:
            updates = torch.zeros((), dtype=torch.int64, device=self.weights[0].device)
            self.register_buffer("updates", updates)
        self._link()

    @property
    def _scheduled(self) -> bool:
        return self.optimisation.schedule != "constant" and len(self.weights) > 0

    def _link(self) -> None:
        for weight in self.weights:
            if torch.empty_like(weight, device="meta").stride() != weight.stride():
                raise ValueError(
                    "a fused step walks through memory and needs weights without gaps, got one of "
                    f"shape {list(weight.shape)} with strides {list(weight.stride())}; call "
                    "contiguous()"
                )
        every = range(len(self.weights))
        self._state = {
            name: [self.get_buffer(f"{name}_{k}") for k in every]
            for name in state_names(self.optimisation)
        }

    def _apply(self, fn: Any, recurse: bool = True) -> "Optimiser":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.follow(lambda weight: weight)
        return self

    def follow(self, new: Callable[[nn.Parameter], nn.Parameter]) -> None:
        """Train ``new(weight)`` instead of each weight from now on; the network has moved."""
        self.weights = [new(weight) for weight in self.weights]
        for k, weight in enumerate(self.weights):
            for kind in self._state:
                name, value = f"{kind}_{k}", self.get_buffer(f"{kind}_{k}")
                if kind == "count":
                    self._buffers[name] = value.float()
                # A fused step walks through memory and assumes one layout for all.
                elif value.stride() != weight.stride():
                    self._buffers[name] = torch.empty_like(weight, requires_grad=False).copy_(value)
        self._link()

    def minimise(
        self, loss: Tensor, active: Tensor | None = None, lr: Tensor | None = None
    ) -> None:
        """Make one step down ``loss``; a loss that is not finite changes no weight."""
        grads = torch.autograd.grad(loss, self.weights, allow_unused=True) if self.weights else ()
        finite = loss.detach().isfinite()
        self.step(grads, finite if active is None else finite & active, lr)

    def step(
        self, grads: Sequence[Tensor | None], active: Tensor | None = None, lr: Tensor | None = None
    ) -> None:
        """Make one step with these gradients if ``active``, a bool scalar on the device.

        Args:
            lr: a scalar on the device, in place of the optimiser's own learning rate.
        """
        moments = [values for kind, values in self._state.items() if kind != "count"]
        for weight, *mine in zip(self.weights, *moments, strict=True):
            if any(moment.stride() != weight.stride() for moment in mine):
                self.follow(lambda weight: weight)
                break
        places, found = [], []
        for place, (weight, grad) in enumerate(zip(self.weights, grads, strict=True)):
            if grad is not None:
                alike = grad.stride() == weight.stride()
                places.append(place)
                found.append(grad if alike else torch.empty_like(weight).copy_(grad))
        if not found:
            return
        # The switch of a loss scaler: if it is on, a step changes neither weights nor state.
        # It takes float32 alone, whatever torch's default dtype is.
        stop = torch.zeros((), dtype=torch.float32, device=found[0].device)
        find_non_finite(found, stop)
        self.all_finite.logical_and_(stop == 0)
        fused_step(
            self.optimisation,
            weights=[self.weights[k] for k in places],
            grads=self._clip(found),
            state={name: [values[k] for k in places] for name, values in self._state.items()},
            lr=self._rate(lr),
            weight_decay=self.weight_decay,
            betas=self.betas,
            stop=stop if active is None else torch.maximum(stop, (~active).float()),
        )
        torch.clear_autocast_cache()  # it holds the weights from before the step

    def first_step(self, grads: Tensors) -> list[Tensor]:
        """Return the weights after the first step of a new optimiser; nothing changes in place."""
        return first_step(
            self.optimisation,
            weights=list(self.weights),
            grads=self._clip(grads),
            lr=self._rate(),
            weight_decay=self.weight_decay,
        )

    def advance(self) -> None:
        """Count an update of the method, for the schedule."""
        if self._scheduled:
            self.updates += 1

    def _rate(self, lr: Tensor | None = None) -> float | Tensor:
        """Return the learning rate: a number, or if it can change a scalar on the device."""
        # A fused step on a GPU takes a rate in float32 only.
        rate = self.lr if lr is None else lr.float()
        steps = self.optimisation.steps
        if steps is None or not self._scheduled:
            return rate
        # ½ (1 + cos(π t / T)) = sin²(π (T − t) / 2T), which cancels nothing near T.
        left = (steps - self.updates).clamp(min=0).float()
        return (left * (math.pi / 2 / steps)).sin().square() * rate

    def _clip(self, grads: Tensors) -> Tensors:
        norm = self.optimisation.clip
        return grads if norm is None else clip_gradients(grads, norm)

    def reset(self, when: Tensor, which: ResetState = "all") -> None:
        """Set the state to zero if ``when``, a bool scalar on the device; a schedule continues.

        Args:
            which: all, or mean: the direction alone (Adam's first moments, SGD's velocity), while
                the scale of each weight's steps stays.
        """
        if which == "mean":
            means = self._state.get("mean", []) + self._state.get("velocity", [])
            if means:
                foreach("mul_", means, (~when).float())
            return
        # Squares can overflow, and ∞ · 0 is not zero.
        squares = self._state.get("square", [])
        for dtype in {square.dtype for square in squares}:
            mine = [square for square in squares if square.dtype == dtype]
            foreach("clamp_max_", mine, torch.finfo(dtype).max)
        state = [value for values in self._state.values() for value in values]
        if state:
            foreach("mul_", state, (~when).float())


def _zeros(weight: Tensor, name: str) -> Tensor:
    if name == "count":  # torch counts in float32, whatever the weights are
        return torch.zeros((), dtype=torch.float32, device=weight.device)
    return torch.zeros_like(weight, requires_grad=False)


def _relink(optimiser: nn.Module, _: Any) -> None:
    if isinstance(optimiser, Optimiser):  # loaded with assign=True, its state is in other tensors
        optimiser.all_finite.fill_(True)
        optimiser._link()
