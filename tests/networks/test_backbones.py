"""A user's own features: the head's width, frozen batch norm, dropout; no package is needed."""

import copy

import pytest
import torch
from torch import nn

from shoal.algorithms import find
from shoal.networks import Dropout, Network, backbone, from_module
from shoal.networks.backbones import _run_once, adapt_channels
from shoal.networks.base import IMAGENET
from shoal.randomness import stream
from tests.test_capture_safety import NoQuestions

IMAGES = torch.randn(8, 3, 6, 6, generator=stream("images"))


def own() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
    )


def network(frozen: bool = True, dropout: float = 0.0) -> Network:
    return from_module(own(), 5, IMAGES, dropout, frozen, generator=stream("head"))


def test_the_width_is_found() -> None:
    module = own()
    net = from_module(module, 5, IMAGES[:1], preprocessing=IMAGENET, generator=stream("head"))
    assert net.classifier.weight.shape == (5, 64)
    assert net.features.network is module
    assert net(IMAGES).shape == (8, 5)
    assert net.preprocessing == IMAGENET


def test_looking_at_the_width_leaves_modes_and_statistics() -> None:
    module = own()
    module[0].eval()
    before = [value.clone() for value in module.buffers()]
    seen = []
    module[3].register_forward_hook(lambda part, *_: seen.append(part.training))
    assert _run_once(module, IMAGES).shape == (8, 64)
    assert seen == [False]
    assert [part.training for part in module] == [False, True, True, True, True]
    assert all(torch.equal(a, b) for a, b in zip(module.buffers(), before, strict=True))


def test_the_head_is_where_the_features_are() -> None:
    net = from_module(own().double(), 5, IMAGES.double(), 0.5, generator=stream("head"))
    assert net(IMAGES.double()).dtype == torch.float64
    meta = own().to("meta")
    net = from_module(meta, 5, IMAGES.to("meta"), 0.5, generator=stream("head"))
    assert all(value.is_meta for value in net.state_dict().values())


def test_features_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"features must be \[n, p\].*\[8, 3, 6, 6\]"):
        from_module(nn.Identity(), 5, IMAGES, generator=stream("x"))
    with pytest.raises(TypeError, match="features must be a tensor, got tuple"):
        from_module(nn.LSTM(6, 2), 5, IMAGES[:, 0], generator=stream("x"))


def statistics(net: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for name, value in net.named_buffers() if "running" in name]


@pytest.mark.parametrize("name", ["erm", "mtl"])
@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_statistics_survive_training(name: str, frozen: bool) -> None:
    net = network(frozen)
    norm = net.features.network[1]
    norm.running_mean.fill_(0.3)
    method = find(name)(net, 2)
    before, weight, bias = statistics(net), norm.weight.clone(), norm.bias.clone()
    for _ in range(2):
        method.eval()
        method.train()
        assert norm.training is not frozen
        assert net.features.network[3].training and net.features.dropout.training
        method.update([(IMAGES[:4], torch.tensor([0, 1, 2, 3])), (IMAGES[4:], torch.arange(4))])
    same = [torch.equal(a, b) for a, b in zip(statistics(net), before, strict=True)]
    assert all(same) if frozen else not any(same)
    assert not torch.equal(norm.weight, weight) and not torch.equal(norm.bias, bias)
    method.eval()
    assert not any(part.training for part in method.modules())


def test_frozen_from_the_start_and_for_all_kinds_of_batch_norm() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(108))
    net = from_module(module, 5, IMAGES, frozen_statistics=True, generator=stream("x"))
    assert net.training and not module[1].training
    net.features.network[1] = nn.SyncBatchNorm(108)
    assert not net.train().features.network[1].training


def test_dropout_acts_in_training_only() -> None:
    net, without = network(dropout=0.5), network()
    for each in (net, without):
        each.features.network[3].p = 0.0
    features, expected = net.features(IMAGES), without.features(IMAGES)
    kept = features != 0
    assert torch.equal(features[kept], (expected / 0.5)[kept])
    positive = expected > 0
    assert 0.35 < float(kept[positive].double().mean()) < 0.65
    assert not torch.equal(net.features(IMAGES), features)
    net.eval()
    assert torch.equal(net.features(IMAGES), expected)
    assert torch.equal(net.classifier.weight, without.classifier.weight)


def test_dropout_is_replayed_from_the_state_dict() -> None:
    before = torch.get_rng_state()
    net = Dropout(0.3, stream("x"))
    net(IMAGES)
    state = copy.deepcopy(net.state_dict())
    expected = net(IMAGES)
    again = Dropout(0.3, stream("x"))
    assert not torch.equal(again(IMAGES), expected)
    again.load_state_dict(state)
    assert torch.equal(again(IMAGES), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(Dropout(0.3, stream("y"))(IMAGES), Dropout(0.3, stream("x"))(IMAGES))
    assert list(state) == ["draws.count"]
    assert "rate=0.3" in repr(net)


def test_a_step_with_dropout_can_be_captured() -> None:
    method = find("erm")(network(dropout=0.5), 1)
    batches = [(IMAGES, torch.arange(8) % 5)]
    for _ in range(2):
        method.update(batches)
    places = {name: value.data_ptr() for name, value in method.state_dict().items()}
    with NoQuestions():
        method.update(batches)
    assert {name: value.data_ptr() for name, value in method.state_dict().items()} == places
    assert int(method.model.features.dropout.draws.count) == 3


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rates_that_mean_nothing(rate: float) -> None:
    with pytest.raises(ValueError, match="dropout must be 0 or more and below 1"):
        Dropout(rate, stream("x"))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_channels_have_the_filters_of_colours_in_turn(channels: int) -> None:
    module = own()
    before = module[0].weight.detach().clone()
    assert adapt_channels(module, channels) is module
    assert module[0].weight.shape == (4, channels, 3, 3)
    for i in range(channels):
        assert torch.equal(module[0].weight[:, i], before[:, i % 3])
    assert module[0].weight.requires_grad and module[0].weight.is_leaf
    assert module(torch.randn(2, channels, 6, 6)).shape == (2, 64)
    assert f"Conv2d({channels}, 4" in repr(module)
    assert module[3].p == 0


class DropPath(nn.Module):
    """Found by the name of its class, which is timm's."""

    drop_prob = 0.2


def test_what_drops_whole_paths_is_off() -> None:
    module = nn.Sequential(own(), DropPath())
    assert adapt_channels(module, 3)[1].drop_prob == 0


@pytest.mark.parametrize("module", [nn.Conv2d(1, 2, 3), nn.Linear(3, 2)])
def test_channels_that_cannot_be_given(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"{type(module).__name__} cannot take 4 channels"):
        adapt_channels(module, 4)
    with pytest.raises(ValueError, match="cannot take 0 channels"):
        adapt_channels(own(), 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet34", "'resnet34' names no package; write torchvision:resnet34 or timm:resnet34"),
        ("torchvison:resnet34", "unknown package 'torchvison'; did you mean 'torchvision'"),
    ],
)
def test_names_without_a_package(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backbone(name, 3, 2, generator=stream("x"))
