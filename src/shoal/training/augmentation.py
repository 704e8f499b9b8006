"""Augmentation of the paper and DomainBed, for a whole batch on its device.

A random crop, a flip of half of the images, colour jitter, and one image in ten in gray. Parameters
are drawn first and applied later, so that ``pillow`` can apply them to the original files.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..datasets.base import EVALUATION_SIDE
from ..datasets.decoded import RATIO, SCALE, Ragged
from ..randomness import Draws

TRIES = 10


def gather(ragged: Ragged, indices: Tensor, height: int, width: int) -> Tensor:
    """Return these images as uint8 ``[n, 3, H, W]``, padded with their last pixels.

    In memory the rows of the three channels alternate, as ``crop`` needs them.
    """
    frames = ragged.frames[indices].view(len(indices), -1, 1, 1, 1)
    high, wide = frames[:, 0], frames[:, 1]
    device = indices.device
    rows = torch.arange(height, device=device).view(-1, 1, 1).minimum(high - 1)
    columns = torch.arange(width, device=device).minimum(wide - 1)
    channels = torch.arange(3, device=device).view(-1, 1)
    begins = ragged.offsets[indices].view(-1, 1, 1, 1) + (channels * high + rows) * wide
    return ragged.pixels[begins + columns].transpose(1, 2)


def draw_boxes(frames: Tensor, draws: Draws) -> Tensor:
    """Return random crops, int64 ``[n, 4]``: top, left, height and width in the originals.

    Each covers 70 to 100 % of the area, with a width of 3/4 to 4/3 of its height (log-uniform). The
    first of ten tries that fits is used, at a random place; if none fits, the largest central part
    with an allowed ratio.
    """
    n = len(frames)
    shares, ratios, places = (
        draws.uniform(n * (2 * TRIES + 2)).view(n, -1).split([TRIES, TRIES, 2], 1)
    )
    height, width = frames[:, 2:3], frames[:, 3:4]
    shares = SCALE[0] + (SCALE[1] - SCALE[0]) * shares
    low, high = (math.log(ratio) for ratio in RATIO)
    ratios = (low + (high - low) * ratios).exp()
    areas = height * width * shares
    heights, widths = (areas / ratios).sqrt().round().long(), (areas * ratios).sqrt().round().long()
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first = fits.long().argmax(1, keepdim=True)
    tried = torch.cat([heights.gather(1, first), widths.gather(1, first)], 1)
    room = frames[:, 2:4] - tried
    corners = (places * (room + 1)).long()
    found = torch.cat([corners, tried], 1)
    return torch.where(fits.any(1, keepdim=True), found, _central(frames))


def _central(frames: Tensor) -> Tensor:
    """Return ``central_crop`` of every image."""
    height, width = frames[:, 2], frames[:, 3]
    ratio = width.double() / height
    high = torch.where(ratio < RATIO[0], (width.double() / RATIO[0]).round().long(), height)
    wide = torch.where(ratio > RATIO[1], (height.double() * RATIO[1]).round().long(), width)
    return torch.stack([(height - high) // 2, (width - wide) // 2, high, wide], 1)


def crop(images: Tensor, frames: Tensor, boxes: Tensor, size: int = EVALUATION_SIDE) -> Tensor:
    """Return the boxes as float32 ``[n, 3, size, size]`` in 0 … 255, from padded stored images.

    Pillow's antialiased bilinear filter is linear in the rows and in the columns, so a batch of
    crops is two batched products.
    """
    stored, windows = frames[:, :2], frames[:, 4:]
    n, _, height, width = images.shape
    corners = boxes[:, :2] - windows[:, :2]
    down, across = (
        _weights(corners[:, i], boxes[:, 2 + i], stored[:, i], windows[:, 2 + i], side, size)
        for i, side in enumerate((height, width))
    )
    precision = _precision(images.device)
    with torch.autocast(images.device.type, enabled=False):
        rows = images.transpose(1, 2).reshape(n, height, 3 * width).to(precision)
        rows = torch.bmm(down.to(precision), rows).view(n, size * 3, width)
        found = torch.bmm(rows, across.to(precision).transpose(1, 2))
    return found.view(n, size, 3, size).transpose(1, 2).float()


def _precision(device: torch.device) -> torch.dtype:
    # Tensor cores take half precision: it holds grey levels exactly, and weights well enough to be
    # a third of a level off at most.
    return torch.float16 if device.type == "cuda" else torch.float32


def _weights(
    start: Tensor, length: Tensor, stored: Tensor, window: Tensor, side: int, size: int
) -> Tensor:
    """Return the weight of each of ``side`` pixels in each of ``size`` new ones, along one axis.

    ``[n, size, side]``; rows add up to one. The box is ``length`` pixels of the window, from
    ``start`` on; the window was stored with ``stored`` pixels.
    """
    scale = stored.double() / window
    step = (length * scale / size).view(-1, 1)
    centres = (start * scale).view(-1, 1) + (torch.arange(size, device=start.device) + 0.5) * step
    # As if the box were cut out first: pixels outside it do not count.
    low = start * stored // window
    high = -(-(start + length) * stored // window)
    pixels = torch.arange(side, device=start.device)
    touched = (pixels >= low.view(-1, 1)) & (pixels < high.view(-1, 1))
    distances = (pixels + 0.5 - centres.float()[:, :, None]).abs() / step.float()[:, :, None].clamp(
        min=1
    )
    weights = torch.where(touched[:, None], (1 - distances).clamp(min=0), 0)
    return weights / weights.sum(-1, keepdim=True)


Channels = tuple[Tensor, Tensor, Tensor]

# The columns of factors, and the names of operations in an order.
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def jitter(channels: Channels, factors: Tensor, order: Tensor) -> Channels:
    """Return the images with jittered colours.

    Args:
        factors: ``[n, 4]``: brightness, contrast and saturation (1 changes nothing), and the
            share of a full turn that is added to the hue.
        order: int64 ``[n, 4]``: the order of the operations for each image.
    """
    turn_slot = (order == HUE).long().argmax(1, keepdim=True)
    contrast_slot = (order == CONTRAST).long().argmax(1, keepdim=True)
    places = torch.arange(3, device=order.device)
    before = places < turn_slot
    kinds = torch.where(before, order[:, :3], order[:, 1:])
    ratios, shifts = factors.gather(1, kinds), factors[:, HUE]
    # Contrast needs the mean of the image at its place in the order. The operations before it run
    # twice: once for this mean alone, with all others neutral.
    early = torch.where(before, places, places + 1) < contrast_slot
    early_shifts = torch.where((turn_slot < contrast_slot)[:, 0], shifts, 0)
    means = torch.zeros_like(shifts)
    seen = _walk(channels, kinds, torch.where(early, ratios, 1), before, early_shifts, means)
    return _walk(channels, kinds, ratios, before, shifts, gray(seen).mean((1, 2)))


def _walk(
    channels: Channels,
    kinds: Tensor,
    ratios: Tensor,
    before: Tensor,
    shifts: Tensor,
    means: Tensor,
) -> Channels:
    """Return the images after the blends before the hue shift, the shift, and the other blends.

    ``kinds``, ``ratios`` and ``before`` are ``[n, 3]``: each blend acts on one side of the shift,
    and is neutral on the other.
    """
    for slot in range(3):
        ratio = torch.where(before[:, slot], ratios[:, slot], 1)
        channels = _blend(channels, kinds[:, slot], ratio, means)
    channels = turn(channels, shifts)
    for slot in range(3):
        ratio = torch.where(before[:, slot], 1, ratios[:, slot])
        channels = _blend(channels, kinds[:, slot], ratio, means)
    return channels


def _blend(channels: Channels, kinds: Tensor, ratios: Tensor, means: Tensor) -> Channels:
    """Return ratio · image + (1 − ratio) · target, clamped. Three operations differ in the target.

    The target is black for brightness, the mean grey for contrast, the grey image for saturation.
    """
    kind, ratio = kinds.view(-1, 1, 1), ratios.view(-1, 1, 1)
    flat = torch.where(kind == CONTRAST, means.view(-1, 1, 1), 0)
    target = (1 - ratio) * torch.where(kind == SATURATION, gray(channels), flat)
    red, green, blue = ((ratio * channel + target).clamp(0, 1) for channel in channels)
    return red, green, blue


def turn(channels: Channels, shifts: Tensor) -> Channels:
    """Return the images with their hue turned by ``shifts`` ``[n]``, 1 for a full turn.

    Saturation and value stay, and so do the largest and the smallest channel of a pixel.
    """
    red, green, blue = channels
    largest = red.maximum(green).maximum(blue)
    spread = largest - red.minimum(green).minimum(blue)
    size = torch.where(spread > 0, spread, 1)
    # In sixths of a turn, from red.
    hue = torch.where(
        largest == red,
        (green - blue) / size,
        torch.where(largest == green, 2 + (blue - red) / size, 4 + (red - green) / size),
    )
    hue = hue + 6 * shifts.view(-1, 1, 1)

    def channel(start: int) -> Tensor:
        place = (hue + start).remainder(6)
        return largest - spread * place.minimum(4 - place).clamp(0, 1)

    return channel(5), channel(3), channel(1)


def gray(channels: Channels) -> Tensor:
    """Return the luma that Pillow calls "L", ``[n, h, w]``."""
    red, green, blue = channels
    return 0.299 * red + 0.587 * green + 0.114 * blue


def grayscale(channels: Channels, chosen: Tensor) -> Channels:
    """Return the images, with those that are ``chosen``, bool ``[n]``, in gray."""
    luma, chosen = gray(channels), chosen.view(-1, 1, 1)
    red, green, blue = (torch.where(chosen, luma, channel) for channel in channels)
    return red, green, blue


FLIPPED, GRAYED = 0.5, 0.1
# The range of brightness, contrast and saturation around 1, and of hue around 0.
JITTER = 0.3


class ImageParameters(NamedTuple):
    """The augmentation of each image of a batch, or of one image."""

    boxes: Tensor  # int64 [n, 4]: top, left, height and width in the original
    flipped: Tensor  # bool [n]
    factors: Tensor  # float32 [n, 4]: of brightness, contrast, saturation and hue
    order: Tensor  # int64 [n, 4]: the four operations in order
    grayed: Tensor  # bool [n]

    def of(self, index: int) -> "ImageParameters":
        """Return the parameters of one image."""
        return ImageParameters(*(tensor[index] for tensor in self))


def draw_parameters(frames: Tensor, draws: Draws) -> ImageParameters:
    """Return random parameters for the images of these frames, int64 ``[n, 8]``."""
    n = len(frames)
    boxes = draw_boxes(frames, draws)
    numbers = draws.uniform(n * 10).view(n, 10)
    factors = JITTER * (2 * numbers[:, 2:6] - 1)
    factors[:, :3] += 1
    return ImageParameters(
        boxes,
        numbers[:, 0] < FLIPPED,
        factors.float(),
        numbers[:, 6:].argsort(1),
        numbers[:, 1] < GRAYED,
    )


def augment(images: Tensor, frames: Tensor, parameters: ImageParameters) -> Tensor:
    """Return float32 ``[n, 3, 224, 224]`` in 0 … 1.

    Args:
        images: uint8 ``[n, 3, H, W]``, stored images padded to one size.
    """
    found = crop(images, frames, parameters.boxes) / 255
    red, green, blue = flip(found, parameters.flipped).unbind(1)
    channels = jitter((red, green, blue), parameters.factors, parameters.order)
    return torch.stack(grayscale(channels, parameters.grayed), 1)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Return the images, with those that are ``flipped``, bool ``[n]``, mirrored."""
    return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
