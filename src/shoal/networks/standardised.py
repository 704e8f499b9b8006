"""Networks for the vectors of a table or of frozen features: each column is standardised first."""

import torch
from torch import Tensor, nn

from .base import Network
from .initialise import drawn
from .small import vector_mlp


class Standardise(nn.Module):
    """Columns to mean 0 and deviation 1 as ``measure`` found them; a missing value to the mean.

    A column that was the same everywhere is no more than rounding, whatever comes: its weights were
    never trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))

    def measure(self, inputs: Tensor) -> None:
        """Take mean and deviation of every column from ``[n, d]``, of what is not missing."""
        known = ~inputs.isnan()
        counts = known.sum(0)
        values = inputs.double().nan_to_num(nan=0.0)
        mean = values.sum(0) / counts.clamp(min=1)
        gaps = (values - mean).square() * known
        std = (gaps.sum(0) / counts.clamp(min=1)).sqrt()
        constant = std <= 1e-6 * mean.abs().clamp(min=1e-6)
        self.mean.copy_(mean)
        # Not infinity: Fish takes buffers from themselves, and ∞ − ∞ is NaN.
        largest = torch.finfo(self.std.dtype).max
        self.std.copy_(torch.where(constant, largest, std))

    def forward(self, inputs: Tensor) -> Tensor:
        found = (inputs - self.mean) / self.std
        return torch.where(found.isnan(), 0.0, found)


def linear(inputs: int, classes: int, generator: torch.Generator) -> Network:
    """Return a linear head on standardised features."""

    def build() -> nn.Linear:
        return nn.Linear(inputs, classes)

    return Network(Standardise(inputs), drawn(build, generator))


def standardised_mlp(inputs: int, classes: int, generator: torch.Generator) -> Network:
    """Return DomainBed's network for vectors, behind standardised columns."""
    network = vector_mlp(inputs, classes, generator)
    network.features = nn.Sequential(Standardise(inputs), network.features)
    return network


def measure_inputs(module: nn.Module, inputs: Tensor) -> None:
    """Let every ``Standardise`` of a network take its means and deviations from ``inputs``."""
    for part in module.modules():
        if isinstance(part, Standardise):
            part.measure(inputs.to(part.mean.device))


def folded(network: Network) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a ``linear`` head for features that are not standardised."""
    standardise, head = network.features, network.classifier
    if not isinstance(standardise, Standardise) or not isinstance(head, nn.Linear):
        raise TypeError("only the network 'linear' can be folded")
    weight = head.weight.detach().double() / standardise.std.double()
    bias = head.bias.detach().double() - weight @ standardise.mean.double()
    return weight.to(head.weight.dtype), bias.to(head.weight.dtype)
