"""Random crops of a whole batch: boxes in the original's pixels, resampled as Pillow does it."""

import math

import torch
from torch import Tensor

from ..datasets.decoded import EVALUATION_SIDE, RATIO, SCALE, Ragged
from ..randomness import Draws

TRIES = 10


def gather(ragged: Ragged, indices: Tensor, height: int, width: int) -> Tensor:
    """Return these images as uint8 ``[n, 3, H, W]``; beyond an image its last pixels repeat.

    In memory the rows of the three channels alternate, as ``crop`` wants them.
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
    first of ten tries that fits is taken, anywhere it fits; where none does, the largest central
    part of an allowed ratio is.
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
    """Return how much each of ``side`` pixels counts in each of ``size`` new ones, along one axis.

    ``[n, size, side]``, rows add up to one. The box is ``length`` pixels of the window's, from
    ``start``; the window was stored with ``stored`` pixels.
    """
    scale = stored.double() / window
    step = (length * scale / size).view(-1, 1)
    centres = (start * scale).view(-1, 1) + (torch.arange(size, device=start.device) + 0.5) * step
    # As if cut out first: pixels that the box does not touch play no part.
    low = start * stored // window
    high = -(-(start + length) * stored // window)
    pixels = torch.arange(side, device=start.device)
    touched = (pixels >= low.view(-1, 1)) & (pixels < high.view(-1, 1))
    distances = (pixels + 0.5 - centres.float()[:, :, None]).abs() / step.float()[:, :, None].clamp(
        min=1
    )
    weights = torch.where(touched[:, None], (1 - distances).clamp(min=0), 0)
    return weights / weights.sum(-1, keepdim=True)
