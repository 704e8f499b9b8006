"""GPU kernels: depthwise convolutions, and norms with their activations, in Triton.

Torch copies images to pad one side more than the other, runs norm and activation one after the
other, and is slow in their gradients. These kernels read every operand once or little more, add up
in float32, and give the same bits in every run.

``depthwise``, ``norm_activation`` and ``relu_group_norm`` take layers. Where the kernels do
not apply, the layers run as they are: on a CPU, in another memory layout, with hooks, under
``vmap``, in a forward that is differentiated twice, and in compiled code.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import has_torch_function

from ..internals import transforms_are_active

try:
    import triton
    import triton.language as tl
except ImportError:  # torch brings it along for GPUs on Linux
    triton = None

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
# Pixels and channels of a tile; a norm's output takes more of them.
PIXELS, CHANNELS, WIDE = 32, 32, 64
# Columns of an image that a tile goes through from top to bottom, at most.
STRIP = 16
# Elements of one group of channels that a program can hold.
LARGEST = 16_384
# Programs that share a sum over all pixels: enough to fill a large GPU, few enough to add up.
PROGRAMS = 1024


def depthwise(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of a depthwise convolution.

    Args:
        layer: ``nn.Conv2d`` with a filter of 3 × 3 or 5 × 5 and without a bias; or ``nn.ZeroPad2d``
            and one that does not pad.
    """
    padding: Any
    convolution: Any
    padding, convolution = layer if isinstance(layer, nn.Sequential) else (None, layer)
    if not _apply_to(inputs, layer, padding, convolution):
        return _run(layer, inputs)
    device = inputs.device.type
    if torch.is_autocast_enabled(device):
        inputs = inputs.to(torch.get_autocast_dtype(device))
    if convolution.stride != (1, 1):
        shape = DepthwiseShape.of(inputs, padding, convolution)
        return _run(_StridedDepthwise.apply, inputs, convolution.weight, shape)
    if inputs.dtype in HALVES:  # float32 has other kernels in torch, which were not compared
        return _run(_WholeDepthwise.apply, inputs, convolution.weight)
    return _run(layer, inputs)


def _run(function: Callable[..., Any], *arguments: object) -> Tensor:
    """Call what torch gives no type."""
    found: Tensor = function(*arguments)
    return found


def norm_activation(
    norm: nn.BatchNorm2d,
    activation: nn.Module | None,
    inputs: Tensor,
    added: Tensor | None = None,
) -> Tensor:
    """Return the activation of the norm's output, plus ``added``.

    Args:
        activation: ``nn.ReLU``, ``nn.ReLU6`` or None.
    """
    alike = added is None or (added.dtype == inputs.dtype and added.stride() == inputs.stride())
    if norm.training or not alike or not _apply_to(inputs, norm, activation):
        found: Tensor = norm(inputs)
        found = found if added is None else found + added
        return found if activation is None else activation(found)
    found = _NormActivation.apply(
        inputs,
        added,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        _limit(activation),
    )
    return found


def relu_group_norm(relu: nn.ReLU, norm: nn.GroupNorm, inputs: Tensor) -> Tensor:
    """Return the output of ``relu`` and then of ``norm``."""
    size = inputs[0].numel() // norm.num_groups
    if size > LARGEST or not _apply_to(inputs, relu, norm, layout=torch.contiguous_format):
        found: Tensor = norm(relu(inputs))
        return found
    # Autocast runs a group norm in float32.
    cast = torch.is_autocast_enabled(inputs.device.type)
    dtype = torch.float32 if cast else inputs.dtype
    found = _ReLUGroupNorm.apply(inputs, norm.weight, norm.bias, norm.num_groups, norm.eps, dtype)
    return found


def _apply_to(
    inputs: Tensor,
    *layers: nn.Module | None,
    layout: torch.memory_format = torch.channels_last,
) -> bool:
    """Return whether the kernels can stand in for these layers."""
    return (
        triton is not None
        and inputs.is_cuda
        and inputs.dtype in DTYPES
        and inputs.is_contiguous(memory_format=layout)
        and not torch.compiler.is_compiling()
        # Replaced operations (``twice_differentiable``), and the transforms of torch.func.
        and not has_torch_function((inputs,))
        and not transforms_are_active()
        and not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers if layer)
    )


