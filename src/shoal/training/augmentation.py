"""The paper's augmentation, which is DomainBed's, of a whole batch on its device.

A random crop, a flip in half of the images, colour jitter, and one image in ten in gray. What is
drawn is apart from what is done with it, so that ``exact`` does the same to the original.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..randomness import Draws
from .colours import grayscale, jitter
from .crops import crop, draw_boxes, gather

__all__ = ["Parameters", "augment", "draw_parameters", "flip", "gather"]

FLIPPED, GRAYED = 0.5, 0.1
# Of brightness, contrast and saturation around 1, and of hue around 0.
JITTER = 0.3


class Parameters(NamedTuple):
    """What happens to each image of a batch, or to one image."""

    boxes: Tensor  # int64 [n, 4]: top, left, height and width in the original
    flipped: Tensor  # bool [n]
    factors: Tensor  # float32 [n, 4]: of brightness, contrast, saturation and hue
    order: Tensor  # int64 [n, 4]: those four in the order of their turn
    grayed: Tensor  # bool [n]

    def of(self, index: int) -> "Parameters":
        """Return the parameters of one image."""
        return Parameters(*(tensor[index] for tensor in self))


def draw_parameters(frames: Tensor, draws: Draws) -> Parameters:
    """Return what is to happen to the images of these frames, int64 ``[n, 8]``."""
    n = len(frames)
    boxes = draw_boxes(frames, draws)
    numbers = draws.uniform(n * 10).view(n, 10)
    factors = JITTER * (2 * numbers[:, 2:6] - 1)
    factors[:, :3] += 1
    return Parameters(
        boxes,
        numbers[:, 0] < FLIPPED,
        factors.float(),
        numbers[:, 6:].argsort(1),
        numbers[:, 1] < GRAYED,
    )


def augment(images: Tensor, frames: Tensor, parameters: Parameters) -> Tensor:
    """Return float32 ``[n, 3, 224, 224]`` in 0 … 1.

    Args:
        images: uint8 ``[n, 3, H, W]``, stored images padded to one size.
    """
    found = crop(images, frames, parameters.boxes) / 255
    red, green, blue = flip(found, parameters.flipped).unbind(1)
    channels = jitter((red, green, blue), parameters.factors, parameters.order)
    return torch.stack(grayscale(channels, parameters.grayed), 1)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Return the images, those mirrored that are ``flipped``, bool ``[n]``."""
    return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
