"""f_θ = w_ω ∘ Φ_φ: networks with ``.features`` and ``.classifier``, and the smaller ones beside."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from .randomness import Draws

M = TypeVar("M", bound=nn.Module)

# Layers whose weights are drawn, and those whose weights begin at one and zero.
DRAWN = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)
RESET = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)


class Network(nn.Module):
    """A classifier of a feature extractor Φ_φ and a head w_ω."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits


class MLP(nn.Module):
    """A perceptron on vectors with two hidden ReLU layers, as in the IRM setup.

    Weights are Xavier-uniform from ``generator``, biases zero.
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.classifier = nn.Linear(hidden, outputs)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits


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


def dropout(inputs: Tensor, rate: float, draws: Draws) -> Tensor:
    """Return ``inputs`` with a share ``rate`` set to zero, as ``draws`` has it, the rest scaled."""
    if rate == 0:
        return inputs
    kept = draws.uniform(inputs.numel()).view_as(inputs) >= rate
    return inputs * kept / (1 - rate)


def context_net(channels: int) -> nn.Sequential:
    """Return DomainBed's network for ARM: an image's context, one channel of the image's size."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 5, padding=2))


def head_sizes(classifier: nn.Module) -> tuple[int, int]:
    """Return p and C: the inputs of the classifier's first linear layer, the last one's outputs."""
    layers = [part for part in classifier.modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise TypeError(
            f"the classifier must have a linear layer, {type(classifier).__name__} has none"
        )
    return layers[0].in_features, layers[-1].out_features


def drawn(build: Callable[[], M], generator: torch.Generator, like: nn.Module | None = None) -> M:
    """Return what ``build`` makes, its weights drawn from ``generator`` as torch draws them.

    The global random state is neither read nor moved. The module comes on the device and in the
    precision of ``like``, and draws the same on every device.
    """
    with torch.device("meta"):
        module = build()
    module.to_empty(device="cpu")
    for part in module.modules():
        own = next(part.parameters(recurse=False), None)
        if own is not None and not isinstance(part, (*DRAWN, *RESET)):
            raise TypeError(f"the weights of {type(part).__name__} cannot be drawn from a stream")
        if isinstance(part, DRAWN[:2]):
            bound = 1 / math.sqrt(part.weight[0].numel())
            for weight in (part.weight, part.bias):
                if weight is not None:
                    nn.init.uniform_(weight, -bound, bound, generator=generator)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, generator=generator)
        elif isinstance(part, RESET):
            part.reset_parameters()
    if like is not None:
        weight = next(like.parameters())
        module.to(weight.device, weight.dtype)
    return module
