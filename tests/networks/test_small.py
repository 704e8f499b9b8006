"""Networks for vectors and for 32 × 32 images: counts, values against plain arithmetic, draws."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.networks import MLP, Network, mnist_cnn, vector_mlp, wide_resnet
from shoal.randomness import stream


def test_wide_resnet_has_the_weights_counted_by_hand() -> None:
    def block(a: int, b: int) -> int:
        shortcut = a * b + b if a != b else 0
        return 2 * a + (9 * a * b + b) + 2 * b + (9 * b * b + b) + shortcut

    blocks = [(16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    for channels in (1, 3, 4):
        net = wide_resnet(channels, 7, stream("x"))
        by_hand = 9 * channels * 16 + 16 + sum(block(a, b) for a, b in blocks) + 2 * 128
        assert sum(p.numel() for p in net.features.parameters()) == by_hand
        assert sum(p.numel() for p in net.classifier.parameters()) == 129 * 7
        images = torch.randn(2, channels, 32, 32)
        assert net.features(images).shape == (2, 128)
        assert net(images).shape == (2, 7)
    assert by_hand == 691_520 + 144


def plain_wide_resnet(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """DomainBed's Wide ResNet 16-2 in eval mode, written out."""

    def conv(x: Tensor, name: str, stride: int = 1, padding: int = 1) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            weights[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * weight + bias).clamp(min=0)

    x = conv(x, "0")
    for i, (stride, changes) in enumerate([(1, 1), (1, 0), (2, 1), (1, 0), (2, 1), (1, 0)], 1):
        y = conv(norm(x, f"{i}.bn1"), f"{i}.conv1")
        y = conv(norm(y, f"{i}.bn2"), f"{i}.conv2", stride)
        x = y + (conv(x, f"{i}.shortcut", stride, 0) if changes else x)
    return norm(x, "7").mean((2, 3))


def test_wide_resnet_computes_what_the_facts_say() -> None:
    net = wide_resnet(3, 2, stream("x")).double()
    generator = stream("statistics")
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for values in (part.running_mean, part.running_var, part.weight, part.bias):
                values.data.uniform_(0.5, 1.5, generator=generator)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=generator)
    expected = plain_wide_resnet(net.features.state_dict(), images)
    torch.testing.assert_close(net.features.eval()(images), expected)


def test_the_last_batch_norm_of_wide_resnet_has_its_momentum() -> None:
    net = wide_resnet(3, 2, stream("x"))
    momenta = [m.momentum for m in net.features.modules() if isinstance(m, nn.BatchNorm2d)]
    assert momenta == [0.1] * 12 + [0.9]
    net.features(torch.randn(2, 3, 32, 32))
    assert (net.features[7].num_batches_tracked == 1).all()  # as DomainBed leaves it: not frozen


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_vector_mlp(depth: int) -> None:
    net = vector_mlp(6, 3, stream("x"), width=8, depth=depth)
    sizes = [(m.in_features, m.out_features) for m in net.features if isinstance(m, nn.Linear)]
    assert sizes == [(6, 8), *[(8, 8)] * (depth - 1)]
    kinds = [type(m).__name__ for m in net.features]
    assert kinds == [*["Linear", "Dropout", "ReLU"] * (depth - 1), "Linear"]
    assert net(torch.randn(4, 6)).shape == (4, 3)
    assert net.features(torch.randn(4, 6)).shape == (4, 8)
    default = vector_mlp(6, 3, stream("x"))
    assert [m.out_features for m in default.features if isinstance(m, nn.Linear)] == [256] * 3


def test_dropout_of_vector_mlp() -> None:
    nets = [vector_mlp(6, 3, stream("x"), 64, 3, dropout) for dropout in (0.5, 0.0)]
    x = torch.randn(4, 6)
    with_dropout, without = (net.features(x) for net in nets)
    assert not torch.equal(with_dropout, without)
    assert torch.equal(nets[0].eval().features(x), without)
    seeds = {int(layer.draws.key) for layer in nets[0].features if hasattr(layer, "draws")}
    assert len(seeds) == 2
    with pytest.raises(ValueError, match="depth must be 2 or more, got 1"):
        vector_mlp(6, 3, stream("x"), depth=1)


@pytest.mark.parametrize("build", [wide_resnet, mnist_cnn, vector_mlp])
def test_draws_are_the_streams_alone(build) -> None:
    before = torch.get_rng_state()
    one, same, other = (build(3, 2, stream("net", seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name]), name
    assert not torch.equal(one.classifier.weight, other.classifier.weight)


def test_small_networks_expect_no_preprocessing() -> None:
    for net in (mnist_cnn(2, 2, stream("x")), MLP(2, 3, 4, stream("x"))):
        assert isinstance(net, Network)
        assert net.preprocessing is None
