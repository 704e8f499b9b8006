"""Double backward: forwards whose second derivatives exist, are right and are cheap.

Torch's second derivatives of some norms are wrong, and that of a convolution in its weight is slow:
it is built from transposed operands with an image as the filter. With y = x ∗ w and gradients
(x̄, w̄) of ⟨g, y⟩, every second derivative is again y, x̄ or w̄ of other arguments, which have fast
kernels.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ..distributed import without_sharing
from ..internals import (
    backward_reaches,
    is_weight_norm,
    tensors_are_hooked,
    transforms_are_active,
)

INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
HALVES = (torch.float16, torch.bfloat16)

# Convolutions, by the number of their spatial axes.
CONVOLUTIONS = {
    **dict.fromkeys((F.conv1d, torch.conv1d), 1),
    **dict.fromkeys((F.conv2d, torch.conv2d), 2),
    **dict.fromkeys((F.conv3d, torch.conv3d), 3),
}
# Rectifiers, by the value from which they are flat; below 0 all of them are.
RECTIFIERS = {
    F.relu: float("inf"),
    torch.relu: float("inf"),
    torch.relu_: float("inf"),
    Tensor.relu: float("inf"),
    Tensor.relu_: float("inf"),
    F.relu6: 6.0,
}
IN_PLACE = (torch.relu_, Tensor.relu_)
REPLACED = {F.batch_norm, *CONVOLUTIONS, *RECTIFIERS}


@contextmanager
def twice_differentiable(model: nn.Module, vmapped: bool = False) -> Iterator[None]:
    """Use operations in the block whose second derivative exists, is right and is cheap."""
    with ExitStack() as stack:
        stack.enter_context(
            sdpa_kernel(SDPBackend.MATH)
        )  # fused attention has no second derivative
        stack.enter_context(once_differentiable(model.modules(), vmapped))
        if not vmapped and any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules()):
            stack.enter_context(FastDoubleBackward())
        yield


@contextmanager
def once_differentiable(modules: Iterable[nn.Module], vmapped: bool = False) -> Iterator[None]:
    """Use operations in the block whose first derivative is right for every example."""
    with ExitStack() as stack:
        stack.enter_context(without_sharing())
        if vmapped or any(_differentiates_wrongly(module) for module in modules):
            stack.enter_context(ExplicitNorms())
        yield


def _differentiates_wrongly(module: nn.Module) -> bool:
    return bool(
        isinstance(module, INSTANCE_NORMS)
        or (module._forward_pre_hooks and "weight_norm" in str(module._forward_pre_hooks).lower())
        or (type(module).__name__ == "_WeightNorm")
    )


class ExplicitNorms(TorchFunctionMode):
    """Norms written out in elementary operations, because torch 2.13 differentiates them wrongly.

    Layer and instance norm are wrong under ``vmap(grad)``, by up to twice their size; instance norm
    of a single example already in its first derivative; the fused ``weight_norm`` always.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **kwargs)
        if func in (F.instance_norm, torch.instance_norm):
            return _instance_norm(*args, **kwargs)
        if is_weight_norm(func):
            return _weight_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = list(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    out = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    shape = (1, -1, *[1] * (input.ndim - 2))
    axes = list(range(2, input.ndim))
    if use_input_stats or running_mean is None or running_var is None:
        mean = input.mean(axes, keepdim=True)
        var = (input - mean).square().mean(axes, keepdim=True)
    else:
        mean, var = running_mean.reshape(shape), running_var.reshape(shape)
    out = (input - mean) * (var + eps).rsqrt()
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim] if dim != -1 else None
    norm = v.square().sum(axes, keepdim=True).sqrt() if axes is not None else v.norm()
    return v * (g / norm)


class FastDoubleBackward(TorchFunctionMode):
    """Convolutions, frozen norms and rectifiers with cheap second derivatives replace torch's."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = None
        if func in REPLACED and _plain(args[0] if args else kwargs["input"]):
            if func in CONVOLUTIONS:
                found = _convolution(CONVOLUTIONS[func], *args, **kwargs)
            elif func in RECTIFIERS:
                found = _rectifier(func, *args, **kwargs)
            else:
                found = _frozen_batch_norm(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found


def _plain(input: Tensor) -> bool:
    """Return whether the input is real, and neither torch.func nor a checkpoint is active.

    A checkpoint runs its part again outside of this mode, and must find the same operations.
    """
    return not (input.is_complex() or tensors_are_hooked() or transforms_are_active())


class Geometry(NamedTuple):
    """The arguments of torch's convolution after input, weight and bias."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


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
    """Return the convolution; None if torch's own must be used."""
    if isinstance(padding, str) or input.ndim != axes + 2:
        return None
    steps = [[x] * axes if isinstance(x, int) else list(x) for x in (stride, padding, dilation)]
    steps = [x * axes if len(x) == 1 else x for x in steps]
    geometry = Geometry(
        stride=steps[0],
        padding=steps[1],
        dilation=steps[2],
        transposed=False,
        output_padding=[0] * axes,
        groups=groups,
    )
    # A view: for a leaf, the engine cannot report whether its gradient is wanted.
    weight = _cast(weight.view_as(weight))
    out: Tensor = _Convolution.apply(_cast(input), weight, geometry)  # type: ignore[no-untyped-call]
    return out if bias is None else out + _cast(bias).reshape(1, -1, *[1] * axes)


