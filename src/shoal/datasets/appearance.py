"""Appearance: contrast, sharpness and colour of the images that a model has seen, and of others.

It is that of images as networks see them, all of one size; ``properties`` is about files. An image
far beyond all in training shows little of what the model has learned to tell: it is empty, out of
focus, full of noise. Images of another place are within the range nearly always, although they can
be brighter or darker, which is why brightness is not looked at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .encoding import SeenRange

Array = np.ndarray[Any, Any]
# Deviation of the grey values, deviation of their second differences between neighbours, and mean
# distance between the highest and the lowest channel. Their logarithms are compared.
NAMES = ("contrast", "sharpness", "colour")
# An image is unlike all if it is outside the extremes, and outside the middle 98 % by a share of
# its width; that width counts as LEAST at the least, so that grey images may have a tint.
SHARE = 0.5
LEAST = (1.0, 1.0, 4.0)
# Every so many rows and columns are looked at; so many images together stay in a core's cache.
STRIDE, TOGETHER = 4, 4
GREY = (0.299, 0.587, 0.114)
# None is above 255, but for rounding.
MOST = float(np.log1p(256))


@dataclass(frozen=True)
class Appearance:
    """The ranges of what images looked like in training, in the order of ``NAMES``."""

    ranges: tuple[SeenRange, ...]

    @staticmethod
    def of(images: Iterable[Tensor]) -> "Appearance":
        """Return the ranges of images, which come in batches, uint8 ``[n, 3, H, W]``."""
        found = np.log1p(np.concatenate([look(batch) for batch in images]))
        return Appearance(tuple(SeenRange.of(column) for column in found.T))

    def unusual(self, images: Tensor) -> list[tuple[str, ...]]:
        """Return for each image a few words about all in which it is unlike those in training."""
        found = look(images)
        words = [_words(seen) for seen in self.ranges]
        limits = [_limits(seen, least) for seen, least in zip(self.ranges, LEAST, strict=True)]
        low, high = np.array(limits).T
        far = (np.log1p(found) < low) | (np.log1p(found) > high)
        return [
            tuple(f"{NAMES[k]} is {row[k]:.3g}, {words[k]}" for k in np.flatnonzero(mine))
            for row, mine in zip(found, far, strict=True)
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the ranges as plain values, for the card of a model."""
        return {name: asdict(one) for name, one in zip(NAMES, self.ranges, strict=True)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Appearance":
        """Return the ranges that ``as_json`` wrote; raise if they are not possible."""
        ranges = tuple(SeenRange.from_json(values[name]) for name in NAMES)
        for name, seen in zip(NAMES, ranges, strict=True):
            if not all(0 <= value <= MOST for value in asdict(seen).values()):
                raise ValueError(f"the {name} of images in training is not possible")
        return Appearance(ranges)


def look(images: Tensor) -> Array:
    """Return contrast, sharpness and colour, each from 0 to 255: ``[n, 3]``.

    Args:
        images: uint8 ``[n, 3, H, W]``.
    """
    return np.concatenate([_look(part) for part in images.split(TOGETHER)])


def _look(images: Tensor) -> Array:
    rows, columns = images[:, :, ::STRIDE].float(), images[:, :, :, ::STRIDE].float()
    grey = torch.tensor(GREY)
    along = torch.einsum("c,nchw->nhw", grey, rows)
    across = torch.einsum("c,nchw->nhw", grey, columns).transpose(1, 2)
    bends = [one[..., 1:-1] - (one[..., :-2] + one[..., 2:]) / 2 for one in (along, across)]
    sharpness = torch.stack([one.square().mean((1, 2)) for one in bends]).mean(0).sqrt()
    few = rows[..., ::STRIDE]
    colour = (few.amax(1) - few.amin(1)).mean((1, 2))
    found = [along.std((1, 2), correction=0), sharpness, colour]
    return np.asarray(torch.stack(found, 1).double().numpy())


def _limits(seen: SeenRange, least: float) -> tuple[float, float]:
    reach = SHARE * max(seen.q99 - seen.q01, least)
    return min(seen.min, seen.q01 - reach), max(seen.max, seen.q99 + reach)


def _words(seen: SeenRange) -> str:
    low, high = np.expm1([seen.min, seen.max])
    return f"in training it was {low:.3g} to {high:.3g}"
