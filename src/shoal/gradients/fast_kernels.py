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
        found = _NormBackward.apply(g, *ctx.saved_tensors, ctx.eps, *wanted)  # type: ignore[no-untyped-call]
        return *found, None, None, None


class _NormBackward(torch.autograd.Function):
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
        found = _ConvolutionBackward.apply(g, *ctx.saved_tensors, ctx.geometry, *wanted)  # type: ignore[no-untyped-call]
        return *found, None


class _ConvolutionBackward(torch.autograd.Function):
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
