"""Augmentation kernels: ``augmentation.augment`` in two passes over the pixels, in Triton.

Torch needs some two hundred small operations for it. The first pass here cuts out and resamples the
crops, and adds up the grey levels that the contrast of each image needs; the second changes the
colours.
"""

import math

import torch
from torch import Tensor

from ..datasets.base import EVALUATION_SIDE
from ..datasets.decoded import Ragged
from .augmentation import ImageParameters

try:
    import triton
    import triton.language as tl
except ImportError:  # torch brings it along for GPUs on Linux
    triton = None

# Pixels of one program.
PIXELS = 512


def kernels_apply(images: Ragged) -> bool:
    """Return whether the kernels can augment these images."""
    return triton is not None and images.pixels.is_cuda and not torch.compiler.is_compiling()


def augment_resident(
    images: Ragged,
    indices: Tensor,
    largest: tuple[int, int],
    parameters: ImageParameters,
    size: int = EVALUATION_SIDE,
) -> Tensor:
    """Return float32 ``[n, 3, size, size]`` in 0 … 1, with channels last in memory.

    Args:
        images: all images of a domain, on the device.
        indices: of the images to augment.
        largest: height and width that no stored image exceeds.
        parameters: of the augmentation of each.
    """
    n, blocks = len(indices), triton.cdiv(size * size, PIXELS)
    found = torch.empty(n, size, size, 3, device=indices.device)
    sums = torch.empty(n, blocks, device=indices.device)
    colours = parameters.factors, parameters.order
    # So many stored pixels can play a part in one of the crop, along each axis.
    taps = math.ceil(2 * max(max(largest) / size, 1)) + 1
    _resample[n, blocks](
        *images,
        indices,
        parameters.boxes,
        parameters.flipped,
        *colours,
        found,
        sums,
        SIZE=size,
        TAPS=taps,
        PIXELS=PIXELS,
    )
    means = sums.sum(1) / size**2
    _recolour[n, blocks](found, means, *colours, parameters.grayed, SIZE=size, PIXELS=PIXELS)
    return found.permute(0, 3, 1, 2)


