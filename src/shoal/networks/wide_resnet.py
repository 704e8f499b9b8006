"""Wide ResNet 16-2 for 32 × 32 images (Zagoruyko and Komodakis, 2016), as DomainBed has it."""

import torch
from torch import Tensor, nn

from .base import Network
from .initialise import drawn


class Block(nn.Module):
    """Two 3 × 3 convolutions, each after batch norm and ReLU, beside a shortcut.

    The stride is that of the second convolution. The shortcut is a 1 × 1 convolution where the
    shape changes.
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
            layers += [Block(before, outputs, stride), Block(outputs, outputs, 1)]
            before = outputs
        layers += [nn.BatchNorm2d(before, momentum=0.9), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
        return Network(nn.Sequential(*layers), nn.Linear(before, classes))

    return drawn(build, generator)
