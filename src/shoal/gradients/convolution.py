"""Convolutions whose second derivative is made of ordinary convolutions.

With y = x ∗ w and gradients (x̄, w̄) of ⟨g, y⟩, every second derivative is again y, x̄ or w̄ of other
arguments, for which there are fast kernels. Torch builds one of them, that in w, from transposed
operands with an image as the filter, which takes several times as long.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .frozen_norm import asked_for, frozen_batch_norm
from .rectified import ENDS, rectified

CONVOLUTIONS = {
    **dict.fromkeys((F.conv1d, torch.conv1d), 1),
    **dict.fromkeys((F.conv2d, torch.conv2d), 2),
    **dict.fromkeys((F.conv3d, torch.conv3d), 3),
}
OURS = {F.batch_norm, *CONVOLUTIONS, *ENDS}


class Geometry(NamedTuple):
    """How the filter moves; the arguments of torch's convolution after input, weight and bias."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class OrdinaryConvolutions(TorchFunctionMode):
    """Inside, convolutions are ours, and so are the norms and rectifiers between them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = None
        if func in OURS and _plain(args[0] if args else kwargs["input"]):
            if func in CONVOLUTIONS:
                found = _convolution(CONVOLUTIONS[func], *args, **kwargs)
            elif func in ENDS:
                found = rectified(func, *args, **kwargs)
            else:
                found = frozen_batch_norm(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found


def _plain(input: Tensor) -> bool:
    """Return whether nothing stands between: torch.func, or a checkpoint's recomputation.

    A checkpoint runs its part again outside of this mode, and must find the same operations.
    """
    checkpointed = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not (checkpointed or transformed or input.is_complex())


def _cast(tensor: Tensor) -> Tensor:
    """Return the tensor as autocast, where it is on, has it enter a convolution."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _convolution(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return the convolution; None where it must be left to torch."""
    if isinstance(padding, str) or input.ndim != axes + 2:
        return None
    steps = [[x] * axes if isinstance(x, int) else list(x) for x in (stride, padding, dilation)]
    steps = [x * axes if len(x) == 1 else x for x in steps]
    geometry = Geometry(steps[0], steps[1], steps[2], False, [0] * axes, groups)
    # A view, because the engine does not say of a leaf whether it is asked for.
    weight = _cast(weight.view_as(weight))
    out: Tensor = _Convolution.apply(_cast(input), weight, geometry)  # type: ignore[no-untyped-call]
    return out if bias is None else out + _cast(bias).reshape(1, -1, *[1] * axes)


def _forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    out: Tensor = torch.ops.aten.convolution(x, w, None, *geometry)
    return out


def _backward(
    g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, *wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return x̄ and w̄ where wanted, else None."""
    masks = [*wanted, False]
    d_x, d_w, _ = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, masks)
    return d_x, d_w


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry = geometry
        return _forward(x, w, geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        # A third of a backward, which one that asks for layers' outputs alone can do without.
        wanted = (ctx.needs_input_grad[0], asked_for(ctx, 1))
        found = _Gradients.apply(g, *ctx.saved_tensors, ctx.geometry, *wanted)  # type: ignore[no-untyped-call]
        return *found, None


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, *wanted: bool
    ) -> Any:
        ctx.save_for_backward(g, x, w)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return _backward(g, x, w, geometry, *wanted)

    @staticmethod
    def backward(ctx: Any, c_x: Tensor | None, c_w: Tensor | None) -> tuple[Tensor | None, ...]:
        """Send back ⟨c_x, x̄⟩ + ⟨c_w, w̄⟩ = ⟨g, c_x ∗ w + x ∗ c_w⟩."""
        (g, x, w), geometry = ctx.saved_tensors, ctx.geometry
        want_g, want_x, want_w = ctx.needs_input_grad[:3]
        d_g = d_x = d_w = None
        if c_x is not None:
            d_g = _forward(c_x, w, geometry) if want_g else None
            _, d_w = _backward(g, c_x, w, geometry, False, True) if want_w else (None, None)
        if c_w is not None:
            if want_g:
                other = _forward(x, c_w, geometry)
                d_g = other if d_g is None else d_g + other
            d_x, _ = _backward(g, x, c_w, geometry, True, False) if want_x else (None, None)
        return d_g, d_x, d_w, None, None, None
