"""Rotated MNIST as DomainBed has it: 70,000 digits, 6 angles, 10 classes."""

import math
from pathlib import Path

import torch
from torch import Tensor

from .base import Domain, DomainDataset, check_trial
from .mnist import TERMS, deal_digits
from .sources import DatasetSource

NAME = "rotated-mnist"
ANGLES = (0, 15, 30, 45, 60, 75)
# Images that are turned at a time, so that they stay in the processor's cache.
CHUNK = 1024
SOURCE = DatasetSource(name=NAME, classes=10, published=70_000, terms=TERMS)


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return the trial's Rotated MNIST, uint8 ``[n, 1, 28, 28]``; embedded, so ``root`` is unused.

    DomainBed draws the order from the run's seed, so that two runs of a trial differ in their data;
    here it depends on the trial alone.
    """
    hands = deal_digits(NAME, check_trial(trial), len(ANGLES))
    domains = (
        Domain(str(angle), digits, rotate(images, angle)[:, None])
        for angle, (images, digits) in zip(ANGLES, hands, strict=True)
    )
    return DomainDataset(NAME, tuple(map(str, range(10))), tuple(domains))


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Return ``[n, H, W]`` uint8 turned counter-clockwise about the centre, as Pillow turns them.

    Bilinear. A pixel whose source is outside is 0, at the border the outermost pixel counts twice,
    and the result is truncated, not rounded: all as in Pillow, which DomainBed uses.
    """
    height, width = images.shape[1:]
    sources, dx, dy = _sources(height, width, degrees)
    turned = torch.empty_like(images)
    # Pixels come first, so that whole rows are gathered.
    for chunk, target in zip(images.split(CHUNK), turned.split(CHUNK), strict=True):
        pixels = torch.nn.functional.pad(chunk.flatten(1).T.double(), (0, 0, 0, 1))
        left_above, right_above, left_below, right_below = pixels[sources]
        above = left_above + (right_above - left_above) * dx
        below = left_below + (right_below - left_below) * dx
        target.copy_((above + (below - above) * dy).T.reshape(chunk.shape))
    return turned


def _sources(height: int, width: int, degrees: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the four source pixels of each pixel, ``[4, HW]``, and its offsets dx, dy from them.

    A source outside of the image is pixel HW, which the caller adds and which is 0.
    """
    # Rounded as in Pillow, so that a quarter turn does not miss the border by the last bit.
    cosine = round(math.cos(math.radians(degrees)), 15)
    sine = round(math.sin(math.radians(degrees)), 15)
    rows = torch.arange(height, dtype=torch.float64)[:, None] + 0.5
    columns = torch.arange(width, dtype=torch.float64)[None] + 0.5
    # In Pillow's order of sums: values are truncated, so the last bit can decide a grey level.
    x0 = cosine * -width / 2 - sine * -height / 2 + width / 2
    y0 = sine * -width / 2 + cosine * -height / 2 + height / 2
    x = (cosine * columns - sine * rows + x0).flatten()
    y = (sine * columns + cosine * rows + y0).flatten()
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height)
    left, above = (x - 0.5).floor(), (y - 0.5).floor()
    corners = []
    for j in (above, above + 1):
        for i in (left, left + 1):
            pixel = j.clamp(0, height - 1) * width + i.clamp(0, width - 1)
            corners.append(pixel.long().masked_fill(outside, height * width))
    return torch.stack(corners), (x - 0.5 - left)[:, None], (y - 0.5 - above)[:, None]
