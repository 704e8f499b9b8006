"""ResNet: torchvision's ResNet-18 and ResNet-50, their weights and names, without torchvision."""

from pathlib import Path

import torch
from torch import Tensor, nn

from .backbones import adapt_channels, with_head
from .base import IMAGENET, Network, build_seeded
from .gpu_kernels import first_convolution, norm_activation
from .weights import load_weights, weights_file

# Blocks of each of the four stages, by depth.
STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
# Files of torchvision's weights, by depth and version.
VERSIONS = {
    18: {"IMAGENET1K_V1": "resnet18-f37072fd.pth"},
    50: {"IMAGENET1K_V1": "resnet50-0676ba61.pth", "IMAGENET1K_V2": "resnet50-11ad3fa6.pth"},
}


def resnet(
    depth: int,
    channels: int,
    classes: int,
    dropout: float = 0.0,
    weights: str | Path | None = None,
    frozen_statistics: bool = True,
    *,
    generator: torch.Generator,
) -> Network:
    """Return a ResNet of 18 (512 features) or 50 layers (2048), with a new head.

    Batch norm keeps the statistics of the weights, while its weight and bias are trained. The
    arguments are those of ``backbone``; weights of ImageNet are fetched once.
    """
    if depth not in STAGES:
        raise ValueError(
            f"depth must be 18 or 50, got {depth}; for others call backbone('torchvision:resnet…')"
        )
    network = build_seeded(lambda: ResNet(depth), generator)
    if weights is not None:
        load_weights(network, weights_file(f"resnet{depth}", weights, VERSIONS[depth]), ["fc"])
    return with_head(
        adapt_channels(network, channels),
        network.width,
        classes=classes,
        dropout=dropout,
        frozen_statistics=frozen_statistics,
        preprocessing=IMAGENET,
        generator=generator,
    )


class ResNet(nn.Module):
    """The network of He et al. (2016) without its head, as torchvision names and draws it."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        block: type[Block | Bottleneck] = Block if depth == 18 else Bottleneck
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inner, stages = 64, []
        for number, blocks in enumerate(STAGES[depth]):
            layers: list[nn.Module] = []
            for k in range(blocks):
                stride = 2 if number and not k else 1
                layers.append(block(inner, 64 * 2**number, stride))
                inner = 64 * 2**number * block.expansion
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.width = inner
        self.stage_widths = (64, *(64 * 2**number * block.expansion for number in range(4)))
        nn.Linear(inner, 1000)  # its draws come before those of the convolutions
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: Tensor) -> Tensor:
        found = self._stem(inputs)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            found = stage(found)
        pooled: Tensor = self.avgpool(found).flatten(1)
        return pooled

    def _stem(self, inputs: Tensor) -> Tensor:
        found = first_convolution(self.conv1, inputs)
        pooled: Tensor = self.maxpool(norm_activation(self.bn1, self.relu, found))
        return pooled

    def stages(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the stem, after its pooling, and of the four stages; the features.

        ``stage_widths`` has the channels of all but the features.
        """
        found = [self._stem(inputs)]
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            found.append(stage(found[-1]))
        return (*found, self.avgpool(found[-1]).flatten(1))


class Block(nn.Module):
    """Two 3 × 3 convolutions, plus a shortcut."""

    expansion = 1

    def __init__(self, inner: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut(inner, planes, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        found = norm_activation(self.bn1, self.relu, self.conv1(inputs))
        return norm_activation(self.bn2, self.relu, self.conv2(found), added(self, inputs))


class Bottleneck(nn.Module):
    """A 1 × 1 convolution to fewer channels, a 3 × 3 one, and a 1 × 1 one back, plus a shortcut."""

    expansion = 4

    def __init__(self, inner: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU()
        self.downsample = shortcut(inner, planes * self.expansion, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        found = norm_activation(self.bn1, self.relu, self.conv1(inputs))
        found = norm_activation(self.bn2, self.relu, self.conv2(found))
        return norm_activation(self.bn3, self.relu, self.conv3(found), added(self, inputs))


def shortcut(inner: int, outer: int, stride: int) -> nn.Sequential | None:
    """Return the layers of a shortcut that changes the shape; None for one that does not."""
    if stride == 1 and inner == outer:
        return None
    return nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))


def added(block: "Block | Bottleneck", inputs: Tensor) -> Tensor:
    """Return what the shortcut of a block adds."""
    if block.downsample is None:
        return inputs
    convolution, norm = block.downsample
    return norm_activation(norm, None, convolution(inputs))  # type: ignore[arg-type]
