"""Networks for a data set: by the shape of its inputs, as DomainBed chooses it, or by name."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..checks import choose
from .backbones import PACKAGES, backbone
from .base import Network
from .efficientnet_lite import efficientnet_lite0
from .resnet import resnet
from .small import mnist_cnn, vector_mlp
from .standardised import linear, standardised_mlp
from .wide_resnet import wide_resnet

# What can be named, and what its inputs are; beside these the models of other packages.
NETWORKS = {
    "mlp": "vectors",
    "standardised-mlp": "vectors of a table, each column standardised first",
    "linear": "vectors of features, each standardised first",
    "mnist-cnn": "28 × 28 images",
    "wide-resnet": "32 × 32 images",
    "resnet18": "224 × 224 images",
    "resnet50": "224 × 224 images",
    "efficientnet-lite0": "224 × 224 images",
}
VECTORS = ("mlp", "standardised-mlp", "linear")
BY_SIZE = {28: "mnist-cnn", 32: "wide-resnet", 224: "resnet50"}


def for_data(
    shape: Sequence[int],
    classes: int,
    extra_channels: int = 0,
    dropout: float = 0.0,
    name: str | None = None,
    weights: str | Path | None = None,
    frozen_statistics: bool = True,
    mlp_width: int = 256,
    mlp_depth: int = 3,
    mlp_dropout: float = 0.0,
    *,
    generator: torch.Generator,
) -> Network:
    """Return the network for inputs of this shape, its weights drawn from ``generator``.

    Args:
        shape: of one input: ``[d]``, or ``[channels, height, width]``.
        classes: C.
        extra_channels: what the method adds to the channels of an image.
        dropout: before the head of a large network; small ones have none, as in DomainBed.
        name: one of ``NETWORKS``, or a model of another package as in ``backbone``; None chooses
            by shape: the MLP for vectors, the MNIST CNN for 28 × 28, the Wide ResNet for 32 × 32
            and ResNet-50 for 224 × 224.
        weights: of a large network, as in ``backbone``.
        frozen_statistics: of a large network, as in ``backbone``.
        mlp_width: features and hidden units of the MLP.
        mlp_depth: its linear layers.
        mlp_dropout: between them.
        generator: of all weights and of the dropout.
    """
    name = _by_shape(shape) if name is None else name
    if ":" not in name:
        choose("network", name, (*NETWORKS, *(f"{package}:…" for package in PACKAGES)))
    _check_inputs(name, shape, extra_channels)
    small = {*VECTORS, "mnist-cnn", "wide-resnet"}
    if name in small and weights is not None:
        raise ValueError(f"the network {name} begins with drawn weights; weights must be None")
    channels = shape[0] + extra_channels
    if name == "mlp":
        return vector_mlp(shape[0], classes, generator, mlp_width, mlp_depth, mlp_dropout)
    if name in VECTORS:
        on_vectors = linear if name == "linear" else standardised_mlp
        return on_vectors(shape[0], classes, generator)
    if name in small:
        build = mnist_cnn if name == "mnist-cnn" else wide_resnet
        return build(channels, classes, generator)
    if name == "efficientnet-lite0":
        if weights not in (None, "imagenet"):
            raise ValueError(f"efficientnet-lite0 has no weights but 'imagenet', got {weights!r}")
        pretrained = weights is not None
        return efficientnet_lite0(
            classes, dropout, pretrained, channels, frozen_statistics, generator=generator
        )
    if name in NETWORKS:
        depth = int(name.removeprefix("resnet"))
        return resnet(
            depth, channels, classes, dropout, weights, frozen_statistics, generator=generator
        )
    return backbone(
        name, channels, classes, dropout, weights, frozen_statistics, generator=generator
    )


def _by_shape(shape: Sequence[int]) -> str:
    if len(shape) == 1:
        return "mlp"
    if len(shape) == 3 and shape[1] == shape[2] and shape[2] in BY_SIZE:
        return BY_SIZE[shape[2]]
    sizes = ", ".join(f"{size} × {size}" for size in BY_SIZE)
    raise ValueError(
        f"no network is known for inputs of shape {list(shape)}: vectors [d] and images "
        f"[channels, height, width] of {sizes} have one; resize the images, give the name of a "
        "network, or make one of your own features with from_module"
    )


def _check_inputs(name: str, shape: Sequence[int], extra_channels: int) -> None:
    images = len(shape) == 3
    if len(shape) not in (1, 3) or min(shape) < 1 or images == (name in VECTORS):
        wanted = "[d]" if name in VECTORS else "[channels, height, width]"
        raise ValueError(f"{name} takes inputs of shape {wanted}, got {list(shape)}")
    if extra_channels < 0 or (extra_channels and not images):
        raise ValueError(
            f"extra_channels must be 0 or more, and 0 for vectors, got {extra_channels}"
        )
    if name == "wide-resnet" and tuple(shape[1:]) != (32, 32):
        raise ValueError(f"wide-resnet takes 32 × 32 images, got {shape[1]} × {shape[2]}")
    if name == "efficientnet-lite0" and tuple(shape[1:]) != (224, 224):
        raise ValueError(f"efficientnet-lite0 takes 224 × 224 images, got {shape[1]} × {shape[2]}")
