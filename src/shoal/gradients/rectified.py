"""ReLU and ReLU6 whose second derivative in what they cut is left out, and not made of zeros."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Where each is flat from: at and below 0, at and above the other end.
ENDS = {
    F.relu: float("inf"),
    torch.relu: float("inf"),
    torch.relu_: float("inf"),
    Tensor.relu: float("inf"),
    Tensor.relu_: float("inf"),
    F.relu6: 6.0,
}
IN_PLACE = (torch.relu_, Tensor.relu_)


def rectified(func: Any, input: Tensor, inplace: bool = False) -> Tensor | None:
    """Return what one of ``ENDS`` returns; None where it must be left to torch."""
    if not input.is_floating_point():
        return None
    inplace = inplace or func in IN_PLACE
    out: Tensor = _Rectified.apply(input, ENDS[func], inplace)  # type: ignore[no-untyped-call]
    return out


def _where_rising(g: Tensor, out: Tensor, end: float) -> Tensor:
    """Return g, zero where the output is at an end."""
    if end == float("inf"):
        return torch.ops.aten.threshold_backward(g, out, 0)  # type: ignore[no-any-return]
    return torch.ops.aten.hardtanh_backward(g, out, 0, end)  # type: ignore[no-any-return]


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, end: float, inplace: bool) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
            out = x.clamp_(0, end)
        else:
            out = x.clamp(0, end)
        ctx.end = end
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _Rising.apply(g, *ctx.saved_tensors, ctx.end), None, None  # type: ignore[no-untyped-call]


class _Rising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, out: Tensor, end: float) -> Tensor:
        ctx.end = end
        ctx.save_for_backward(out)
        return _where_rising(g, out, end)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None, None]:
        return _Rising.apply(c, *ctx.saved_tensors, ctx.end), None, None  # type: ignore[no-untyped-call]
