"""The spread of moving averages and its gradient, as one node of the graph, compiled or not."""

import math
from typing import Any

import torch
from torch import Tensor

from ..statistics import first_order


def matched(
    rows: Tensor, present: Tensor | None, v_bar: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return λ · spread(u), the new v̄ and whether it is finite; the first has a gradient."""
    match: Any = _match_op if torch.compiler.is_compiling() else _Match.apply
    penalty, new, finite, *_ = match(rows, present, v_bar, *numbers)
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

    u_e = v̄_e (1 − γ^c_max) / (1 − γ^c_e) / (1 − γ), with c_e the updates of domain e: where they
    agree this is v̄ / (1 − γ), and ∂u/∂v does not depend on γ (Appendix D.1). The last two make the
    gradient. What is not finite must not enter v̄: a loss scaler will skip its step.
    """
    counted = updates + (1 if present is None else present)
    if present is not None:
        counted = counted.clamp(min=1)
    # In double precision, and rounded last.
    decay, weight, before, warmup_steps = numbers.unbind()
    strength = (torch.where(steps >= warmup_steps, weight, before) / columns).to(rows.dtype)
    length = 1 - torch.pow(decay, counted.to(decay.dtype))
    scale = (length.max() / length / (1 - decay)).to(rows.dtype)[:, None]
    rest = (1 - decay).to(rows.dtype)
    past = v_bar.to(rows.dtype)
    if present is None:
        new = torch.lerp(past, rows, rest)
        share = strength / len(rows)
        with torch.autocast(rows.device.type, enabled=False):  # which would halve its precision
            mean = torch.mv(new.mT, scale[:, 0] / len(rows))
        # Of one domain alone exactly zero where it is finite, which the rounding of a mean is not.
        gaps = torch.addcmul(-mean, new, scale) if len(rows) > 1 else new - new
    else:
        mask = present.to(rows.dtype)[:, None]
        new, scale = torch.lerp(past, rows, rest * mask), scale * mask
        u, count = new * scale, mask.sum().clamp(min=1)
        share = strength / count
        gaps = torch.addcmul(u, u.sum(0, keepdim=True) / count, mask, value=-1)
    total = torch.dot(gaps.flatten(), gaps.flatten())
    penalty = torch.where(strength > 0, total * share, 0.0)  # 0 · ∞ is no reason to stop
    factor = scale * (2 * rest * share)
    return penalty, new, total < math.inf, gaps, factor


class _Match(torch.autograd.Function):
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


# For compiled steps: opaque, because a compiled backward may otherwise compute the gaps again, from
# buffers that the forward has already moved on.
_match_op = torch.library.custom_op("shoal::match", _terms, mutates_args=())


@_match_op.register_fake
def _(rows: Tensor, *others: Any) -> tuple[Tensor, ...]:
    scalar, factor = rows.new_empty(()), rows.new_empty(len(rows), 1)
    finite = scalar.to(torch.bool)
    return scalar, torch.empty_like(rows), finite, torch.empty_like(rows), factor


def _keep(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[3:])


def _pull_back(ctx: Any, c: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    gaps, factor = ctx.saved_tensors
    return None if c is None else gaps * (factor * c), *[None] * 6


_match_op.register_autograd(_pull_back, setup_context=_keep)