def _cast(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype that autocast, if enabled, gives a convolution."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _convolve(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    out: Tensor = torch.ops.aten.convolution(x, w, None, *geometry)
    return out


def _convolve_backward(
    g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, *wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return x̄ and w̄, each None unless wanted."""
    masks = [*wanted, False]
    d_x, d_w, _ = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, masks)
    return d_x, d_w


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry = geometry
        return _convolve(x, w, geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        # w̄ is a third of a backward, and a backward to layers' outputs alone does without it.
        wanted = (ctx.needs_input_grad[0], backward_reaches(ctx, 1))
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
        return _convolve_backward(g, x, w, geometry, *wanted)

    @staticmethod
    def backward(ctx: Any, c_x: Tensor | None, c_w: Tensor | None) -> tuple[Tensor | None, ...]:
        """Send back ⟨c_x, x̄⟩ + ⟨c_w, w̄⟩ = ⟨g, c_x ∗ w + x ∗ c_w⟩."""
        (g, x, w), geometry = ctx.saved_tensors, ctx.geometry
        want_g, want_x, want_w = ctx.needs_input_grad[:3]
        d_g = d_x = d_w = None
        if c_x is not None:
            d_g = _convolve(c_x, w, geometry) if want_g else None
            if want_w:
                _, d_w = _convolve_backward(g, c_x, w, geometry, False, True)
        if c_w is not None:
            if want_g:
                other = _convolve(x, c_w, geometry)
                d_g = other if d_g is None else d_g + other
            if want_x:
                d_x, _ = _convolve_backward(g, x, c_w, geometry, True, False)
        return d_g, d_x, d_w, None, None, None


def _frozen_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return batch norm with frozen statistics, an affine map; None if torch's own must be used."""
    if training or running_mean is None or running_var is None:
        return None
    if weight is None or bias is None:
        weight, bias = torch.ones_like(running_mean), torch.zeros_like(running_mean)
    # Under autocast half-precision images meet float32 parameters, which the kernels support.
    dtypes = {t.dtype for t in (running_mean, running_var, weight, bias)}
    if dtypes != {input.dtype} and (dtypes != {torch.float32} or input.dtype not in HALVES):
        return None
    # Views: for leaves, the engine cannot report whether their gradients are wanted.
    trained = weight.view_as(weight), bias.view_as(bias)
    out: Tensor = _Norm.apply(input, *trained, running_mean, running_var, eps)  # type: ignore[no-untyped-call]
    return out


def norm_gradients(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    *,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ⟨g, y⟩ in x, w and b, each None unless ``wanted``."""
    none = mean.new_empty(0)  # the GPU kernels want tensors for the batch's statistics
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
        wanted = (ctx.needs_input_grad[0], backward_reaches(ctx, 1), backward_reaches(ctx, 2))
        found = _NormBackward.apply(g, *ctx.saved_tensors, ctx.eps, *wanted)  # type: ignore[no-untyped-call]
        return *found, None, None, None


class _NormBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        w: Tensor,
        mean: Tensor,
        var: Tensor,
        eps: float,
        *wanted: bool,
    ) -> Any:
        ctx.save_for_backward(g, x, w, mean, var)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return norm_gradients(g, x, w, mean, var, eps, wanted=wanted)

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
            d_g, d_w, _ = norm_gradients(
                c_x, g, w, zero, var, ctx.eps, wanted=(want_g, want_w, False)
            )
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


def _rectifier(func: Any, input: Tensor, inplace: bool = False) -> Tensor | None:
    """Return the rectified input; None if torch's own must be used."""
    if not input.is_floating_point():
        return None
    inplace = inplace or func in IN_PLACE
    out: Tensor = _Rectifier.apply(input, RECTIFIERS[func], inplace)  # type: ignore[no-untyped-call]
    return out


def _zero_where_flat(g: Tensor, out: Tensor, end: float) -> Tensor:
    """Return g, set to zero where the output is at an end of its range."""
    if end == float("inf"):
        return torch.ops.aten.threshold_backward(g, out, 0)  # type: ignore[no-any-return]
    return torch.ops.aten.hardtanh_backward(g, out, 0, end)  # type: ignore[no-any-return]


class _Rectifier(torch.autograd.Function):
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
        return _RectifierBackward.apply(g, *ctx.saved_tensors, ctx.end), None, None  # type: ignore[no-untyped-call]


class _RectifierBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, out: Tensor, end: float) -> Tensor:
        ctx.end = end
        ctx.save_for_backward(out)
        return _zero_where_flat(g, out, end)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None, None]:
        return _RectifierBackward.apply(c, *ctx.saved_tensors, ctx.end), None, None  # type: ignore[no-untyped-call]