def _limit(activation: nn.Module | None) -> float | None:
    """Return the value from which the activation is flat; None for no activation."""
    if activation is None:
        return None
    return 6.0 if isinstance(activation, nn.ReLU6) else float("inf")


class DepthwiseShape(NamedTuple):
    """The sizes of a strided depthwise convolution."""

    images: int
    channels: int
    height: int
    width: int
    out_height: int
    out_width: int
    top: int
    left: int
    taps: int  # along one side of the filter
    stride: int

    @staticmethod
    def of(
        inputs: Tensor, padding: nn.ZeroPad2d | None, convolution: nn.Conv2d
    ) -> "DepthwiseShape":
        """Return the sizes for these inputs and layers."""
        images, channels, height, width = inputs.shape
        before: Any = convolution.padding
        down, across = before
        left, right, top, bottom = padding.padding if padding else (across, across, down, down)
        taps, stride = convolution.kernel_size[0], convolution.stride[0]
        return DepthwiseShape(
            images=images,
            channels=channels,
            height=height,
            width=width,
            out_height=(height + top + bottom - taps) // stride + 1,
            out_width=(width + left + right - taps) // stride + 1,
            top=top,
            left=left,
            taps=taps,
            stride=stride,
        )


class Strips(NamedTuple):
    """The pixels of images in strips of a few columns, each from top to bottom.

    Filters at pixels that follow each other so read the same few rows, which stay in the cache.
    """

    pixels: int
    strip: int  # columns of one
    strips: int  # of an image

    @staticmethod
    def of(images: int, height: int, width: int) -> "Strips":
        """Return the strips of images of this height and width."""
        strips = triton.cdiv(width, STRIP)
        strip = triton.cdiv(width, strips)
        return Strips(images * height * strips * strip, strip, strips)


