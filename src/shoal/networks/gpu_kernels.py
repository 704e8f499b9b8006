"""GPU kernels: first and depthwise convolutions, norms with their activations, in Triton.

Torch copies images to pad one side more than the other, has slow convolutions for three channels,
runs norm and activation one after the other, and is slow in their gradients. These kernels read
every operand once or little more, add up in float32, and give the same bits in every run.

``depthwise``, ``first_convolution``, ``norm_activation`` and ``relu_group_norm`` take layers. Where
the kernels do not apply, the layers run as they are: on a CPU, in another memory layout, with
hooks, under ``vmap``, in a forward that is differentiated twice, and in compiled code.
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
# Rows and columns of a norm's tile; a row holds the channels of one pixel, or of several.
TILE, SMALL_TILE = (16, 128), (32, 32)
# With fewer pixels in all images together, a norm's gradient takes small tiles.
MANY = 200_000
# Columns of an image, and channels, in a tile of a depthwise convolution.
STRIP, CHANNELS = 16, 32
# Columns of an image in a tile of the first convolution.
ACROSS = 128
# Elements of one group of channels that a program can hold.
LARGEST = 16_384
# Programs that share a sum over all pixels: enough to fill a large GPU, few enough to add up.
PROGRAMS = 1024
# The first convolution: the most weights in a row of its filter, over all channels of an image, and
# the numbers of outputs that it can have.
LONGEST_ROW, OUTPUTS = 32, (16, 32, 64)


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
    if convolution.stride == (2, 2):
        shape = ConvolutionShape.of(inputs, padding, convolution)
        return _run(_StridedDepthwise.apply, inputs, convolution.weight, shape)
    # Float32 has other kernels in torch, which were not compared.
    if convolution.stride == (1, 1) and inputs.dtype in HALVES:
        return _run(_WholeDepthwise.apply, inputs, convolution.weight)
    return _run(layer, inputs)


def first_convolution(layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of a network's first convolution.

    The kernel computes no gradient of the images: if they need one, the layer runs as it is.

    Args:
        layer: ``nn.Conv2d`` without a bias and with few channels of inputs; or ``nn.ZeroPad2d`` and
            one that does not pad.
    """
    padding: Any
    convolution: Any
    padding, convolution = layer if isinstance(layer, nn.Sequential) else (None, layer)
    if inputs.requires_grad or not _apply_to(inputs, layer, padding, convolution):
        return _run(layer, inputs)
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    outputs, channels, side, _ = convolution.weight.shape
    if dtype not in HALVES or channels * side > LONGEST_ROW or outputs not in OUTPUTS:
        return _run(layer, inputs)
    shape = ConvolutionShape.of(inputs, padding, convolution)
    return _run(_FirstConvolution.apply, inputs, convolution.weight, shape, dtype)


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


