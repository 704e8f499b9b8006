"""ResNet-18 and ResNet-50 (He et al., 2016) as DomainBed trained them for the paper's tables."""

from pathlib import Path

import torch

from .backbones import backbone
from .base import Network

DEPTHS = (18, 50)


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
    """Return torchvision's ResNet of 18 (512 features) or 50 layers (2048), with a new head.

    Batch-norm statistics stay those of the weights, while its weight and bias are trained. The
    arguments are those of ``backbone``.
    """
    if depth not in DEPTHS:
        raise ValueError(
            f"depth must be 18 or 50, got {depth}; others by backbone('torchvision:resnet…')"
        )
    return backbone(
        f"torchvision:resnet{depth}",
        channels,
        classes,
        dropout,
        weights,
        frozen_statistics,
        generator=generator,
    )