class _WholeDepthwise(torch.autograd.Function):
    """With a stride of 1 the gradient of the inputs is a convolution with the filter turned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.dtype, w = w.dtype, w.to(x.dtype)
        ctx.save_for_backward(x, w)
        return F.conv2d(x, w, padding=w.shape[-1] // 2, groups=len(w))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        around, groups = w.shape[-1] // 2, len(w)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = F.conv2d(dy, w.flip(2, 3), padding=around, groups=groups)
        if ctx.needs_input_grad[1]:
            _, dw, _ = torch.ops.aten.convolution_backward(
                dy,
                x,
                w,
                None,
                stride=[1, 1],
                padding=[around, around],
                dilation=[1, 1],
                transposed=False,
                output_padding=[0, 0],
                groups=groups,
                output_mask=[False, True, False],
            )
            dw = dw.to(ctx.dtype)
        return dx, dw


class _StridedDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, shape: DepthwiseShape) -> Tensor:
        # Channels last, as the images have them.
        taps = w.flatten(1).T.contiguous()
        ctx.save_for_backward(x, taps)
        ctx.shape, ctx.filters, ctx.dtype = shape, w.shape, w.dtype
        s = shape
        sides = s.images, s.channels, s.out_height, s.out_width
        y = torch.empty(sides, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        strips = Strips.of(s.images, s.out_height, s.out_width)
        _depthwise[_tiles(strips, s.channels)](
            x, taps, y, *strips, *s[1:], PIXELS=PIXELS, CHANNELS=CHANNELS, num_warps=2
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        s: DepthwiseShape = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            sides = triton.cdiv(s.height, s.stride), triton.cdiv(s.width, s.stride)
            strips = Strips.of(s.images, *sides)
            _depthwise_input_gradient[*_tiles(strips, s.channels), s.stride**2](
                dy, taps, dx, *strips, *s[1:], PIXELS=PIXELS, CHANNELS=CHANNELS, num_warps=2
            )
        if ctx.needs_input_grad[1]:
            strips = Strips.of(s.images, s.out_height, s.out_width)
            tiles, blocks = _tiles(strips, s.channels)
            shares = min(max(PROGRAMS // (blocks * s.taps), 1), tiles)
            parts = torch.empty(shares, s.taps**2, s.channels, device=x.device)
            _depthwise_weight_gradient[shares, blocks, s.taps](
                x, dy, parts, *strips, *s[1:], PIXELS=PIXELS, CHANNELS=CHANNELS
            )
            dw = parts.sum(0).T.reshape(ctx.filters).to(ctx.dtype)
        return dx, dw, None


class _NormActivation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        eps: float,
        limit: float | None,
    ) -> Tensor:
        y = torch.empty_like(x)
        # What was added is not kept: where the activation is flat, the output shows it, too.
        shown = y if added is not None and limit is not None else None
        ctx.save_for_backward(x, shown, weight, bias, mean, var)
        ctx.eps, ctx.limit, ctx.adds = eps, limit, added is not None
        _norm_activation[_shares(x, WIDE)](
            x,
            x if added is None else added,
            y,
            weight,
            bias,
            mean,
            var,
            eps,
            limit or 0.0,
            x.numel() // x.shape[1],
            x.shape[1],
            ADDED=added is not None,
            ACTIVE=limit is not None,
            PIXELS=PIXELS,
            CHANNELS=WIDE,
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, shown, weight, bias, mean, var = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        # Without an activation, what comes back to the added tensor is dy itself.
        d_added = torch.empty_like(dy) if shown is not None else dy
        shares, blocks = _shares(x, CHANNELS)
        parts = torch.empty(shares, 2, x.shape[1], device=x.device)
        _norm_activation_gradient[shares, blocks](
            x,
            x if shown is None else shown,
            dy,
            dx,
            d_added,
            parts,
            weight,
            bias,
            mean,
            var,
            ctx.eps,
            ctx.limit or 0.0,
            x.numel() // x.shape[1],
            x.shape[1],
            SHOWN=shown is not None,
            ACTIVE=ctx.limit is not None,
            PIXELS=PIXELS,
            CHANNELS=CHANNELS,
        )
        d_weight, d_bias = parts.sum(0)
        back = d_added if ctx.adds else None
        return dx, back, d_weight.to(weight.dtype), d_bias.to(bias.dtype), None, None, None, None


class _ReLUGroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
        dtype: torch.dtype,
    ) -> Tensor:
        images, channels = x.shape[:2]
        y = torch.empty_like(x, dtype=dtype)
        moments = torch.empty(images * groups, 2, device=x.device)
        shape = channels // groups, x[0, 0].numel()
        _relu_group_norm[(images * groups,)](
            x, y, moments, weight, bias, eps, groups, *shape, **_group_tile(*shape)
        )
        ctx.save_for_backward(x, moments, weight)
        ctx.groups, ctx.shape = groups, shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, moments, weight = ctx.saved_tensors
        dx = torch.empty_like(x)
        parts = torch.empty(2, *x.shape[:2], device=x.device)
        _relu_group_norm_gradient[(len(moments),)](
            x,
            dy.contiguous(),
            dx,
            moments,
            parts[0],
            parts[1],
            weight,
            ctx.groups,
            *ctx.shape,
            **_group_tile(*ctx.shape),
        )
        d_weight, d_bias = parts.sum(1).to(weight.dtype)
        return dx, d_weight, d_bias, None, None, None


def _group_tile(channels: int, pixels: int) -> dict[str, int]:
    """Return the sizes of a tile that holds a group of channels, and the warps for it."""
    sizes = triton.next_power_of_2(channels), triton.next_power_of_2(pixels)
    warps = min(max(sizes[0] * sizes[1] // 1024, 1), 8)
    return {"CHANNELS": sizes[0], "PIXELS": sizes[1], "num_warps": warps}


def _tiles(strips: Strips, channels: int) -> tuple[int, int]:
    """Return the tiles of a convolution: of the pixels, and of the channels."""
    return triton.cdiv(strips.pixels, PIXELS), triton.cdiv(channels, CHANNELS)


def _shares(x: Tensor, channels: int) -> tuple[int, int]:
    """Return the programs of a norm: shares of the pixels, and groups of so many channels."""
    blocks = triton.cdiv(x.shape[1], channels)
    pixels = triton.cdiv(x.numel() // x.shape[1], PIXELS)
    return min(max(PROGRAMS // blocks, 1), pixels), blocks


if triton is not None:
    # Triton compiles a kernel anew for every number that is 1 or a multiple of 16. Only channels
    # gain by it, because rows of memory then begin at even places; sides and counts cost seconds.
    _SIDES = ["pixels", "strip", "strips", "height", "width", "out_height", "out_width"]
    _SIDES += ["top", "left"]

    @triton.jit
    def _pixel(number, strip, strips, height):
        """Return image, row and column of a pixel, by its number in the order of the strips."""
        line = number // strip
        part = line // height
        column = number % strip + part % strips * strip
        return (part // strips).to(tl.int64), line % height, column

    @triton.jit(do_not_specialize=_SIDES)
    def _depthwise(
        x,
        w,
        y,
        pixels,
        strip,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top,
        left,
        taps: tl.constexpr,
        stride: tl.constexpr,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """y[n, i, j, c] = Σ_km x[n, i s + k − top, j s + m − left, c] w[km, c]."""
        number = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        image, i, j = _pixel(number, strip, strips, out_height)
        there, inside = (number < pixels) & (j < out_width), channel < channels
        row, column = i * stride - top, j * stride - left
        begin = ((image * height + row) * width + column) * channels
        total = tl.zeros((PIXELS, CHANNELS), tl.float32)
        for k in tl.static_range(taps):
            for m in tl.static_range(taps):
                seen = there & (row + k >= 0) & (row + k < height)
                seen = seen & (column + m >= 0) & (column + m < width)
                place = (begin + (k * width + m) * channels)[:, None] + channel[None, :]
                value = tl.load(x + place, seen[:, None] & inside[None, :], 0.0)
                tap = tl.load(w + (k * taps + m) * channels + channel, inside, 0.0)
                total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
        place = (((image * out_height + i) * out_width + j) * channels)[:, None] + channel[None, :]
        tl.store(y + place, total.to(y.dtype.element_ty), there[:, None] & inside[None, :])

    @triton.jit(do_not_specialize=_SIDES)
    def _depthwise_input_gradient(
        dy,
        w,
        dx,
        pixels,
        strip,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top,
        left,
        taps: tl.constexpr,
        stride: tl.constexpr,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """dx[n, i, j, c] = Σ_km dy[n, (i + top − k) / s, (j + left − m) / s, c] w[km, c].

        The pixels of a program have one remainder of i and one of j by s, so the same taps play a
        part in all: k = first + t s.
        """
        number = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        down, across = tl.program_id(2) // stride, tl.program_id(2) % stride
        image, i, j = _pixel(number, strip, strips, (height + stride - 1) // stride)
        i, j = i * stride + down, j * stride + across
        there, inside = (number < pixels) & (i < height) & (j < width), channel < channels
        first_row, first_column = (down + top) % stride, (across + left) % stride
        row, column = (i + top - first_row) // stride, (j + left - first_column) // stride
        begin = ((image * out_height + row) * out_width + column) * channels
        total = tl.zeros((PIXELS, CHANNELS), tl.float32)
        for t in tl.static_range((taps + stride - 1) // stride):
            for u in tl.static_range((taps + stride - 1) // stride):
                k, m = first_row + t * stride, first_column + u * stride
                if (k < taps) & (m < taps):
                    seen = there & (row >= t) & (row - t < out_height)
                    seen = seen & (column >= u) & (column - u < out_width)
                    place = (begin - (t * out_width + u) * channels)[:, None] + channel[None, :]
                    value = tl.load(dy + place, seen[:, None] & inside[None, :], 0.0)
                    tap = tl.load(w + (k * taps + m) * channels + channel, inside, 0.0)
                    total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
        place = (((image * height + i) * width + j) * channels)[:, None] + channel[None, :]
        tl.store(dx + place, total.to(dx.dtype.element_ty), there[:, None] & inside[None, :])

    @triton.jit
    def _product(x, begin, seen, column, m, width, channels, channel, slope):
        """Return the inputs below one tap of a row of the filter, times the output's gradient."""
        there = (seen & (column + m >= 0) & (column + m < width))[:, None]
        place = (begin + m * channels)[:, None] + channel[None, :]
        value = tl.load(x + place, there & (channel < channels)[None, :], 0.0)
        return value.to(tl.float32) * slope

    @triton.jit(do_not_specialize=_SIDES)
    def _depthwise_weight_gradient(
        x,
        dy,
        parts,
        pixels,
        strip,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top,
        left,
        taps: tl.constexpr,
        stride: tl.constexpr,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """parts[p, km, c] = Σ_nij x[n, i s + k − top, j s + m − left, c] dy[n, i, j, c], a share.

        A program has one row k of the filter, and a sum for each of its 3 or 5 columns m.
        """
        share, shares = tl.program_id(0), tl.num_programs(0)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        k, inside = tl.program_id(2), channel < channels
        zeros = tl.zeros((PIXELS, CHANNELS), tl.float32)
        first, second, third, fourth, fifth = zeros, zeros, zeros, zeros, zeros
        for start in range(share * PIXELS, pixels, shares * PIXELS):
            number = start + tl.arange(0, PIXELS)
            image, i, j = _pixel(number, strip, strips, out_height)
            there = (number < pixels) & (j < out_width)
            place = ((image * out_height + i) * out_width + j) * channels
            place = place[:, None] + channel[None, :]
            slope = tl.load(dy + place, there[:, None] & inside[None, :], 0.0).to(tl.float32)
            row, column = i * stride + k - top, j * stride - left
            begin = ((image * height + row) * width + column) * channels
            seen = there & (row >= 0) & (row < height)
            first += _product(x, begin, seen, column, 0, width, channels, channel, slope)
            second += _product(x, begin, seen, column, 1, width, channels, channel, slope)
            third += _product(x, begin, seen, column, 2, width, channels, channel, slope)
            if taps == 5:
                fourth += _product(x, begin, seen, column, 3, width, channels, channel, slope)
                fifth += _product(x, begin, seen, column, 4, width, channels, channel, slope)
        begin = parts + (share * taps + k) * taps * channels + channel
        tl.store(begin, tl.sum(first, 0), inside)
        tl.store(begin + channels, tl.sum(second, 0), inside)
        tl.store(begin + 2 * channels, tl.sum(third, 0), inside)
        if taps == 5:
            tl.store(begin + 3 * channels, tl.sum(fourth, 0), inside)
            tl.store(begin + 4 * channels, tl.sum(fifth, 0), inside)

    @triton.jit(do_not_specialize=["pixels"])
    def _norm_activation(
        x,
        added,
        y,
        weight,
        bias,
        mean,
        var,
        eps,
        limit,
        pixels,
        channels,
        ADDED: tl.constexpr,
        ACTIVE: tl.constexpr,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """y = min(max((x − mean) / √(var + eps) weight + bias + added, 0), limit)."""
        share, shares = tl.program_id(0), tl.num_programs(0)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        rate = 1 / tl.sqrt(tl.load(var + channel, inside, 1.0) + eps)
        centre, factor = (
            tl.load(mean + channel, inside, 0.0),
            tl.load(weight + channel, inside, 0.0),
        )
        shift = tl.load(bias + channel, inside, 0.0)
        for start in range(share * PIXELS, pixels, shares * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            mask = (pixel < pixels)[:, None] & inside[None, :]
            place = (pixel.to(tl.int64) * channels)[:, None] + channel[None, :]
            value = (tl.load(x + place, mask, 0.0).to(tl.float32) - centre[None, :]) * rate[None, :]
            value = value * factor[None, :] + shift[None, :]
            if ADDED:
                value += tl.load(added + place, mask, 0.0).to(tl.float32)
            if ACTIVE:
                value = tl.minimum(tl.maximum(value, 0.0), limit)
            tl.store(y + place, value.to(y.dtype.element_ty), mask)

    @triton.jit(do_not_specialize=["pixels"])
    def _norm_activation_gradient(
        x,
        shown,
        dy,
        dx,
        d_added,
        parts,
        weight,
        bias,
        mean,
        var,
        eps,
        limit,
        pixels,
        channels,
        SHOWN: tl.constexpr,
        ACTIVE: tl.constexpr,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """With g = dy where the activation is not flat: dx, and over a share Σ g x̂ and Σ g.

        SHOWN: something was added before the activation. Its gradient is g, and the output shows
        where the activation is flat.
        """
        share, shares = tl.program_id(0), tl.num_programs(0)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        rate = 1 / tl.sqrt(tl.load(var + channel, inside, 1.0) + eps)
        centre, factor = (
            tl.load(mean + channel, inside, 0.0),
            tl.load(weight + channel, inside, 0.0),
        )
        shift = tl.load(bias + channel, inside, 0.0)
        by_weight = tl.zeros((PIXELS, CHANNELS), tl.float32)
        by_bias = tl.zeros((PIXELS, CHANNELS), tl.float32)
        for start in range(share * PIXELS, pixels, shares * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            mask = (pixel < pixels)[:, None] & inside[None, :]
            place = (pixel.to(tl.int64) * channels)[:, None] + channel[None, :]
            value = (tl.load(x + place, mask, 0.0).to(tl.float32) - centre[None, :]) * rate[None, :]
            slope = tl.load(dy + place, mask, 0.0).to(tl.float32)
            if ACTIVE:
                if SHOWN:
                    out = tl.load(shown + place, mask, 0.0).to(tl.float32)
                else:
                    out = value * factor[None, :] + shift[None, :]
                slope = tl.where((out > 0) & (out < limit), slope, 0.0)
                if SHOWN:
                    tl.store(d_added + place, slope.to(d_added.dtype.element_ty), mask)
            by_weight += slope * value
            by_bias += slope
            tl.store(dx + place, (slope * (factor * rate)[None, :]).to(dx.dtype.element_ty), mask)
        begin = parts + share * 2 * channels + channel
        tl.store(begin, tl.sum(by_weight, 0), inside)
        tl.store(begin + channels, tl.sum(by_bias, 0), inside)

    @triton.jit
    def _relu_group_norm(
        x,
        y,
        moments,
        weight,
        bias,
        eps,
        groups,
        channels,
        pixels,
        CHANNELS: tl.constexpr,
        PIXELS: tl.constexpr,
    ):
        """With a = max(x, 0): y = (a − mean a) / √(var a + eps) weight + bias, by group."""
        group = tl.program_id(0)
        channel, pixel = tl.arange(0, CHANNELS), tl.arange(0, PIXELS)
        mask = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        place = group.to(tl.int64) * channels * pixels
        place += channel[:, None] * pixels + pixel[None, :]
        value = tl.maximum(tl.load(x + place, mask, 0.0).to(tl.float32), 0.0)
        count = channels * pixels
        mean = tl.sum(value) / count
        value = tl.where(mask, value - mean, 0.0)
        rate = 1 / tl.sqrt(tl.sum(value * value) / count + eps)
        tl.store(moments + 2 * group, mean)
        tl.store(moments + 2 * group + 1, rate)
        at = (group % groups) * channels + channel
        factor = tl.load(weight + at, channel < channels, 0.0)[:, None]
        shift = tl.load(bias + at, channel < channels, 0.0)[:, None]
        value = value * rate * factor + shift
        tl.store(y + place, value.to(y.dtype.element_ty), mask)

    @triton.jit
    def _relu_group_norm_gradient(
        x,
        dy,
        dx,
        moments,
        by_weight,
        by_bias,
        weight,
        groups,
        channels,
        pixels,
        CHANNELS: tl.constexpr,
        PIXELS: tl.constexpr,
    ):
        """With g = dy weight: da = (g − mean g − x̂ mean(g x̂)) / σ, and dx = da where x > 0."""
        group = tl.program_id(0)
        channel, pixel = tl.arange(0, CHANNELS), tl.arange(0, PIXELS)
        mask = (channel < channels)[:, None] & (pixel < pixels)[None, :]
        place = group.to(tl.int64) * channels * pixels
        place += channel[:, None] * pixels + pixel[None, :]
        value = tl.load(x + place, mask, 0.0).to(tl.float32)
        slope = tl.load(dy + place, mask, 0.0).to(tl.float32)
        mean, rate = tl.load(moments + 2 * group), tl.load(moments + 2 * group + 1)
        scaled = tl.where(mask, (tl.maximum(value, 0.0) - mean) * rate, 0.0)
        # Images come one after the other, and in each its groups.
        at = group * channels + channel
        tl.store(by_weight + at, tl.sum(slope * scaled, 1), channel < channels)
        tl.store(by_bias + at, tl.sum(slope, 1), channel < channels)
        factor = tl.load(weight + (group % groups) * channels + channel, channel < channels, 0.0)
        slope = slope * factor[:, None]
        count = channels * pixels
        slope -= tl.sum(slope) / count + scaled * (tl.sum(slope * scaled) / count)
        slope = tl.where(value > 0, slope * rate, 0.0)
        tl.store(dx + place, slope.to(dx.dtype.element_ty), mask)
