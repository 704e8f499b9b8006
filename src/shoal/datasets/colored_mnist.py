"""Colored MNIST as DomainBed has it: 70,000 digits in two colours, 3 domains, 2 classes.

The label is whether the digit is below 5, and a quarter of the labels are wrong. The colour agrees
with the label in 90 %, 80 % and 10 % of the images ("-90%": it points to the other class).
"""

from pathlib import Path

import torch
from torch import Tensor

from ..randomness import stream
from .base import Domain, DomainDataset, check_trial
from .mnist import TERMS, deal_digits
from .sources import DatasetSource

NAME = "colored-mnist"
# How often the colour disagrees with the label.
DOMAINS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
CLASSES = ("5-9", "0-4")
LABEL_NOISE = 0.25
SOURCE = DatasetSource(name=NAME, classes=len(CLASSES), published=70_000, terms=TERMS)


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return the trial's Colored MNIST, uint8 ``[n, 2, 28, 28]``; embedded, so ``root`` is unused.

    DomainBed draws order, noise and colours from the run's seed, so that two runs of a trial differ
    in their data; here they depend on the trial alone.
    """
    trial = check_trial(trial)
    hands = deal_digits(NAME, trial, len(DOMAINS))
    domains = (
        _domain(name, trial, images, digits, flip)
        for (name, flip), (images, digits) in zip(DOMAINS.items(), hands, strict=True)
    )
    return DomainDataset(NAME, CLASSES, tuple(domains))


def _domain(name: str, trial: int, images: Tensor, digits: Tensor, flip: float) -> Domain:
    draws = stream(NAME, "domainbed", trial, name)

    def noise(probability: float) -> Tensor:
        return torch.rand(len(digits), generator=draws) < probability

    labels = (digits < 5) ^ noise(LABEL_NOISE)
    colours = labels ^ noise(flip)
    channels = images.new_zeros(len(images), 2, *images.shape[1:])
    channels[torch.arange(len(images)), colours.long()] = images
    return Domain(name, labels.long(), channels)
