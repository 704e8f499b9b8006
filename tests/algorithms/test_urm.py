"""URM against both of its steps, written out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import defaults, draw
from shoal.algorithms.urm import URM, URMHparams, discriminator
from shoal.fitting.frozen_features import works_frozen
from shoal.networks import Network
from shoal.networks.base import IMAGENET
from shoal.randomness import Draws

from .plain import FEATURES, Plain, PlainAdam, compare, domainbed_stream, make, make_batches, tiny
from .stepping import asks_nothing


class BothSteps:
    """The oracle; the discriminator's weights are its own."""

    def __init__(self, algorithm: URM, weight: float, lr: float, weight_decay: float) -> None:
        self.algorithm, self.weight, self.weight_decay = algorithm, weight, weight_decay
        self.own = {
            name: p.detach().clone().requires_grad_()
            for name, p in algorithm.discriminator.named_parameters()
        }
        self.adam = PlainAdam(lr=lr, weight_decay=weight_decay)
        self.draws = Draws("urm", 0)

    def judge(self, z: Tensor) -> list[Tensor]:
        """D(z) of each example: its probability of being noise."""
        last = max(int(name.split(".")[0]) for name in self.own)
        found = []
        for row in z:
            for layer in range(0, last + 1, 2):
                row = self.own[f"{layer}.weight"] @ row + self.own[f"{layer}.bias"]
                row = torch.where(row > 0, row, 0.01 * row) if layer < last else row
            found.append(1 / (1 + torch.exp(-row[0])))
        return found

    def __call__(self, plain: Plain, batches: list[Batch], step: int) -> Tensor:
        inputs = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        n, low = len(labels), -1.0 if self.algorithm.hparams.output == "tanh" else 0.0
        z = plain.features(inputs)
        loss = plain.risk((inputs, labels))
        for p in self.judge(z):
            loss = loss - self.weight * p.log() / n
        u = low + (1.0 - low) * self.draws.uniform(n * FEATURES).view(n, FEATURES)
        theirs = sum(-p.log() / n for p in self.judge(u))
        theirs = theirs + sum(-self.weight * (1 - p).log() / n for p in self.judge(z.detach()))
        gradients = plain.gradients(loss)
        found = torch.autograd.grad(theirs, list(self.own.values()))
        plain.adam(weight_decay=self.weight_decay).step(plain.weights, gradients)
        self.adam.step(self.own, dict(zip(self.own, found, strict=True)))
        for name, p in self.algorithm.discriminator.named_parameters():
            torch.testing.assert_close(p, self.own[name], rtol=1e-8, atol=1e-9)
        return loss


def make_one(num_domains: int = 3, **hparams: Any) -> URM:
    algorithm = make("urm", num_domains, **hparams)
    assert isinstance(algorithm, URM)
    return algorithm


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (1,), (1, 2, 3, 1, 2, 4)])
def test_urm(sizes: tuple[int, ...]) -> None:
    algorithm = make_one(len(sizes), penalty_weight=0.7, lr_d=0.02, weight_decay=0.1)
    compare(algorithm, BothSteps(algorithm, 0.7, 0.02, 0.1), sizes=sizes)


@pytest.mark.parametrize(("output", "layers"), [("relu", 2), ("tanh", 3), ("relu", 1)])
def test_its_outputs_and_layers(output: str, layers: int) -> None:
    algorithm = make_one(penalty_weight=0.5, lr_d=0.02, output=output, discriminator_layers=layers)
    compare(algorithm, BothSteps(algorithm, 0.5, 0.02, 0.0))


@pytest.mark.parametrize("output", ["tanh", "relu"])
def test_predictions_go_through_the_bound(output: str) -> None:
    algorithm = make_one(output=output)
    model = tiny()
    inputs = 3 * make_batches(0)[0][0]
    z = model.features(inputs)
    bounded = torch.tanh(z) if output == "tanh" else z.clamp(min=0)
    expected = model.classifier(bounded)
    torch.testing.assert_close(algorithm.predict(inputs), expected)
    assert not torch.allclose(algorithm.predict(inputs), model(inputs))


def test_the_discriminator() -> None:
    layers = discriminator(7, 2)
    assert [tuple(p.shape) for p in layers.parameters() if p.ndim == 2] == [
        (100, 7),
        (100, 100),
        (100, 100),
        (1, 100),
    ]
    slopes = [part.negative_slope for part in layers if isinstance(part, nn.LeakyReLU)]
    assert slopes == [0.01] * 3


def test_noise_fills_the_cube_of_the_features() -> None:
    for output, low in (("tanh", -1.0), ("relu", 0.0)):
        algorithm = make_one(output=output)
        seen: list[Tensor] = []
        judge = algorithm._judge

        def record(features: Tensor, seen: list[Tensor] = seen, judge: Any = judge) -> Tensor:
            seen.append(features.detach())
            return judge(features)

        algorithm._judge = record  # type: ignore[method-assign]
        for step in range(20):
            algorithm.update(make_batches(step))
        noise = torch.cat(seen[1::3])
        assert low < noise.min() < low + 0.02 and 0.98 < noise.max() < 1
        assert float(noise.mean()) == pytest.approx((1 + low) / 2, abs=0.05)


def test_what_the_network_expects_of_images_is_kept() -> None:
    model = tiny()
    model.preprocessing = IMAGENET
    algorithm = URM(model, 3, URMHparams())
    assert isinstance(algorithm.model, Network)
    assert algorithm.model.preprocessing == IMAGENET


def test_a_head_on_frozen_features_is_not_its_model() -> None:
    """Its bound lies between the features and the head, so such a head cannot be moved."""
    assert not works_frozen(URM)


def test_an_unknown_output() -> None:
    with pytest.raises(ValueError, match="unknown output 'tan'; did you mean 'tanh'"):
        make_one(output="tan")


@pytest.mark.parametrize("where", ["inputs", "discriminator"])
def test_what_is_not_finite_moves_nothing(where: str) -> None:
    algorithm = make_one()
    batches = make_batches(1)
    if where == "inputs":
        batches[1][0][0, 0] = float("nan")
    else:
        algorithm.discriminator[-1].bias.data[0] = float("inf")
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    algorithm.update(batches)
    for name, p in algorithm.named_parameters():
        assert torch.equal(p, before[name]), name


def test_hparams_are_domainbeds() -> None:
    assert URMHparams() == URMHparams(penalty_weight=0.1, output="tanh", discriminator_layers=1)
    assert (URMHparams().lr_d, defaults(URMHparams, "large").lr_d) == (1e-3, 5e-5)
    exponents = {"small": (-5.5, -3.5), "large": (-6, -4.5), "domainnet": (-6, -4.5)}
    for number in range(1, 8):
        for scale, (low, high) in exponents.items():
            found = draw(URMHparams, scale, 0, number)
            weight = domainbed_stream("urm_adv_lambda", number)
            assert found.penalty_weight == weight.uniform(0, 0.2)
            layers = domainbed_stream("urm_discriminator_hidden_layers", number)
            assert found.discriminator_layers == layers.choice([1, 2, 3])
            assert found.output == domainbed_stream("urm_generator_output", number).choice(
                ["tanh", "relu"]
            )
            rate = domainbed_stream("urm_discriminator_lr", number)
            assert found.lr_d == 10 ** rate.uniform(low, high)


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make_one())
