"""Registry of networks: by name, or by the shape of the inputs as DomainBed chooses."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from ..choices import choose, nearest
from ..vision import explain_torchvision
from . import mobilenets, resnets
from .backbones import PACKAGES, backbone, check_backbone, split_name
from .base import Network
from .efficientnet_lite import efficientnet_lite0, import_package
from .mobilenets import mobilenet_v2
from .resnets import resnet
from .small import linear, mnist_cnn, standardised_mlp, vector_mlp, wide_resnet
from .weights import check_weights

#: The names of networks and their inputs; models of other packages come on top.
NETWORKS = {
    "mlp": "vectors",
    "standardised-mlp": "vectors of a table, each column standardised first",
    "linear": "vectors of features, each standardised first",
    "mnist-cnn": "28 × 28 images",
    "wide-resnet": "32 × 32 images",
    "resnet18": "224 × 224 images",
    "resnet50": "224 × 224 images",
    "mobilenet-v2": "224 × 224 images",
    "efficientnet-lite0": "224 × 224 images",
}
VECTORS = ("mlp", "standardised-mlp", "linear")
# Networks that always begin with drawn weights.
DRAWN = (*VECTORS, "mnist-cnn", "wide-resnet")
# Files of torchvision's weights, by network and version.
VERSIONS = {"mobilenet-v2": mobilenets.VERSIONS}
VERSIONS |= {f"resnet{depth}": versions for depth, versions in resnets.VERSIONS.items()}
BY_SIZE = {28: "mnist-cnn", 32: "wide-resnet", 224: "resnet50"}
LARGE = [name for name, inputs in NETWORKS.items() if inputs.startswith("224")]


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
        extra_channels: channels that the method adds to those of an image.
        dropout: before the head of a large network; small ones have none, as in DomainBed.
        name: one of ``NETWORKS``, or a model of another package as in ``backbone``; None chooses
            by shape: the MLP for vectors, the MNIST CNN for 28 × 28, the Wide ResNet for 32 × 32
            and ResNet-50 for 224 × 224.
        weights: of a large network, as in ``backbone``.
        frozen_statistics: of a large network, as in ``backbone``.
        mlp_width: features and hidden units of the MLP.
        mlp_depth: number of its linear layers.
        mlp_dropout: dropout between them.
        generator: of all weights and of the dropout.
    """
    name = _by_shape(shape) if name is None else name
    check_name(name)
    _check_inputs(name, shape, extra_channels)
    _check_weights(name, weights)
    channels = shape[0] + extra_channels
    if name == "mlp":
        return vector_mlp(shape[0], classes, generator, mlp_width, mlp_depth, mlp_dropout)
    if name in VECTORS:
        on_vectors = linear if name == "linear" else standardised_mlp
        return on_vectors(shape[0], classes, generator)
    if name in DRAWN:
        build = mnist_cnn if name == "mnist-cnn" else wide_resnet
        return build(channels, classes, generator)
    if name == "efficientnet-lite0":
        pretrained = weights is not None
        return efficientnet_lite0(
            classes, dropout, pretrained, channels, frozen_statistics, generator=generator
        )
    if name == "mobilenet-v2":
        return mobilenet_v2(
            channels, classes, dropout, weights, frozen_statistics, generator=generator
        )
    if name in NETWORKS:
        depth = int(name.removeprefix("resnet"))
        return resnet(
            depth, channels, classes, dropout, weights, frozen_statistics, generator=generator
        )
    return backbone(
        name, channels, classes, dropout, weights, frozen_statistics, generator=generator
    )


def check_name(name: str) -> None:
    """Raise if no network has this name; models of other packages are not looked up."""
    if ":" in name:
        split_name(name)
    else:
        choose("network", name, (*NETWORKS, *(f"{package}:…" for package in PACKAGES)))


def check_network(
    shape: Sequence[int], name: str | None, weights: str | Path | None, here: bool = True
) -> None:
    """Raise if ``for_data`` has no such network or weights; nothing is built or fetched.

    Args:
        shape, name, weights: as in ``for_data``.
        here: whether this machine builds it, so that its package must be installed here.
    """
    name = _by_shape(shape) if name is None else name
    check_name(name)
    _check_inputs(name, shape, 0)
    _check_weights(name, weights)
    if not here:
        return
    if name == "efficientnet-lite0":
        import_package()
    elif name not in NETWORKS:
        check_backbone(name, weights)


def _by_shape(shape: Sequence[int]) -> str:
    if len(shape) == 1:
        return "mlp"
    if len(shape) == 3 and shape[1] == shape[2] and shape[2] in BY_SIZE:
        return BY_SIZE[shape[2]]
    sizes = ", ".join(f"{size} × {size}" for size in BY_SIZE)
    raise ValueError(
        f"no network is known for inputs of shape {list(shape)}: vectors [d] and images "
        f"[channels, height, width] of {sizes} have one; resize the images, give the name of a "
        "network, or build one from your own module with from_module"
    )


def _check_weights(name: str, weights: str | Path | None) -> None:
    if name in DRAWN and weights is not None:
        raise ValueError(
            f"the network {name} begins with drawn weights and has no others, got "
            f"{str(weights)!r}; drop --weights, or give --weights none (None in Python)"
        )
    if name in VERSIONS:
        check_weights(name, weights, VERSIONS[name])
    if name == "efficientnet-lite0" and weights not in (None, "imagenet"):
        raise ValueError(f"efficientnet-lite0 has no weights but 'imagenet', got {str(weights)!r}")


def _check_inputs(name: str, shape: Sequence[int], extra_channels: int) -> None:
    images = len(shape) == 3
    if len(shape) not in (1, 3) or min(shape) < 1 or images == (name in VECTORS):
        wanted = "[d]" if name in VECTORS else "[channels, height, width]"
        raise ValueError(f"{name} takes inputs of shape {wanted}, got {list(shape)}")
    if extra_channels < 0 or (extra_channels and not images):
        raise ValueError(
            f"extra_channels must be 0 or more, and 0 for vectors, got {extra_channels}; a method "
            "that adds channels, such as ARM, takes only images"
        )
    if name == "wide-resnet" and tuple(shape[1:]) != (32, 32):
        raise ValueError(f"wide-resnet takes 32 × 32 images, got {shape[1]} × {shape[2]}")
    if name == "efficientnet-lite0" and tuple(shape[1:]) != (224, 224):
        raise ValueError(f"efficientnet-lite0 takes 224 × 224 images, got {shape[1]} × {shape[2]}")


def backbone_name(name: str) -> str:
    """Return the name by which ``for_data`` knows a network for 224 × 224 images.

    A bare name is one of shoal's own, else torchvision's, else timm's, if these are installed.
    """
    if name in LARGE or ":" in name:
        return name
    known = list(LARGE)
    packages = []
    more = "; for more: pip install 'shoal[vision]'"
    for package, listed in (("torchvision", "torchvision.models"), ("timm", "timm")):
        try:
            names = import_module(listed).list_models()
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError, RuntimeError) as error:
            more = f"; for more: {explain_torchvision(error)}"
            continue
        if name.partition(".")[0] in names:  # timm's names end in the weights: resnet50.a1_in1k
            return f"{package}:{name}"
        known += names
        packages.append(package)
    near = nearest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    where = f" and all of {' and '.join(packages)}" if packages else ""
    more = "" if packages else more
    raise ValueError(f"unknown backbone {name!r}; {hint}One of: {', '.join(LARGE)}{where}{more}")
