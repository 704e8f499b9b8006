"""ResNet-50 as DomainBed trains it: random weights, batch-norm statistics frozen, linear head."""

import sys
from typing import Any

import torch
from torch import nn

from shoal.networks import Network

SCHEMAS = torch.library.Library("torchvision", "FRAGMENT")


def resnet50(channels: int, classes: int) -> Network:
    """Return a ResNet-50 for images of any number of channels."""
    features = _models().resnet50(weights=None)
    if channels != 3:
        features.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    features.fc = nn.Identity()
    for module in features.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return Network(features, nn.Linear(2048, classes))


def _models() -> Any:
    """Return torchvision.models, even if torchvision's compiled ops belong to another build."""
    try:
        from torchvision import models
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for op in ("nms", "qnms"):
            SCHEMAS.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import models
    return models
