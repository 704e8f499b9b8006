"""Regularisers: penalties with state, for any training loop: Fishr, Match and Warmup."""

import math
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .checks import check_count
from .gradients.examples import Loss
from .gradients.sources import Form
from .penalties import presence
from .replay import first_order
from .scalars import Number, Scalars
from .statistics import head_gradients, head_rows
from .transforms import assign, transformed

__all__ = ["Fishr", "Match", "Warmup"]

# Updates whose ratio of gradients λ can follow, and how far it can get from the given λ.
MEASURED, FARTHEST = 50, 100.0


def check_weight(name: str, weight: float | Tensor) -> None:
    """Raise unless the weight is finite and not negative; one on a GPU is not read."""
    if isinstance(weight, Tensor) and weight.ndim == 0:
        if weight.device.type != "cpu":
            return
        weight = float(weight)
    if not isinstance(weight, Real):
        raise TypeError(f"{name} must be a number, got {type(weight).__name__}")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"{name} must be finite and 0 or more, got {weight}")


def check_steps(name: str, steps: float) -> None:
    """Raise unless ``steps`` is a whole number and not negative; 1e3 is one."""
    whole = isinstance(steps, float) and steps.is_integer()
    check_count(name, int(steps) if whole else steps, 0)  # type: ignore[arg-type]


def check_schedule(penalty_weight: float, warmup_steps: int, warmup_weight: float) -> None:
    """Raise unless the weights are finite and nothing is negative."""
    check_weight("penalty_weight", penalty_weight)
    check_steps("warmup_steps", warmup_steps)
    check_weight("warmup_weight", warmup_weight)


def check_decay(name: str, decay: float) -> None:
    """Raise unless ``decay`` is in [0, 1)."""
    if not isinstance(decay, Real):
        raise TypeError(f"{name} must be a number, got {type(decay).__name__}")
    if not 0 <= decay < 1:
        raise ValueError(f"{name} must be in [0, 1), got {decay}")


class Warmup(nn.Module):
    """λ times any penalty, with another weight during a warm-up.

    Args:
        penalty_weight: λ.
        warmup_steps: the call from which λ acts; 0 here means no warm-up, ever.
        warmup_weight: the weight until then; 1 in IRM and V-REx, 0 in Fishr.

    Example:
        >>> warmup = Warmup(penalty_weight=10.0, warmup_steps=1, warmup_weight=0.0)
        >>> [warmup(torch.tensor(2.0)).item() for step in range(3)]
        [0.0, 20.0, 20.0]
    """

    penalty_weight, warmup_weight = Number(check_weight), Number(check_weight)
    warmup_steps = Number(check_steps)
    steps: Tensor

    def __init__(
        self, penalty_weight: float, warmup_steps: int = 0, warmup_weight: float = 1.0
    ) -> None:
        super().__init__()
        check_schedule(penalty_weight, warmup_steps, warmup_weight)
        self.scalars = Scalars(
            penalty_weight=penalty_weight, warmup_weight=warmup_weight, warmup_steps=warmup_steps
        )
        self.scheduled = warmup_steps > 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, penalty: Tensor) -> Tensor:
        """Return the weighted penalty, a scalar to add to the loss."""
        if self.steps.device != penalty.device:
            self.to(penalty.device)
        weight, before, warmup_steps = self.scalars.values.unbind()
        if self.scheduled:
            weight = torch.where(self.steps >= warmup_steps, weight, before)
            if self.training:
                self.steps += 1  # in place: a captured step replays addresses
        return weight.to(penalty.dtype) * penalty