class ConvolutionShape(NamedTuple):
    """The sizes of a convolution: channels of its inputs, and of its outputs if it is depthwise."""

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
    ) -> "ConvolutionShape":
        """Return the sizes for these inputs and layers."""
        images, channels, height, width = inputs.shape
        before: Any = convolution.padding
        down, across = before
        left, right, top, bottom = padding.padding if padding else (across, across, down, down)
        taps, stride = convolution.kernel_size[0], convolution.stride[0]
        return ConvolutionShape(
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
    def forward(ctx: Any, x: Tensor, w: Tensor, shape: ConvolutionShape) -> Tensor:
        # Channels last, as the images have them.
        taps = w.flatten(1).T.contiguous()
        ctx.save_for_backward(x, taps)
        ctx.shape, ctx.filters, ctx.dtype = shape, w.shape, w.dtype
        s = shape
        sides = s.images, s.channels, s.out_height, s.out_width
        y = torch.empty(sides, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        strips, blocks = _strips(s.out_width), triton.cdiv(s.channels, CHANNELS)
        _depthwise[s.images * strips * triton.cdiv(s.out_height, 2), blocks](
            x, taps, y, strips, *s[1:], STRIP=STRIP, CHANNELS=CHANNELS, num_warps=2
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, taps = ctx.saved_tensors
        s: ConvolutionShape = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = dw = None
        blocks, tile = triton.cdiv(s.channels, CHANNELS), {"STRIP": STRIP, "CHANNELS": CHANNELS}
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            strips = _strips(triton.cdiv(s.width, 2))
            _depthwise_input_gradient[s.images * strips * triton.cdiv(s.height, 2), blocks](
                dy, taps, dx, strips, *s[1:], **tile, num_warps=2
            )
        if ctx.needs_input_grad[1]:
            strips = _strips(s.out_width)
            units = s.images * strips * s.out_height
            shares = min(max(2 * PROGRAMS // (blocks * s.taps), 1), units)
            parts = torch.empty(shares, s.taps**2, s.channels, device=x.device)
            _depthwise_weight_gradient[shares, blocks, s.taps](
                x, dy, parts, units, strips, *s[1:], **tile, num_warps=2
            )
            dw = parts.sum(0).T.reshape(ctx.filters).to(ctx.dtype)
        return dx, dw, None


def _strips(width: int) -> int:
    """Return the strips that so many columns of an image are cut into."""
    found: int = triton.cdiv(width, STRIP)
    return found


class _FirstConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, shape: ConvolutionShape, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.shape, ctx.filters, ctx.dtype, s = shape, w.shape, w.dtype, shape
        sides = s.images, len(w), s.out_height, s.out_width
        y = torch.empty(sides, dtype=dtype, device=x.device, memory_format=torch.channels_last)
        strips = triton.cdiv(s.out_width, ACROSS)
        _first_convolution[(s.images * strips * s.out_height,)](
            x, w, y, *w.stride(), strips, *s[1:], len(w), **_first_tile(s)
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        s: ConvolutionShape = ctx.shape
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        dy = dy.contiguous(memory_format=torch.channels_last)
        outputs, channels, taps, _ = ctx.filters
        tile = _first_tile(s)
        strips = triton.cdiv(s.out_width, ACROSS)
        units = s.images * strips * s.out_height
        shares = min(max(PROGRAMS // taps, 1), units)
        parts = torch.empty(shares, taps, tile["ROW"], outputs, device=x.device)
        _first_convolution_gradient[shares, taps](
            x, dy, parts, units, strips, *s[1:], outputs, **tile
        )
        dw = parts.sum(0)[:, : taps * channels].reshape(taps, taps, channels, outputs)
        return None, dw.permute(3, 2, 0, 1).to(ctx.dtype), None, None


def _first_tile(shape: ConvolutionShape) -> dict[str, int]:
    """Return the sizes of a tile: columns of the output, and weights in a row of the filter."""
    row = triton.next_power_of_2(shape.taps * shape.channels)
    return {"ACROSS": ACROSS, "ROW": max(row, 16)}  # a product takes no fewer


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
        rows = Rows.of(x, TILE)
        # Nothing is added up here, so there can be more programs.
        _norm_activation[rows.programs(2 * PROGRAMS)](
            x,
            x if added is None else added,
            y,
            weight,
            bias,
            mean,
            var,
            eps,
            limit or 0.0,
            *rows[:2],
            x.shape[1],
            ADDED=added is not None,
            ACTIVE=limit is not None,
            ROWS=rows.tile[0],
            COLUMNS=rows.tile[1],
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
        rows = Rows.of(x, TILE if x.numel() > MANY * x.shape[1] else SMALL_TILE)
        shares, blocks = rows.programs(PROGRAMS)
        parts = torch.empty(2, shares * (rows.columns // x.shape[1]), x.shape[1], device=x.device)
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
            *rows[:2],
            x.shape[1],
            SHOWN=shown is not None,
            ACTIVE=ctx.limit is not None,
            ROWS=rows.tile[0],
            COLUMNS=rows.tile[1],
        )
        d_weight, d_bias = parts.sum(1)
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


class Rows(NamedTuple):
    """The pixels of images in rows, each of so many that their channels fill tiles."""

    rows: int
    columns: int
    tile: tuple[int, int]

    @staticmethod
    def of(x: Tensor, tile: tuple[int, int]) -> "Rows":
        """Return the rows for tiles of this size."""
        channels = x.shape[1]
        pixels, together = x.numel() // channels, 1
        while together * channels % tile[1] and pixels % (2 * together) == 0:
            together *= 2
        return Rows(pixels // together, together * channels, tile)

    def programs(self, most: int) -> tuple[int, int]:
        """Return the programs: shares of the rows, and blocks of the columns."""
        blocks = triton.cdiv(self.columns, self.tile[1])
        return min(max(most // blocks, 1), triton.cdiv(self.rows, self.tile[0])), blocks


if triton is not None:
    # Triton compiles a kernel anew for every number that is 1 or a multiple of 16. Only channels
    # gain by it, because rows of memory then begin at even places; sides and counts cost seconds.
    _SIDES = ["strips", "height", "width", "out_height", "out_width"]

    @triton.jit
    def _place(number, strips, height, STRIP: tl.constexpr):
        """Return image, row and columns of a tile; those of a strip go from top to bottom."""
        part = number // height
        columns = part % strips * STRIP + tl.arange(0, STRIP)
        return (part // strips).to(tl.int64), number % height, columns

    @triton.jit
    def _tap(w, k, m, taps, channels, channel):
        return tl.load(w + (k * taps + m) * channels + channel, channel < channels, 0.0)[None, :]

    @triton.jit(do_not_specialize=_SIDES)
    def _depthwise(
        x,
        w,
        y,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top: tl.constexpr,
        left: tl.constexpr,
        taps: tl.constexpr,
        stride: tl.constexpr,
        STRIP: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """y[n, i, j, c] = Σ_km x[n, i s + k − top, j s + m − left, c] w[km, c], two rows i."""
        image, i, j = _place(tl.program_id(0), strips, (out_height + 1) // 2, STRIP)
        i = 2 * i
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = (channel < channels)[None, :]
        row, column = i * stride - top, j * stride - left
        begin = x + (image * height + row) * width * channels
        begin = begin + column[:, None] * channels + channel[None, :]
        upper = tl.zeros((STRIP, CHANNELS), tl.float32)
        lower = tl.zeros((STRIP, CHANNELS), tl.float32)
        for k in tl.static_range(taps + stride):
            there = (row + k >= 0) & (row + k < height)
            for m in tl.static_range(taps):
                seen = there & (column + m >= 0) & (column + m < width)
                place = begin + (k * width + m) * channels
                value = tl.load(place, seen[:, None] & inside, 0.0).to(tl.float32)
                if k < taps:
                    upper += value * _tap(w, k, m, taps, channels, channel)
                if k >= stride:
                    lower += value * _tap(w, k - stride, m, taps, channels, channel)
        place = y + ((image * out_height + i) * out_width + j)[:, None] * channels
        place, there = place + channel[None, :], (j < out_width)[:, None] & inside
        tl.store(place, upper.to(y.dtype.element_ty), there)
        place, there = place + out_width * channels, there & (i + 1 < out_height)
        tl.store(place, lower.to(y.dtype.element_ty), there)

    @triton.jit(do_not_specialize=_SIDES)
    def _depthwise_input_gradient(
        dy,
        w,
        dx,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top: tl.constexpr,
        left: tl.constexpr,
        taps: tl.constexpr,
        stride: tl.constexpr,
        STRIP: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """dx[n, i, j, c] = Σ_km dy[n, (i + top − k) / 2, (j + left − m) / 2, c] w[km, c].

        A program has two rows i and, of each column j of a strip, the two that it stands for: four
        pixels that the same gradients reach by different taps.
        """
        image, i, j = _place(tl.program_id(0), strips, (height + 1) // 2, STRIP)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = (channel < channels)[None, :]
        # The last row and column of the output that reach a pixel of the four, and their taps.
        row, column = i + (top + 1) // 2, j + (left + 1) // 2
        first_k: tl.constexpr = top - (top + 1) // 2 * 2
        first_m: tl.constexpr = left - (left + 1) // 2 * 2
        begin = dy + (image * out_height + row) * out_width * channels
        begin = begin + column[:, None] * channels + channel[None, :]
        zeros = tl.zeros((STRIP, CHANNELS), tl.float32)
        above, above_right, below, below_right = zeros, zeros, zeros, zeros
        for t in tl.static_range((taps + 1) // 2):
            there = (row >= t) & (row - t < out_height)
            for u in tl.static_range((taps + 1) // 2):
                seen = there & (column >= u) & (column - u < out_width)
                place = begin - (t * out_width + u) * channels
                value = tl.load(place, seen[:, None] & inside, 0.0).to(tl.float32)
                k, m = first_k + 2 * t, first_m + 2 * u
                if k >= 0 and m >= 0:
                    above += value * _tap(w, k, m, taps, channels, channel)
                if k >= 0 and m + 1 < taps:
                    above_right += value * _tap(w, k, m + 1, taps, channels, channel)
                if k + 1 < taps and m >= 0:
                    below += value * _tap(w, k + 1, m, taps, channels, channel)
                if k + 1 < taps and m + 1 < taps:
                    below_right += value * _tap(w, k + 1, m + 1, taps, channels, channel)
        i, j = 2 * i, 2 * j
        dtype = dx.dtype.element_ty
        place = dx + ((image * height + i) * width + j)[:, None] * channels + channel[None, :]
        there, right = (j < width)[:, None] & inside, (j + 1 < width)[:, None] & inside
        tl.store(place, above.to(dtype), there)
        tl.store(place + channels, above_right.to(dtype), right)
        place, another = place + width * channels, i + 1 < height
        tl.store(place, below.to(dtype), there & another)
        tl.store(place + channels, below_right.to(dtype), right & another)

    @triton.jit
    def _product(begin, seen, inside, column, m, width, channels, slope):
        """Return the inputs below one tap of a row of the filter, times the output's gradient."""
        there = (seen & (column + m >= 0) & (column + m < width))[:, None] & inside
        return tl.load(begin + m * channels, there, 0.0).to(tl.float32) * slope

    @triton.jit(do_not_specialize=["units", *_SIDES])
    def _depthwise_weight_gradient(
        x,
        dy,
        parts,
        units,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top: tl.constexpr,
        left: tl.constexpr,
        taps: tl.constexpr,
        stride: tl.constexpr,
        STRIP: tl.constexpr,
        CHANNELS: tl.constexpr,
    ):
        """parts[p, km, c] = Σ_nij x[n, i s + k − top, j s + m − left, c] dy[n, i, j, c], a share.

        A program has one row k of the filter, and a sum for each of its 3 or 5 columns m.
        """
        share, shares, k = tl.program_id(0), tl.num_programs(0), tl.program_id(2)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = (channel < channels)[None, :]
        zeros = tl.zeros((STRIP, CHANNELS), tl.float32)
        first, second, third, fourth, fifth = zeros, zeros, zeros, zeros, zeros
        for unit in range(share, units, shares):
            image, i, j = _place(unit, strips, out_height, STRIP)
            row, column = i * stride + k - top, j * stride - left
            seen = (j < out_width) & (row >= 0) & (row < height)
            place = ((image * out_height + i) * out_width + j)[:, None] * channels
            place = dy + place + channel[None, :]
            slope = tl.load(place, seen[:, None] & inside, 0.0).to(tl.float32)
            begin = x + (image * height + row) * width * channels
            begin = begin + column[:, None] * channels + channel[None, :]
            first += _product(begin, seen, inside, column, 0, width, channels, slope)
            second += _product(begin, seen, inside, column, 1, width, channels, slope)
            third += _product(begin, seen, inside, column, 2, width, channels, slope)
            if taps == 5:
                fourth += _product(begin, seen, inside, column, 3, width, channels, slope)
                fifth += _product(begin, seen, inside, column, 4, width, channels, slope)
        begin = parts + (share * taps + k) * taps * channels + channel
        inside = channel < channels
        tl.store(begin, tl.sum(first, 0), inside)
        tl.store(begin + channels, tl.sum(second, 0), inside)
        tl.store(begin + 2 * channels, tl.sum(third, 0), inside)
        if taps == 5:
            tl.store(begin + 3 * channels, tl.sum(fourth, 0), inside)
            tl.store(begin + 4 * channels, tl.sum(fifth, 0), inside)

    @triton.jit
    def _patch(x, image, row, column, q, channels, height, width, taps, dtype: tl.constexpr):
        """Return, for some columns of an output, the inputs below one row of the filter.

        They lie side by side in memory, ``taps * channels`` of them from ``column`` on.
        """
        begin = x + (image * height + row) * width * channels
        seen = ((row >= 0) & (row < height)) & (q < taps * channels)[None, :]
        place = column[:, None] * channels + q[None, :]
        seen = seen & (place >= 0) & (place < width * channels)
        return tl.load(begin + place, seen, 0.0).to(dtype)

    @triton.jit(do_not_specialize=["channels", *_SIDES])
    def _first_convolution(
        x,
        w,
        y,
        by_output,
        by_channel,
        by_row,
        by_column,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top: tl.constexpr,
        left: tl.constexpr,
        taps: tl.constexpr,
        stride: tl.constexpr,
        outputs: tl.constexpr,
        ACROSS: tl.constexpr,
        ROW: tl.constexpr,
    ):
        """y[n, i, j, o] = Σ_kmc x[n, i s + k − top, j s + m − left, c] w[o, c, k, m].

        A row k of the filter at a time; q = m C + c.
        """
        image, i, j = _place(tl.program_id(0), strips, out_height, ACROSS)
        q, o = tl.arange(0, ROW), tl.arange(0, outputs)
        filters = (q % channels * by_channel + q // channels * by_column)[:, None]
        filters = w + filters + (o * by_output)[None, :]
        dtype = y.dtype.element_ty
        total = tl.zeros((ACROSS, outputs), tl.float32)
        for k in tl.static_range(taps):
            row, column = i * stride + k - top, j * stride - left
            patch = _patch(x, image, row, column, q, channels, height, width, taps, dtype)
            row_of_filter = tl.load(filters + k * by_row, (q < taps * channels)[:, None], 0.0)
            total = tl.dot(patch, row_of_filter.to(dtype), total)
        place = ((image * out_height + i) * out_width + j) * outputs
        tl.store(y + place[:, None] + o[None, :], total.to(dtype), (j < out_width)[:, None])

    @triton.jit(do_not_specialize=["units", "channels", *_SIDES])
    def _first_convolution_gradient(
        x,
        dy,
        parts,
        units,
        strips,
        channels,
        height,
        width,
        out_height,
        out_width,
        top: tl.constexpr,
        left: tl.constexpr,
        taps: tl.constexpr,
        stride: tl.constexpr,
        outputs: tl.constexpr,
        ACROSS: tl.constexpr,
        ROW: tl.constexpr,
    ):
        """parts[p, k, q, o] = Σ_nij x[n, i s + k − top, j s + m − left, c] dy[n, i, j, o].

        A share of the sum; q = m C + c.
        """
        share, shares, k = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
        q, o = tl.arange(0, ROW), tl.arange(0, outputs)
        total = tl.zeros((ROW, outputs), tl.float32)
        for unit in range(share, units, shares):
            image, i, j = _place(unit, strips, out_height, ACROSS)
            row, column = i * stride + k - top, j * stride - left
            dtype = dy.dtype.element_ty
            patch = _patch(x, image, row, column, q, channels, height, width, taps, dtype)
            place = ((image * out_height + i) * out_width + j) * outputs
            slope = tl.load(dy + place[:, None] + o[None, :], (j < out_width)[:, None], 0.0)
            total = tl.dot(tl.trans(patch), slope, total)
        place = ((share * taps + k) * ROW + q) * outputs
        tl.store(parts + place[:, None] + o[None, :], total)

    @triton.jit
    def _scales(weight, bias, mean, var, eps, channel, inside):
        """Return what a norm subtracts and multiplies by, its weight and its bias."""
        rate = 1 / tl.sqrt(tl.load(var + channel, inside, 1.0) + eps)
        centre = tl.load(mean + channel, inside, 0.0)
        factor, shift = tl.load(weight + channel, inside, 0.0), tl.load(bias + channel, inside, 0.0)
        return centre[None, :], rate[None, :], factor[None, :], shift[None, :]

    @triton.jit(do_not_specialize=["rows"])
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
        rows,
        columns,
        channels,
        ADDED: tl.constexpr,
        ACTIVE: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
        """y = min(max((x − mean) / √(var + eps) weight + bias + added, 0), limit)."""
        share, shares = tl.program_id(0), tl.num_programs(0)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside, channel = column < columns, column % channels
        centre, rate, factor, shift = _scales(weight, bias, mean, var, eps, channel, inside)
        for start in range(share * ROWS, rows, shares * ROWS):
            row = start + tl.arange(0, ROWS)
            mask = (row < rows)[:, None] & inside[None, :]
            place = (row.to(tl.int64) * columns)[:, None] + column[None, :]
            value = (tl.load(x + place, mask, 0.0).to(tl.float32) - centre) * rate
            value = value * factor + shift
            if ADDED:
                value += tl.load(added + place, mask, 0.0).to(tl.float32)
            if ACTIVE:
                value = tl.minimum(tl.maximum(value, 0.0), limit)
            tl.store(y + place, value.to(y.dtype.element_ty), mask)

    @triton.jit(do_not_specialize=["rows"])
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
        rows,
        columns,
        channels,
        SHOWN: tl.constexpr,
        ACTIVE: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):
        """With g = dy where the activation is not flat: dx, and over a share Σ g x̂ and Σ g.

        SHOWN: something was added before the activation. Its gradient is g, and the output shows
        where the activation is flat.
        """
        share, shares = tl.program_id(0), tl.num_programs(0)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside, channel = column < columns, column % channels
        centre, rate, factor, shift = _scales(weight, bias, mean, var, eps, channel, inside)
        by_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
        by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(share * ROWS, rows, shares * ROWS):
            row = start + tl.arange(0, ROWS)
            mask = (row < rows)[:, None] & inside[None, :]
            place = (row.to(tl.int64) * columns)[:, None] + column[None, :]
            value = (tl.load(x + place, mask, 0.0).to(tl.float32) - centre) * rate
            slope = tl.load(dy + place, mask, 0.0).to(tl.float32)
            if ACTIVE:
                if SHOWN:
                    out = tl.load(shown + place, mask, 0.0).to(tl.float32)
                else:
                    out = value * factor + shift
                slope = tl.where((out > 0) & (out < limit), slope, 0.0)
                if SHOWN:
                    tl.store(d_added + place, slope.to(d_added.dtype.element_ty), mask)
            by_weight += slope * value
            by_bias += slope
            tl.store(dx + place, (slope * (factor * rate)).to(dx.dtype.element_ty), mask)
        begin = parts + share * columns + column
        tl.store(begin, tl.sum(by_weight, 0), inside)
        tl.store(begin + shares * columns, tl.sum(by_bias, 0), inside)

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
