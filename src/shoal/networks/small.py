"""Small networks: MLPs, the MNIST CNN, the Wide ResNet, standardised inputs, parts of methods."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from ..scalars import widest
from .base import Dropout, Network, draw_weights
from .gpu_kernels import relu_group_norm

# Quantiles of a column between which ranks are read off.
KNOTS = 32


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

    network = draw_weights(build, generator)
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
        return Network(GroupNormed(*layers), nn.Linear(128, classes))

    return draw_weights(build, generator)


class GroupNormed(nn.Sequential):
    """Layers one after the other, each ``nn.ReLU`` together with the group norm that follows it."""

    def forward(self, inputs: Tensor) -> Tensor:
        found = inputs
        for k, layer in enumerate(self):
            if isinstance(layer, nn.ReLU):
                found = relu_group_norm(layer, self[k + 1], found)  # type: ignore[arg-type]
            elif not isinstance(layer, nn.GroupNorm):
                found = layer(found)
        return found


def perceptron(inputs: int, outputs: int, width: int, depth: int, dropout: float) -> nn.Sequential:
    """Return DomainBed's MLP: ``depth`` linear layers, dropout and ReLU after all but the last."""
    widths = [inputs, *[width] * (depth - 1)]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Dropout(dropout), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def context_net(channels: int) -> nn.Sequential:
    """Return DomainBed's context network for ARM: one channel of the image's size."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 5, padding=2))


class Standardise(nn.Module):
    """Scale columns to mean 0 and deviation 1, as ``measure`` found them; missing values become 0.

    A column that was constant becomes 0 up to rounding for any input: its weights were never
    trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))

    def measure(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Take mean and deviation of every column of ``[n, d]``, ignoring missing values."""
        shares = _weights_of(inputs, weights)[:, None] * ~inputs.isnan()
        total = shares.sum(0)
        total = torch.where(total > 0, total, 1.0)
        values = inputs.to(widest(inputs.device)).nan_to_num(nan=0.0)
        mean = (shares * values).sum(0) / total
        std = ((shares * (values - mean).square()).sum(0) / total).sqrt()
        constant = std <= 1e-6 * mean.abs().clamp(min=1e-6)
        self.mean.copy_(mean)
        # Not infinity: Fish subtracts buffers from themselves, and ∞ − ∞ is NaN.
        largest = torch.finfo(self.std.dtype).max
        self.std.copy_(torch.where(constant, largest, std))

    def forward(self, inputs: Tensor) -> Tensor:
        found = (inputs - self.mean) / self.std
        return torch.where(found.isnan(), 0.0, found)


class WithRanks(nn.Module):
    """Append the rank of every value in its column, as a normal score; a missing one stays missing.

    A rank r of n becomes Φ⁻¹(r / n), which outliers and skewed columns cannot stretch. It is read
    off a line through the column's quantiles, as ``measure`` found them, and flat beyond the first
    and the last. A column of one or two values has no ranks of use, and gets zeros.
    """

    knots: Tensor  # [d, K], increasing
    heights: Tensor  # [d, K], their normal scores

    def __init__(self, columns: int, knots: int = KNOTS) -> None:
        super().__init__()
        self.register_buffer("knots", torch.arange(knots).float().repeat(columns, 1))
        self.register_buffer("heights", torch.zeros(columns, knots))

    def measure(self, inputs: Tensor, weights: Tensor | None = None) -> None:
        """Take the quantiles of every column of ``[n, d]``, ignoring missing values."""
        size = self.knots.shape[1]
        precise = widest(inputs.device)
        shares = (torch.arange(size, dtype=precise, device=inputs.device) + 0.5) / size
        counted = _weights_of(inputs, weights)
        for column, values in enumerate(inputs.to(precise).T):
            known = ~values.isnan() & (counted > 0)
            values, order = values[known].sort()
            if len(values.unique()) < 3:
                continue
            # The sum of the weights before each value, and of all.
            ranks = torch.cat([counted.new_zeros(1), counted[known][order].cumsum(0)])
            last, n = len(values) - 1, ranks[-1]
            at = torch.searchsorted(ranks[1:], shares * n, right=True).clamp(max=last)
            knots = values[at].unique()
            # Equal values share the middle of their ranks.
            first, after = (
                ranks[torch.searchsorted(values, knots, right=side)] for side in (False, True)
            )
            heights = torch.special.ndtri((first + after).float() / (2 * n).float())
            # Fewer knots than there is room for: the last one goes on, flat.
            room = size - len(knots)
            beyond = knots[-1] + (1 + knots[-1].abs()) * torch.arange(
                1, room + 1, device=values.device
            )
            self.knots[column] = torch.cat([knots, beyond])
            self.heights[column] = torch.cat([heights, heights[-1:].expand(room)])

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.to(self.knots.dtype)
        last = self.knots.shape[1] - 1
        place = torch.searchsorted(self.knots, values.T.contiguous(), right=True).clamp(1, last)
        low, high = (self.knots.gather(1, at) for at in (place - 1, place))
        below, above = (self.heights.gather(1, at) for at in (place - 1, place))
        share = ((values.T - low) / (high - low)).clamp(0, 1)
        return torch.cat([values, (below + share * (above - below)).T], 1)


def linear(inputs: int, classes: int, generator: torch.Generator) -> Network:
    """Return a linear head on standardised features."""

    def build() -> nn.Linear:
        return nn.Linear(inputs, classes)

    return Network(Standardise(inputs), draw_weights(build, generator))


def standardised_mlp(inputs: int, classes: int, generator: torch.Generator) -> Network:
    """Return DomainBed's network for vectors, with standardised inputs."""
    network = vector_mlp(inputs, classes, generator)
    network.features = nn.Sequential(Standardise(inputs), network.features)
    return network


def _weights_of(inputs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weights of inputs ``[n]``, in the widest type; 1 for each if None."""
    if weights is None:
        return torch.ones(len(inputs), dtype=widest(inputs.device), device=inputs.device)
    return weights.to(inputs.device, widest(inputs.device))


def measure_inputs(module: nn.Module, inputs: Tensor, weights: Tensor | None = None) -> None:
    """Measure quantiles, means and deviations of ``inputs`` for the layers that need them.

    These layers are the first of a network. What follows ``WithRanks`` measures its output.

    Args:
        weights: how much each input counts, ``[n]``; an input of weight 2 counts as two.
    """
    for part in module.modules():
        if isinstance(part, (WithRanks, Standardise)):
            inputs = inputs.to(next(part.buffers()).device)
            part.measure(inputs, weights)
            if isinstance(part, WithRanks):
                inputs = part(inputs)


def fold_standardisation(network: Network) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a ``linear`` head for features that are not standardised."""
    standardise, head = network.features, network.classifier
    if not isinstance(standardise, Standardise) or not isinstance(head, nn.Linear):
        raise TypeError("only the network 'linear' can be folded")
    weight = head.weight.detach().double() / standardise.std.double()
    bias = head.bias.detach().double() - weight @ standardise.mean.double()
    return weight.to(head.weight.dtype), bias.to(head.weight.dtype)


class WideBlock(nn.Module):
    """Two 3 × 3 convolutions, each after batch norm and ReLU, plus a shortcut.

    The stride is that of the second convolution. The shortcut is a 1 × 1 convolution if the shape
    changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, padding=1)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.conv1(self.bn1(inputs).relu())
        added: Tensor = self.conv2(self.bn2(hidden).relu()) + self.shortcut(inputs)
        return added


def wide_resnet(channels: int, classes: int, generator: torch.Generator) -> Network:
    """Return the network for 32 × 32 images: depth 16, width 2, 128 features.

    Its batch-norm statistics follow the batches in training, as DomainBed leaves them.
    """

    def build() -> Network:
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1)]
        before = 16
        for outputs, stride in ((32, 1), (64, 2), (128, 2)):
            layers += [WideBlock(before, outputs, stride), WideBlock(outputs, outputs, 1)]
            before = outputs
        layers += [nn.BatchNorm2d(before, momentum=0.9), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
        return Network(nn.Sequential(*layers), nn.Linear(before, classes))

    return draw_weights(build, generator)
