"""ARM against its context network and support sets, written out."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.arm import ARM, ARMHparams
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import Hparams, defaults, draw
from shoal.networks import Network, draw_weights, mnist_cnn
from shoal.randomness import stream
from tests.test_capture_safety import NoQuestions

from .plain import CLASSES, Plain, make, tiny

CHANNELS, SIDE = 2, 8


def tiny_cnn(channels: int = CHANNELS + 1) -> Network:
    """A network on 8 × 8 images, in float64, with no kink."""

    def build() -> Network:
        layers = [nn.Conv2d(channels, 4, 3, 2, 1), nn.Tanh(), nn.Conv2d(4, 5, 3, 2, 1), nn.Tanh()]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Network(nn.Sequential(*layers, *pooled), nn.Linear(5, CLASSES))

    return draw_weights(build, stream("tiny cnn")).double()


def make_images(step: int, sizes: Sequence[int] = (4, 6, 5)) -> list[Batch]:
    found = []
    for domain, n in enumerate(sizes):
        generator = stream("images", step, domain)
        shape = (n, CHANNELS, SIDE, SIDE)
        inputs = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5 * domain
        found.append((inputs, torch.randint(CLASSES, (n,), generator=generator)))
    return found


def make_one(num_domains: int = 3, **hparams: Any) -> ARM:
    algorithm = make("arm", num_domains, tiny_cnn(), **hparams)
    assert isinstance(algorithm, ARM)
    return algorithm


class Context:
    """The context network, written out; layers 0, 3 and 6 are convolutions, 1 and 4 norms."""

    def __init__(self, network: nn.Module) -> None:
        self.weights = {
            name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()
        }
        self.mean = {layer: torch.zeros(64, dtype=torch.float64) for layer in (1, 4)}
        self.variance = {layer: torch.ones(64, dtype=torch.float64) for layer in (1, 4)}

    def __call__(self, images: Tensor, training: bool) -> Tensor:
        x = images
        for layer in (0, 3, 6):
            x = F.conv2d(x, self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"], 1, 2)
            if layer == 6:
                return x
            x = self.norm(x, layer + 1, training)
            x = torch.where(x > 0, x, 0)
        raise AssertionError

    def norm(self, x: Tensor, layer: int, training: bool) -> Tensor:
        mean, variance = self.mean[layer], self.variance[layer]
        if training:  # over all images and places
            rows = x.permute(1, 0, 2, 3).reshape(64, -1)
            m = rows.shape[1]
            mean = rows.sum(1) / m
            variance = ((rows - mean[:, None]) ** 2).sum(1) / m
            self.mean[layer] = 0.9 * self.mean[layer] + 0.1 * mean.detach()
            self.variance[layer] = 0.9 * self.variance[layer] + 0.1 * variance.detach() * m / (
                m - 1
            )
        weight, bias = self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"]
        x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5) ** 0.5
        return x * weight[:, None, None] + bias[:, None, None]


def logits_of(plain: Plain, images: Tensor, contexts: Tensor, sizes: Sequence[int]) -> Tensor:
    """Image by image: each has the mean context of its support set as one more channel."""
    found, start = [], 0
    for n in sizes:
        mean = sum(contexts[k] for k in range(start, start + n)) / n
        for k in range(start, start + n):
            found.append(plain.logits(torch.cat([images[k], mean])[None])[0])
        start += n
    return torch.stack(found)


def follow(algorithm: ARM, sizes: Sequence[int], steps: int, decay: float = 0.0) -> None:
    """Compare loss, every weight and the context network's statistics with an oracle's."""
    plain, context = Plain(algorithm), Context(algorithm.context)
    start = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    for step in range(steps):
        batches = make_images(step, sizes)
        terms = algorithm.update(batches)
        images = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        logits = logits_of(plain, images, context(images, training=True), sizes)
        loss = 0.0
        for row, y in zip(logits, labels, strict=True):
            loss = loss - row.log_softmax(0)[y] / len(labels)
        both = {f"model.{name}": p for name, p in plain.weights.items()}
        both |= {f"context.{name}": p for name, p in context.weights.items()}
        found = torch.autograd.grad(loss, list(both.values()))
        plain.adam(weight_decay=decay).step(both, dict(zip(both, found, strict=True)))
        torch.testing.assert_close(terms["loss"], loss.detach(), rtol=1e-9, atol=1e-9)
        for name, p in algorithm.named_parameters():
            torch.testing.assert_close(p, both[name], rtol=1e-8, atol=1e-8, msg=name)
        for layer in (1, 4):
            norm = algorithm.context[layer]
            torch.testing.assert_close(norm.running_mean, context.mean[layer])
            torch.testing.assert_close(norm.running_var, context.variance[layer])
    moved = {name for name, p in algorithm.named_parameters() if not torch.equal(p, start[name])}
    assert moved == set(start), f"never trained: {set(start) - moved}"

    algorithm.eval()
    images = make_images(9, (8,))[0][0]
    for size, sets in ((8, (8,)), (4, (4, 4)), (1, (1,) * 8), (5, (8,)), (16, (8,))):
        given = type(algorithm.hparams)(batch_size=size)
        algorithm.hparams = given
        expected = logits_of(plain, images, context(images, training=False), sets)
        torch.testing.assert_close(algorithm.predict(images), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (3,), (1,), (1, 2, 3, 1, 2, 4)])
def test_arm(sizes: tuple[int, ...]) -> None:
    follow(make_one(len(sizes)), sizes, steps=3)


def test_weight_decay_reaches_the_context_network() -> None:
    follow(make_one(2, weight_decay=0.2), (3, 2), 3, decay=0.2)


def test_support_sets_do_not_see_each_other() -> None:
    algorithm = make_one(batch_size=4).eval()
    images = make_images(0, (8,))[0][0]
    changed = torch.cat([images[:4], images[4:] + 1])
    before, after = algorithm.predict(images), algorithm.predict(changed)
    torch.testing.assert_close(before[:4], after[:4], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[4:], after[4:])
    # Seven images make one set: all of them see a change of the last.
    before, after = algorithm.predict(images[:7]), algorithm.predict(changed[:7])
    assert not torch.isclose(before[0], after[0], rtol=1e-6, atol=0).any()


def test_prediction_moves_no_state() -> None:
    algorithm = make_one().eval()
    before = {name: tensor.clone() for name, tensor in algorithm.state_dict().items()}
    algorithm.predict(make_images(0)[0][0])
    for name, tensor in algorithm.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_model_must_take_one_channel_more() -> None:
    assert ARM.extra_channels == 1
    with pytest.raises(ValueError, match=r"extra_channels = 1 more, got one of 1"):
        ARM(tiny_cnn(1), 3)
    with pytest.raises(ValueError, match=r"extra_channels = 1 more, got none"):
        ARM(tiny(), 3)
    algorithm = make("arm", 1, tiny_cnn(CHANNELS))
    with pytest.raises(ValueError, match=r"1 \+ 1 \(extra_channels\) channels, got \[5, 2, 8, 8\]"):
        algorithm.update(make_images(0, (5,)))
    with pytest.raises(ValueError, match=r"images \[n, 1, height, width\].* got \[5, 6\]"):
        algorithm.predict(torch.zeros(5, 6))


def test_the_networks_fit_domainbeds_images() -> None:
    algorithm = ARM(mnist_cnn(2 + ARM.extra_channels, 2, stream("cnn")), 1)
    images = torch.zeros(3, 2, 28, 28)
    assert algorithm.context(images).shape == (3, 1, 28, 28)
    assert algorithm.predict(images).shape == (3, 2)
    shapes = [tuple(p.shape) for p in algorithm.context.parameters() if p.ndim == 4]
    assert shapes == [(64, 2, 5, 5), (64, 64, 5, 5), (1, 64, 5, 5)]


def test_large_images_come_eight_at_a_time() -> None:
    assert defaults(ARMHparams, "small").batch_size == 64
    for scale in ("large", "domainnet"):
        assert defaults(ARMHparams, scale).batch_size == 8
        assert {draw(ARMHparams, scale, 1, number).batch_size for number in range(1, 9)} == {8}
    for number in range(1, 9):
        theirs = draw(Hparams, "small", 1, number)
        assert draw(ARMHparams, "small", 1, number).batch_size == theirs.batch_size


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make_one()
    for step in range(2):
        algorithm.update(make_images(step))
    before = {key: tensor.data_ptr() for key, tensor in algorithm.state_dict().items()}
    batches = make_images(2)
    with NoQuestions():
        algorithm.update(batches)
    assert {key: tensor.data_ptr() for key, tensor in algorithm.state_dict().items()} == before
