"""Stages of the networks against hooks on their layers; frozen copies; distances from them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.networks import FrozenCopy, Network, efficientnet_lite0, mnist_cnn, moved_stages, resnet
from shoal.networks.backbones import with_head
from shoal.networks.base import draw_weights
from shoal.randomness import stream
from shoal.training.step import BatchRunner


def outputs_of(network: nn.Module, names: list[str], inputs: Tensor) -> list[Tensor]:
    """The outputs of these layers in a forward pass, by hooks."""
    found: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        return lambda _, __, output: found.update({name: output})

    handles = [network.get_submodule(name).register_forward_hook(record(name)) for name in names]
    network(inputs)
    for handle in handles:
        handle.remove()
    return [found[name] for name in names]


@torch.no_grad()
@pytest.mark.parametrize(
    ("depth", "widths"), [(18, (64, 64, 128, 256, 512)), (50, (64, 256, 512, 1024, 2048))]
)
def test_stages_of_a_resnet(depth: int, widths: tuple[int, ...]) -> None:
    network = resnet(depth, 3, 2, generator=stream("stages")).features.network.eval()
    inputs = torch.randn(2, 3, 64, 64, generator=stream("images"))
    *found, features = network.stages(inputs)
    names = ["maxpool", "layer1", "layer2", "layer3", "layer4"]
    expected = outputs_of(network, names, inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [tuple(one.shape[1:]) for one in found] == [
        (n, side, side) for n, side in zip(widths, (16, 16, 8, 4, 2), strict=True)
    ]
    assert network.stage_widths == widths
    assert torch.equal(features, network(inputs))


@torch.no_grad()
def test_stages_of_efficientnet_lite0() -> None:
    """After the stem, and after the last block of 1/4, 1/8, 1/16 and 1/32 of the image's side."""
    net = efficientnet_lite0(2, pretrained=False, generator=stream("stages"))
    network = net.features.network.eval()
    inputs = torch.randn(2, 3, 64, 64, generator=stream("images"))
    *found, features = network.stages(inputs)
    assert [tuple(one.shape[1:]) for one in found] == [
        (32, 32, 32),
        (24, 16, 16),
        (40, 8, 8),
        (112, 4, 4),
        (320, 2, 2),
    ]
    assert network.stage_widths == (32, 24, 40, 112, 320)
    sides = [tuple(one.shape) for one in outputs_of(network, BLOCKS, inputs)]
    last = {shape[2:]: shape for shape in sides}  # of each resolution, the last block
    assert [tuple(one.shape) for one in found[1:]] == list(last.values())[1:]
    (final,) = outputs_of(network, BLOCKS[-1:], inputs)
    assert torch.equal(found[-1], final)
    assert torch.equal(features, network(inputs))


BLOCKS = [f"_blocks.{k}" for k in range(16)]


def small(dropout: float = 0.0, frozen: bool = True) -> Network:
    def build() -> nn.Module:
        layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    generator = stream("small")
    network = draw_weights(build, generator)
    nn.init.uniform_(network[1].running_var, 0.5, 2.0, generator=generator)
    return with_head(network, 4, 3, dropout, frozen, None, generator).double()


IMAGES = torch.randn(6, 2, 6, 6, generator=stream("images"), dtype=torch.float64)


def test_a_copy_has_no_weights_and_never_moves() -> None:
    network = small(frozen=False)
    initial = FrozenCopy(network.features, 4)
    assert not list(initial.parameters())
    assert initial.widths == (4,)
    before = {key: value.clone() for key, value in initial.state_dict().items()}
    assert {f"network.{key}" for key in network.features.network.state_dict()} == set(before)
    initial.train()
    assert not any(part.training for part in initial.modules())
    with torch.no_grad():
        network.features.network[0].weight.add_(1.0)
    moved_stages(network.train().features, initial, IMAGES)
    for key, value in initial.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert int(network.features.network[1].num_batches_tracked) == 1


PIXELS = [(k, j) for k in range(4) for j in range(4)]


class Staged(nn.Module):
    """An image of several pixels as a first stage, a vector as the second, then the features."""

    stage_widths = (4, 3)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Linear(64, 3)

    def stages(self, inputs: Tensor) -> tuple[Tensor, ...]:
        image = torch.tanh(self.first(inputs))
        vector = torch.tanh(self.second(image.flatten(1)))
        return image, vector, 2 * vector

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stages(inputs)[-1]


def staged(dropout: float = 0.0) -> Network:
    generator = stream("staged")
    return with_head(draw_weights(Staged, generator), 3, 3, dropout, True, None, generator).double()


@pytest.mark.parametrize("runner", [None, BatchRunner(None), BatchRunner(4)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_distances(runner: BatchRunner | None, dropout: float) -> None:
    """Entry by entry; whole, in parts, and with the dropout of the head."""
    network, twin = staged(dropout), staged(dropout)
    initial = FrozenCopy(network.features, 3)
    with torch.no_grad():
        for one in (network, twin):
            one.features.network.first.weight.mul_(1.3)
    network.features.runner = runner
    features, (images, vectors) = moved_stages(network.features, initial, IMAGES)
    torch.testing.assert_close(features, twin.features(IMAGES))
    old = staged().features.network
    for i, x in enumerate(IMAGES):
        now, before = (net.stages(x[None]) for net in (twin.features.network, old))
        for c in range(4):
            squares = [(now[0][0, c, k, j] - before[0][0, c, k, j]) ** 2 for k, j in PIXELS]
            torch.testing.assert_close(images[i, c], sum(squares) / 16)
        torch.testing.assert_close(vectors[i], (now[1] - before[1])[0] ** 2)


@pytest.mark.parametrize("runner", [None, BatchRunner(4)])
def test_gradients_reach_the_network_alone(runner: BatchRunner | None) -> None:
    network = staged()
    initial = FrozenCopy(network.features, 3)
    with torch.no_grad():
        network.features.network.first.weight.mul_(1.3)
    network.features.runner = runner
    _, gaps = moved_stages(network.features, initial, IMAGES)
    found = torch.autograd.grad(gaps[0].sum(), network.features.network.first.weight)
    image = network.features.network.stages(IMAGES)[0]
    old = staged().features.network.stages(IMAGES)[0].detach()
    expected = torch.autograd.grad(
        ((image - old) ** 2).sum() / 16, network.features.network.first.weight
    )
    torch.testing.assert_close(found, expected)
    assert not any(value.requires_grad for value in initial.buffers())


def test_features_alone_are_the_stage_of_any_other_network() -> None:
    network = mnist_cnn(2, 3, stream("cnn")).double()
    initial = FrozenCopy(network.features, 128)
    assert initial.widths == (128,)
    images = torch.randn(2, 2, 12, 12, generator=stream("images"), dtype=torch.float64)
    with torch.no_grad():
        before = network.features(images)
        network.features[0].weight.mul_(1.3)
    features, (gap,) = moved_stages(network.features, initial, images)
    torch.testing.assert_close(features, network.features(images))
    torch.testing.assert_close(gap, (features - before).square())


def test_half_precision_is_compared_in_float32() -> None:
    network = staged().to(torch.bfloat16)
    initial = FrozenCopy(network.features, 3)
    for runner in (None, BatchRunner(4)):
        network.features.runner = runner
        features, gaps = moved_stages(network.features, initial, IMAGES.bfloat16())
        assert features.dtype == torch.bfloat16
        assert all(gap.dtype == torch.float32 for gap in gaps)
