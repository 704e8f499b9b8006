"""Digits whose colour agrees with their label more or less often, as in the IRM setup."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ..datasets.mnist import train_digits
from ..randomness import stream


@dataclass(frozen=True)
class Domain:
    """Coloured digits ``[n, 392]`` and labels ``[n, 1]``; ``digits`` are the ten classes."""

    inputs: Tensor
    labels: Tensor
    digits: Tensor

    def to(self, device: torch.device) -> "Domain":
        return Domain(self.inputs.to(device), self.labels.to(device), self.digits.to(device))


def coloured(
    name: str,
    restart: int,
    which: Tensor,
    flip: float,
    colour_flip: float | None,
) -> Domain:
    """Return the digits ``which`` of MNIST's training set as a domain.

    Args:
        name, restart: what labels and colours are drawn by.
        flip: of labels, the share that is wrong.
        colour_flip: of colours, the share that contradicts the label; None for gray digits.
    """
    images, digits = _small_digits()
    draws = stream("colored-mnist", name, restart)

    def noise(probability: float) -> Tensor:
        return torch.rand(len(which), generator=draws) < probability

    small = images[which]
    labels = (digits[which] < 5) ^ noise(flip)
    channels = torch.stack([small, small], 1)
    if colour_flip is not None:  # gray keeps both channels
        colours = labels ^ noise(colour_flip)
        channels[torch.arange(len(which)), 1 - colours.long()] = 0
    return Domain(channels.flatten(1), labels.float()[:, None], digits[which].long())


@cache
def _small_digits() -> tuple[Tensor, Tensor]:
    """Return every second pixel of MNIST's training images, ``[60000, 14, 14]``, and the digits."""
    images, digits = train_digits()
    return torch.tensor(images[:, ::2, ::2]).float() / 255, torch.tensor(digits)
