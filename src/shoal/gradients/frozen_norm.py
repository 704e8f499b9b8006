"""A batch norm with frozen statistics, whose second derivative is one more call of its kernel.

It is an affine map y = (x − μ) w/σ + b. Torch's own second derivative takes it for one that moves
with its batch, in a dozen passes.
"""

from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def asked_for(ctx: Any, index: int) -> bool:
    """Return whether the backward under way goes on to an input; the input must be no leaf."""
    if not ctx.needs_input_grad[index]:
        return False
    found: bool = torch._C._will_engine_execute_node(ctx.next_functions[index][0])
    return found


def frozen_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return the affine map that batch norm is with frozen statistics; None where it is not."""
    if training or running_mean is None or running_var is None:
        return None
    if weight is None or bias is None:
        weight, bias = torch.ones_like(running_mean), torch.zeros_like(running_mean)
    # Under autocast half-precision images meet parameters in float32, and the kernels know it.
    dtypes = {t.dtype for t in (running_mean, running_var, weight, bias)}
    if dtypes != {input.dtype} and (dtypes != {torch.float32} or input.dtype not in HALVES):
        return None
    # Views, because the engine does not say of a leaf whether it is asked for.
    trained = weight.view_as(weight), bias.view_as(bias)
    out: Tensor = _Norm.apply(input, *trained, running_mean, running_var, eps)  # type: ignore[no-untyped-call]
    return out


def norm_gradients(
    g: Tensor, x: Tensor, w: Tensor, mean: Tensor, var: Tensor, eps: float, *wanted: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ⟨g, y⟩ in x, w and b, a bool for each: where not wanted, None."""
    none = mean.new_empty(0)  # the kernels of a GPU want no statistics of the batch as tensors
    found: Any = torch.ops.aten.native_batch_norm_backward(
        g, x, w, mean, var, none, none, False, eps, list(wanted)
    )
    return tuple(one if want else None for one, want in zip(found, wanted, strict=True))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, w, mean, var)
        ctx.eps = eps
        out: Tensor = torch.native_batch_norm(x, w, b, mean, var, False, 0.0, eps)[0]
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        wanted = (ctx.needs_input_grad[0], asked_for(ctx, 1), asked_for(ctx, 2))
        found = _Gradients.apply(g, *ctx.saved_tensors, ctx.eps, *wanted)  # type: ignore[no-untyped-call]
        return *found, None, None, None


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        ctx.save_for_backward(*arguments[:5])
        ctx.eps = arguments[5]
        ctx.set_materialize_grads(False)
        return norm_gradients(*arguments)

    @staticmethod
    def backward(
        ctx: Any, c_x: Tensor | None, c_w: Tensor | None, c_b: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Send back ⟨c_x, g w/σ⟩ + ⟨c_w, Σ g (x − μ)/σ⟩ + ⟨c_b, Σ g⟩."""
        g, x, w, mean, var = ctx.saved_tensors
        want_g, want_x, want_w = ctx.needs_input_grad[:3]
        d_g = d_x = d_w = None
        if c_x is not None:  # the gradients of ⟨c_x, y⟩ at x = g and μ = 0
            zero = torch.zeros_like(mean)
            d_g, d_w, _ = norm_gradients(c_x, g, w, zero, var, ctx.eps, want_g, want_w, False)
        shape = (1, -1, *[1] * (g.ndim - 2))
        rsigma = (var + ctx.eps).rsqrt()
        if c_w is not None:
            slope = (c_w * rsigma).view(shape)
            d_x = (slope * g).to(x.dtype) if want_x else None
            d_g = _sum(d_g, slope * (x - mean.view(shape))) if want_g else None
        if c_b is not None and want_g:
            d_g = _sum(d_g, c_b.view(shape).expand_as(g))
        d_g = None if d_g is None else d_g.to(g.dtype)
        return d_g, d_x, d_w, *[None] * 6


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other
