"""Networks: their shapes and counts, and weights drawn from a stream."""

import pytest
import torch
from torch import nn

from shoal.networks import Network, draw_weights, mnist_cnn, perceptron
from shoal.randomness import stream


@pytest.mark.parametrize(("channels", "classes", "weights"), [(2, 2, 371_136), (1, 10, 370_560)])
def test_mnist_cnn(channels: int, classes: int, weights: int) -> None:
    net = mnist_cnn(channels, classes, stream("x"))
    assert sum(p.numel() for p in net.features.parameters()) == weights
    assert sum(p.numel() for p in net.classifier.parameters()) == 129 * classes
    images = torch.randn(3, channels, 28, 28)
    assert net.features(images).shape == (3, 128)
    assert net(images).shape == (3, classes)
    kinds = [type(layer).__name__ for layer in net.features]
    assert kinds == [*["Conv2d", "ReLU", "GroupNorm"] * 4, "AdaptiveAvgPool2d", "Flatten"]
    assert [m.stride for m in net.features if isinstance(m, nn.Conv2d)] == [
        (1, 1),
        (2, 2),
        (1, 1),
        (1, 1),
    ]


def test_perceptron() -> None:
    net = perceptron(6, 3, 8, 4, 0.5)
    sizes = [(m.in_features, m.out_features) for m in net if isinstance(m, nn.Linear)]
    assert sizes == [(6, 8), (8, 8), (8, 8), (8, 3)]
    assert [type(m).__name__ for m in net][1:3] == ["Dropout", "ReLU"]


def build() -> Network:
    features = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
    return Network(features, nn.Sequential(nn.Linear(12, 5), nn.LayerNorm(5)))


def test_weights_come_from_the_stream_as_torch_draws_them() -> None:
    before = torch.get_rng_state()
    one, same, other = (draw_weights(build, stream("net", seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.features[0].weight, other.features[0].weight)
    big = draw_weights(lambda: nn.Linear(400, 300), stream("big"))
    for values in (big.weight, big.bias):
        assert values.abs().max() <= 1 / 20
        assert values.abs().max() > 0.9 / 20
    assert float(big.weight.std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.01)
    assert (one.features[1].running_var == 1).all() and (one.features[1].weight == 1).all()


def test_embeddings_are_normal() -> None:
    one, other = (draw_weights(lambda: nn.Embedding(100, 50), stream("e", seed)) for seed in (0, 1))
    assert float(one.weight.std()) == pytest.approx(1, rel=0.03)
    assert not torch.equal(one.weight, other.weight)


def test_like_another_network() -> None:
    like = nn.Linear(1, 1, device="meta", dtype=torch.bfloat16)
    module = draw_weights(build, stream("x"), like=like)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in module.parameters())


def test_unknown_weights_are_not_left_to_chance() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("scale", torch.full((2,), 2.0))

    class Gained(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.gain = nn.Parameter(torch.ones(2))

    for build in (lambda: nn.MultiheadAttention(4, 2), Scaled, Gained):
        with pytest.raises(TypeError, match="cannot be drawn from a stream"):
            draw_weights(build, stream("x"))