if triton is not None:

    @triton.jit
    def _axis(start, length, stored, window, place, SIZE: tl.constexpr):
        """Return where resampling reads along one axis: first pixel, limits, centre and radius."""
        scale = stored.to(tl.float64) / window
        step = length * scale / SIZE
        centre = (start * scale + (place + 0.5) * step).to(tl.float32)
        radius = tl.maximum(step, 1.0).to(tl.float32)
        low = start * stored // window
        high = ((start + length) * stored + window - 1) // window
        first = tl.ceil(centre - radius - 0.5).to(tl.int32)
        return first, low, high, centre, radius

    @triton.jit
    def _weight(pixel, low, high, centre, radius):
        """Return the weight of stored pixels in resampled ones, before they add up to one."""
        distance = tl.abs(pixel + 0.5 - centre) / radius
        return tl.where((pixel >= low) & (pixel < high), tl.maximum(1 - distance, 0.0), 0.0)

    @triton.jit
    def _grey(red, green, blue):
        return 0.299 * red + 0.587 * green + 0.114 * blue

    @triton.jit
    def _clip(value):
        return tl.minimum(tl.maximum(value, 0.0), 1.0)

    @triton.jit
    def _shade(hue, start, largest, spread):
        """Return one channel of a colour, from its hue in sixths of a turn."""
        place = hue + start
        place = place - 6 * tl.floor(place / 6)
        return largest - spread * _clip(tl.minimum(place, 4 - place))

    @triton.jit
    def _change(kind, factor, mean, red, green, blue):
        """Return the colours after one operation of the jitter."""
        if kind == 3:
            largest = tl.maximum(tl.maximum(red, green), blue)
            spread = largest - tl.minimum(tl.minimum(red, green), blue)
            size = tl.where(spread > 0, spread, 1.0)
            others = tl.where(largest == green, 2 + (blue - red) / size, 4 + (red - green) / size)
            hue = tl.where(largest == red, (green - blue) / size, others) + 6 * factor
            red = _shade(hue, 5, largest, spread)
            green = _shade(hue, 3, largest, spread)
            blue = _shade(hue, 1, largest, spread)
        else:
            target = tl.zeros_like(red)
            if kind == 1:
                target += mean
            elif kind == 2:
                target += _grey(red, green, blue)
            target = (1 - factor) * target
            red = _clip(factor * red + target)
            green = _clip(factor * green + target)
            blue = _clip(factor * blue + target)
        return red, green, blue

    @triton.jit
    def _resample(
        pixels,
        offsets,
        frames,
        indices,
        boxes,
        flipped,
        factors,
        order,
        found,
        sums,
        SIZE: tl.constexpr,
        TAPS: tl.constexpr,
        PIXELS: tl.constexpr,
    ):
        """Write crops in 0 … 1, and for each the sum of grey levels before its contrast changes."""
        image, block = tl.program_id(0), tl.program_id(1)
        index = tl.load(indices + image)
        frame, box = frames + 8 * index, boxes + 4 * image
        stored_height, stored_width = tl.load(frame), tl.load(frame + 1)
        pixel = block * PIXELS + tl.arange(0, PIXELS)
        there = pixel < SIZE * SIZE
        row, column = pixel // SIZE, pixel % SIZE
        if tl.load(flipped + image):
            column = SIZE - 1 - column
        top, low_row, high_row, y, y_radius = _axis(
            tl.load(box) - tl.load(frame + 4),
            tl.load(box + 2),
            stored_height,
            tl.load(frame + 6),
            row,
            SIZE,
        )
        left, low_column, high_column, x, x_radius = _axis(
            tl.load(box + 1) - tl.load(frame + 5),
            tl.load(box + 3),
            stored_width,
            tl.load(frame + 7),
            column,
            SIZE,
        )
        plane = stored_height * stored_width
        begin = pixels + tl.load(offsets + index)
        red = tl.zeros((PIXELS,), tl.float32)
        green = tl.zeros((PIXELS,), tl.float32)
        blue = tl.zeros((PIXELS,), tl.float32)
        total = tl.zeros((PIXELS,), tl.float32)
        for k in tl.static_range(TAPS):
            i = top + k
            down = _weight(i, low_row, high_row, y, y_radius)
            for m in tl.static_range(TAPS):
                j = left + m
                weight = down * _weight(j, low_column, high_column, x, x_radius)
                used = there & (weight > 0)
                place = begin + i * stored_width + j
                red += weight * tl.load(place, used, other=0).to(tl.float32)
                green += weight * tl.load(place + plane, used, other=0).to(tl.float32)
                blue += weight * tl.load(place + 2 * plane, used, other=0).to(tl.float32)
                total += weight
        total = 255 * tl.where(there, total, 1.0)
        red, green, blue = red / total, green / total, blue / total
        out = found + (image.to(tl.int64) * SIZE * SIZE + pixel) * 3
        tl.store(out, red, there)
        tl.store(out + 1, green, there)
        tl.store(out + 2, blue, there)
        before = True
        for slot in tl.static_range(4):
            kind = tl.load(order + 4 * image + slot)
            before = before & (kind != 1)
            if before:
                factor = tl.load(factors + 4 * image + kind)
                red, green, blue = _change(kind, factor, 0.0, red, green, blue)
        grey = tl.where(there, _grey(red, green, blue), 0.0)
        tl.store(sums + image * tl.num_programs(1) + block, tl.sum(grey, 0))

    @triton.jit
    def _recolour(found, means, factors, order, grayed, SIZE: tl.constexpr, PIXELS: tl.constexpr):
        """Jitter the colours of every image in place, and turn those that are ``grayed`` gray."""
        image = tl.program_id(0)
        pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        there = pixel < SIZE * SIZE
        place = found + (image.to(tl.int64) * SIZE * SIZE + pixel) * 3
        red = tl.load(place, there, other=0.0)
        green = tl.load(place + 1, there, other=0.0)
        blue = tl.load(place + 2, there, other=0.0)
        mean = tl.load(means + image)
        for slot in tl.static_range(4):
            kind = tl.load(order + 4 * image + slot)
            factor = tl.load(factors + 4 * image + kind)
            red, green, blue = _change(kind, factor, mean, red, green, blue)
        if tl.load(grayed + image):
            red = _grey(red, green, blue)
            green = red
            blue = red
        tl.store(place, red, there)
        tl.store(place + 1, green, there)
        tl.store(place + 2, blue, there)