class Match(nn.Module):
    """λ times the spread of any statistic's rows, with their moving average and a warm-up.

    With s̄_e ← γ s̄_e + (1 − γ) s_e starting from zero, the domains' u_e = s̄_e / (1 − γ) are
    matched, so that ∂u/∂s does not depend on γ (Appendix D.1). The moving average runs from the
    first call, warm-up included.

    Args:
        num_domains: E; domain ids are 0 … E − 1.
        penalty_weight: λ.
        ema_decay: γ in [0, 1); 0 matches the batch alone.
        warmup_steps: the call from which λ acts.
        warmup_weight: the weight until then.
        ramp_steps: calls after the warm-up over which the weight rises linearly to λ; 0 for a jump.
        normalise: divide by the number of columns P; False is Eq. 3.

    Example:
        >>> match = Match(num_domains=2, penalty_weight=1.0)
        >>> match.match(torch.tensor([1.0, 3.0]))  # risks, so this is V-REx
        tensor(1.)
    """

    penalty_weight, warmup_weight = Number(check_weight), Number(check_weight)
    ema_decay = Number(check_decay)
    warmup_steps, ramp_steps = Number(check_steps), Number(check_steps)
    v_bar: Tensor | None
    steps: Tensor
    updates: Tensor

    def __init__(
        self,
        num_domains: int,
        penalty_weight: float,
        ema_decay: float = 0.0,
        warmup_steps: int = 0,
        *,
        warmup_weight: float = 0.0,
        ramp_steps: int = 0,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        check_count("num_domains", num_domains, 1)
        check_decay("ema_decay", ema_decay)
        check_schedule(penalty_weight, warmup_steps, warmup_weight)
        check_steps("ramp_steps", ramp_steps)
        self.num_domains = num_domains
        self.normalise = normalise
        self.scalars = Scalars(
            ema_decay=ema_decay,
            penalty_weight=penalty_weight,
            warmup_weight=warmup_weight,
            ramp_steps=ramp_steps,
            warmup_steps=warmup_steps,
        )
        self.register_buffer("v_bar", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("updates", torch.zeros(num_domains, dtype=torch.int64))

    @property
    def active(self) -> Tensor:
        """Whether the warm-up is over on the next call, a bool scalar on the device."""
        return self.steps >= self.scalars.values[-1]

    def match(self, rows: Tensor, present: Tensor | Literal[True] | None = None) -> Tensor:
        """Return λ · spread(u) for the rows of any statistic, ``[E, P]`` or ``[E]``.

        An absent domain neither decays nor takes part. If domains were seen unequally often, their
        geometric sums are scaled to the length of the longest.

        Args:
            present: which domains take part, bool ``[E]``, or True for all; by default the rows
                that are not all zero.
        """
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            raise TypeError(f"rows must be a floating-point tensor, got {_kind(rows)}")
        if rows.ndim not in (1, 2) or len(rows) != self.num_domains:
            raise ValueError(
                f"rows must be [E, P] or [E] with E = num_domains = {self.num_domains}, "
                f"got {list(rows.shape)}"
            )
        rows = rows if rows.dtype == torch.float64 else rows.float()
        taking_part = None if present is True else presence(rows, present)
        return self._match(rows.reshape(self.num_domains, -1), taking_part)

    def allocate(self, columns: int, dtype: torch.dtype) -> None:
        """Allocate v̄ before the first call, if P and the network's dtype are known.

        Otherwise the first call allocates it, and has to be compiled separately.
        """
        dtype = torch.promote_types(dtype, torch.float32)
        self.v_bar = torch.zeros(self.num_domains, columns, dtype=dtype, device=self.steps.device)

    def _match(self, rows: Tensor, present: Tensor | None, numbers: Tensor | None = None) -> Tensor:
        """Match rows ``[E, P]``; ``present`` is None if the host knows that all domains are.

        Args:
            numbers: in place of the module's own ``scalars``.
        """
        v_bar = self._moving_average(rows)
        penalty, new, finite = _penalty_and_average(
            rows,
            present,
            v_bar,
            self.updates,
            self.steps,
            self.scalars.values if numbers is None else numbers,
            self._columns(rows),
        )
        if self.training and transformed():
            present = finite if present is None else present & finite
            assign(v_bar, torch.where(finite, new, v_bar))
            assign(self.updates, self.updates + present)
            assign(self.steps, self.steps + 1)
        elif self.training:
            with torch.no_grad():  # in place: a captured step replays addresses
                if torch.compiler.is_compiling() or new.dtype != v_bar.dtype:
                    v_bar.copy_(torch.where(finite, new, v_bar))
                else:
                    torch.where(finite, new, v_bar, out=v_bar)
                self.updates.add_(finite if present is None else present & finite)
                self.steps.add_(1)
        return penalty

    def _columns(self, rows: Tensor) -> int:
        """Return the number that the penalty is divided by."""
        return rows.shape[1] if self.normalise else 1

    def _moving_average(self, rows: Tensor) -> Tensor:
        with torch.inference_mode(False):  # buffers outlive the block that allocates them
            if self.steps.device != rows.device:
                self.to(rows.device)
            if self.v_bar is None:
                fresh = torch.zeros(rows.shape, dtype=rows.dtype, device=rows.device)
                if not self.training:
                    return fresh
                self.v_bar = fresh
        if self.v_bar.shape != rows.shape:
            raise ValueError(
                f"rows must keep the shape of the first call, {list(self.v_bar.shape)}, "
                f"got {list(rows.shape)}"
            )
        return self.v_bar

    def _apply(self, fn: Any, recurse: bool = True) -> "Match":
        # A half-precision network still averages its variances in float32.
        before = self.v_bar
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.v_bar is not None and self.v_bar.itemsize < before.itemsize:
            self.v_bar = before.to(self.v_bar.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The first call allocates v̄; before it, the shape comes from the checkpoint.
        saved = state_dict.get(prefix + "v_bar")
        if isinstance(saved, Tensor) and self.v_bar is None:
            self.v_bar = torch.zeros_like(saved, device=self.steps.device)
        elif saved is None and prefix + "steps" in state_dict:
            self.v_bar = None  # saved before the first call
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_domains={self.num_domains}, "
            f"penalty_weight={self.penalty_weight}, ema_decay={self.ema_decay}, "
            f"warmup_steps={self.warmup_steps})"
        )


class Fishr(Match):
    """λ times the spread of the domains' gradient variances, Eq. 3, with their moving average.

    Add it to the loss in any loop; its state is in ``state_dict()``, and it changes nothing else::

        loss = F.cross_entropy(logits, labels) + fishr(features, logits, labels, domains)

    With v̄_e ← γ v̄_e + (1 − γ) v_e starting from zero, the domains' u_e = v̄_e / (1 − γ) are
    matched, so that ∂u/∂v does not depend on γ (Appendix D.1). Calls 0 … ``warmup_steps`` − 1
    return zero; the moving average runs from the first call.

    Args:
        num_domains: E; domain ids are 0 … E − 1.
        penalty_weight: λ.
        ema_decay: γ in [0, 1); 0 matches the batch alone.
        warmup_steps: the call from which λ acts.
        ramp_steps: calls over which λ then rises linearly from 0; 0 for a jump, as in the paper.
        gradient_share: if above 0, λ is this many times ‖∇R‖ / ‖∇penalty‖ in the classifier, the
            median of the last 50 calls of the warm-up, at most 100 times above or below
            ``penalty_weight``. Needs a warm-up of 50 calls or more and a cross-entropy.
        centered, unbiased, bias, loss: as in ``shoal.head_variance``.
        normalise: divide by P, which the published range of λ assumes; False is Eq. 3.

    Example:
        >>> fishr = shoal.Fishr(num_domains=2, penalty_weight=1000.0, warmup_steps=0)
        >>> head = torch.nn.Linear(3, 2)
        >>> features, labels = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
        >>> domains = torch.arange(12) // 6  # the first six examples, and the last six
        >>> logits = head(features)
        >>> penalty = fishr(features, logits, labels, domains)
        >>> penalty.backward()  # with the loss of your loop: (loss + penalty).backward()
        >>> list(fishr.state_dict())[:3]
        ['v_bar', 'steps', 'updates']
    """

    ratios: Tensor  # the newest of the warm-up; only with a gradient_share

    def __init__(
        self,
        num_domains: int,
        penalty_weight: float = 1000.0,
        ema_decay: float = 0.95,
        warmup_steps: int = 1500,
        *,
        ramp_steps: int = 0,
        gradient_share: float = 0.0,
        centered: bool = True,
        unbiased: bool = True,
        bias: bool = True,
        loss: Loss | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(
            num_domains,
            penalty_weight,
            ema_decay,
            warmup_steps,
            ramp_steps=ramp_steps,
            normalise=normalise,
        )
        check_weight("gradient_share", gradient_share)
        self.form = Form(centered, unbiased)
        self.bias = bias
        self.loss = loss
        self.gradient_share = gradient_share
        if gradient_share > 0:
            if warmup_steps < MEASURED or loss is not None:
                raise ValueError(
                    f"gradient_share needs a warm-up of {MEASURED} calls or more, in which it is "
                    f"measured, and the default loss, got warmup_steps={warmup_steps} and "
                    f"loss={loss}"
                )
            self.register_buffer("ratios", torch.full((MEASURED,), torch.nan))

    def prepare_for(self, head: nn.Linear) -> "Fishr":
        """Adapt to a classifier, with or without bias, allocate v̄, and return self."""
        self.bias = head.bias is not None
        # Not the number of its parameters: one with weight norm has others than its weight.
        self.allocate(head.weight.numel() + head.out_features * self.bias, head.weight.dtype)
        return self

    def forward(self, features: Tensor, logits: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        """Return the penalty of a batch, a scalar to add to the loss."""
        rows, present = head_rows(
            features,
            logits,
            labels,
            domains,
            form=self.form,
            bias=self.bias,
            loss=self.loss,
            num_domains=self.num_domains,
        )
        if self.gradient_share == 0:
            return self._match(rows, present)
        c = self._slope(rows.detach(), present)
        risk, penalty = head_gradients(
            features, logits, labels, domains, c, form=self.form, bias=self.bias
        )
        return self._match(rows, present, self._follow(risk.norm() / penalty.norm()))

    @torch.no_grad()
    def _slope(self, rows: Tensor, present: Tensor | None) -> Tensor:
        """Return the gradient of the penalty in its rows for λ = 1, whatever the warm-up."""
        v_bar = self._moving_average(rows)
        decay = self.scalars.values[0]
        one, zero = torch.ones_like(decay), torch.zeros_like(decay)
        numbers = torch.stack([decay, one, one, zero, zero])
        *_, gaps, factor = _terms(
            rows, present, v_bar, self.updates, self.steps, numbers, self._columns(rows)
        )
        return gaps * factor

    @torch.no_grad()
    def _follow(self, ratio: Tensor) -> Tensor:
        """Return the scalars with λ in units of ``ratio``, which is kept during the warm-up."""
        decay, weight, before, ramp_steps, warmup_steps = self.scalars.values.unbind()
        if self.training:
            places = torch.arange(MEASURED, device=ratio.device)
            here = (places == self.steps % MEASURED) & (self.steps < warmup_steps)
            assign(self.ratios, torch.where(here, ratio.float(), self.ratios))
        found = self.gradient_share * self.ratios.nanmedian().to(weight.dtype)
        found = torch.where(found.isnan(), weight, found)  # nothing is measured yet
        found = found.clamp(weight / FARTHEST, weight * FARTHEST)
        return torch.stack([decay, found, before, ramp_steps, warmup_steps])


def _penalty_and_average(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return λ · spread(u), the new v̄ and whether it is finite, from the arguments of ``_terms``.

    Only the first has a gradient.
    """
    match: Any = _MatchFunction.apply
    if torch.compiler.is_compiling():
        match = _match_op
    elif transformed():  # differentiates the terms itself
        match = _terms
    penalty, new, finite, *_ = match(*arguments)
    return penalty, new, finite


def _terms(
    rows: Tensor,
    present: Tensor | None,
    v_bar: Tensor,
    updates: Tensor,
    steps: Tensor,
    numbers: Tensor,
    columns: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return λ · spread(u), the new v̄, whether it is finite, and (u_e − ū) and a factor ``[E, 1]``.

    u_e = v̄_e (1 − γ^c_max) / (1 − γ^c_e) / (1 − γ), with c_e the updates of domain e. If they
    agree, this is v̄ / (1 − γ), and ∂u/∂v does not depend on γ (Appendix D.1). The gradient is made
    of the last two. Values that are not finite must not enter v̄: a loss scaler skips their step.
    """
    counted = updates + (1 if present is None else present)
    if present is not None:
        counted = counted.clamp(min=1)
    # In double precision, rounded at the end.
    decay, weight, before, ramp_steps, warmup_steps = numbers.unbind()
    # At the end of the warm-up a jump is complete, and a ramp begins.
    risen = (steps - warmup_steps + (ramp_steps < 1)) / ramp_steps.clamp(min=1)
    strength = (torch.lerp(before, weight, risen.clamp(0, 1)) / columns).to(rows.dtype)
    length = 1 - torch.pow(decay, counted.to(decay.dtype))
    scale = (length.max() / length / (1 - decay)).to(rows.dtype)[:, None]
    rest = (1 - decay).to(rows.dtype)
    past = v_bar.to(rows.dtype)
    if present is None:
        new = torch.lerp(past, rows, rest)
        share = strength / len(rows)
        with torch.autocast(rows.device.type, enabled=False):  # keeps float32 precision
            mean = torch.mv(new.mT, scale[:, 0] / len(rows))
        # With one domain exactly zero if finite; subtracting a rounded mean would not give that.
        gaps = torch.addcmul(-mean, new, scale) if len(rows) > 1 else new - new
    else:
        mask = present.to(rows.dtype)[:, None]
        new, scale = torch.lerp(past, rows, rest * mask), scale * mask
        u, count = new * scale, mask.sum().clamp(min=1)
        share = strength / count
        gaps = torch.addcmul(u, u.sum(0, keepdim=True) / count, mask, value=-1)
    total = torch.dot(gaps.flatten(), gaps.flatten())
    penalty = torch.where(strength > 0, total * share, 0.0)  # 0 · ∞ must not stop a run
    factor = scale * (2 * rest * share)
    return penalty, new, total < math.inf, gaps, factor


class _MatchFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        penalty, new, finite, gaps, factor = _terms(*arguments)
        ctx.save_for_backward(gaps, factor)
        ctx.mark_non_differentiable(new, finite)
        ctx.set_materialize_grads(False)
        return penalty, new, finite

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        return _pull_back(ctx, c)


# For compiled steps: opaque, because a compiled backward could otherwise compute the gaps again,
# from buffers that the forward has already updated.
_match_op = torch.library.custom_op("shoal::match", _terms, mutates_args=())


@_match_op.register_fake
def _(rows: Tensor, *others: Any) -> tuple[Tensor, ...]:
    scalar, factor = rows.new_empty(()), rows.new_empty(len(rows), 1)
    finite = scalar.to(torch.bool)
    return scalar, torch.empty_like(rows), finite, torch.empty_like(rows), factor


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[3:])


def _pull_back(ctx: Any, c: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    gaps, factor = ctx.saved_tensors
    return None if c is None else gaps * (factor * c), *[None] * 6


_match_op.register_autograd(_pull_back, setup_context=_save)


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
