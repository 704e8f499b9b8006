"""Networks for vectors and for 28 × 28 images, and the small ones that methods add."""

from itertools import pairwise

import torch
from torch import nn

from .base import Network
from .dropping import Dropout
from .initialise import drawn


class MLP(Network):
    """A perceptron on vectors with two hidden ReLU layers, as in the IRM setup.

    Weights are Xavier-uniform from ``generator``, biases zero.
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, generator: torch.Generator | None = None
    ) -> None:
        features = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        super().__init__(features, nn.Linear(hidden, outputs))
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter, generator=generator)


def vector_mlp(
    inputs: int,
    classes: int,
    generator: torch.Generator,
    width: int = 256,
    depth: int = 3,
    dropout: float = 0.0,
) -> Network:
    """Return DomainBed's network for vectors: its MLP gives ``width`` features, then a head."""
    if depth < 2:
        raise ValueError(f"depth must be 2 or more, got {depth}")

    def build() -> Network:
        return Network(perceptron(inputs, width, width, depth, 0.0), nn.Linear(width, classes))

    network = drawn(build, generator)
    for name, layer in network.features.named_children():
        if isinstance(layer, nn.Dropout):
            setattr(network.features, name, Dropout(dropout, generator))
    return network


def mnist_cnn(channels: int, classes: int, generator: torch.Generator) -> Network:
    """Return DomainBed's network for 28 × 28 images: four convolutions, 128 features."""

    def build() -> Network:
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((channels, 64, 1), (64, 128, 2), (128, 128, 1)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]
            layers += [nn.GroupNorm(8, outputs)]
        layers += [nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU(), nn.GroupNorm(8, 128)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Network(nn.Sequential(*layers), nn.Linear(128, classes))

    return drawn(build, generator)


def perceptron(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return DomainBed's MLP: ``depth`` linear layers, dropout and ReLU after all but the last."""
    widths = [inputs, *[width] * (depth - 1)]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def context_net(channels: int) -> nn.Sequential:
    """Return DomainBed's network for ARM: an image's context, one channel of the image's size."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 5, padding=2))
