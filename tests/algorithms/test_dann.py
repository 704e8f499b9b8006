"""DANN and CDANN against both sides' losses, written out example by example."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.adversarial import Adversarial, AdversarialHparams, discriminate
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import Hparams, defaults, draw
from shoal.networks import Network, draw_weights, dropout
from shoal.randomness import Draws, stream

from .plain import CLASSES, FEATURES, INPUTS, Plain, PlainAdam, compare, make, make_batches
from .stepping import asks_nothing

BOTH = ("dann", "cdann")


class Turns:
    """The oracle: the generator's weights are ``plain``'s, the discriminator's its own."""

    def __init__(self, algorithm: Adversarial) -> None:
        self.algorithm, self.h = algorithm, algorithm.hparams
        parts = {"discriminator": algorithm.discriminator}
        if hasattr(algorithm, "embedding"):
            parts["embedding"] = algorithm.embedding
        self.parts = nn.ModuleDict(parts)
        self.weights = {
            name: p.detach().clone().requires_grad_() for name, p in self.parts.named_parameters()
        }
        h = self.h
        self.adam = PlainAdam(h.lr_d, h.weight_decay_d, (h.beta1, 0.9))
        self.draws = Draws("discriminator dropout", 0)
        self.terms: dict[str, Tensor] = {}
        original = algorithm.report

        def report(**terms: Tensor) -> dict[str, Tensor]:
            self.terms = original(**terms)
            return self.terms

        algorithm.report = report  # type: ignore[method-assign]

    def discriminate(self, x: Tensor, kept: list[Tensor]) -> Tensor:
        layers = sorted(int(name.split(".")[1]) for name in self.weights if name.endswith(".bias"))
        assert len(layers) == self.h.mlp_depth
        for number, layer in enumerate(layers):
            weight = self.weights[f"discriminator.{layer}.weight"]
            x = weight @ x + self.weights[f"discriminator.{layer}.bias"]
            if number < len(layers) - 1:
                if self.h.mlp_dropout:
                    x = x * kept[number] / (1 - self.h.mlp_dropout)
                x = torch.maximum(x, torch.zeros_like(x))
        return x

    def masks(self, n: int) -> list[Tensor]:
        """Dropout masks of the hidden layers, ``[n, width]``."""
        h = self.h
        if h.mlp_dropout == 0:
            return []
        numbers = [self.draws.uniform(n * h.mlp_width) for _ in range(h.mlp_depth - 1)]
        return [(u >= h.mlp_dropout).double().reshape(n, h.mlp_width) for u in numbers]

    def __call__(self, plain: Plain, batches: list[Batch], step: int) -> Tensor:
        h = self.h
        labels = [int(y) for _, ys in batches for y in ys]
        n, masks = len(labels), self.masks(len(labels))
        risk, opposed, slopes = 0.0, 0.0, 0.0
        i = 0
        for domain, (inputs, ys) in enumerate(batches):
            for x, y in zip(inputs, ys, strict=True):
                z = plain.features(x[None])[0]
                risk = risk - plain.classify(z).log_softmax(0)[y] / n
                table = self.weights.get("embedding.weight")
                seen = z if table is None else z + table[int(y)]
                logits = self.discriminate(seen, [mask[i] for mask in masks])
                own = -logits.log_softmax(0)[domain]
                if table is None:
                    opposed = opposed + own / n
                else:
                    opposed = opposed + own / (labels.count(int(y)) * (max(labels) + 1))
                (slope,) = torch.autograd.grad(own, seen, create_graph=True)
                slopes = slopes + (slope**2).sum() / n
                i += 1
        opposed = opposed + h.grad_penalty * slopes
        loss = risk - h.penalty_weight * opposed
        if (step + 1) % (1 + h.d_steps_per_g_step) < h.d_steps_per_g_step:
            used = list(self.weights.values())
            found = torch.autograd.grad(opposed, used)
            self.adam.step(self.weights, dict(zip(self.weights, found, strict=True)))
        else:
            adam = plain.adam(lr=h.lr_g, weight_decay=h.weight_decay_g, betas=(h.beta1, 0.9))
            adam.step(plain.weights, plain.gradients(loss))
        for name, p in self.parts.named_parameters():
            torch.testing.assert_close(
                p, self.weights[name], rtol=1e-9, atol=1e-9, msg=f"{name} after step {step}"
            )
        expected = {"loss": loss, "risk": risk, "discriminator": opposed}
        for name, value in expected.items():
            torch.testing.assert_close(self.terms[name], value.detach(), rtol=1e-9, atol=1e-9)
        return loss


def make_one(name: str, num_domains: int = 3, **hparams: Any) -> Adversarial:
    """With the shared lr and weight_decay at values that must not be used."""
    given = {"lr": 5.0, "weight_decay": 3.0, "lr_g": 0.01, "lr_d": 0.02, "mlp_width": 6, **hparams}
    algorithm = make(name, num_domains, **given)
    assert isinstance(algorithm, Adversarial)
    return algorithm


VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "weight": {"penalty_weight": 2.5},
    "decays": {"weight_decay_g": 0.1, "weight_decay_d": 0.3},
    "two turns": {"d_steps_per_g_step": 2},
    "three turns": {"d_steps_per_g_step": 3, "beta1": 0.0},
    "slopes": {"grad_penalty": 3.0},
    "deep": {"mlp_depth": 4, "mlp_width": 5},
    "dropout": {"mlp_dropout": 0.4, "mlp_depth": 4},
    "everything": {
        "penalty_weight": 0.3,
        "weight_decay_g": 0.01,
        "weight_decay_d": 0.02,
        "d_steps_per_g_step": 2,
        "grad_penalty": 0.7,
        "beta1": 0.0,
        "mlp_dropout": 0.1,
    },
}


# The options belong to the base class of both.
@pytest.mark.parametrize(
    ("name", "variant"),
    [*(("dann", variant) for variant in VARIANTS), ("cdann", "defaults"), ("cdann", "everything")],
)
def test_both_sides(name: str, variant: str) -> None:
    algorithm = make_one(name, **VARIANTS[variant])
    compare(algorithm, Turns(algorithm), steps=6)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("sizes", [(3,), (1,), (5, 3), (1, 2, 3, 1, 2, 4)])
def test_any_number_of_domains(name: str, sizes: tuple[int, ...]) -> None:
    algorithm = make_one(name, len(sizes), grad_penalty=0.5, weight_decay_d=0.1)
    compare(algorithm, Turns(algorithm), steps=4, sizes=sizes)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_one_side_moves_and_the_other_keeps_weights_and_state(name: str, turns: int) -> None:
    algorithm = make_one(
        name, d_steps_per_g_step=turns, weight_decay_g=0.1, weight_decay_d=0.1, grad_penalty=1.0
    )
    sides = {
        "generator": [algorithm.model, algorithm.generator_optimiser],
        "discriminator": [algorithm.discriminator, algorithm.discriminator_optimiser],
    }
    if name == "cdann":
        sides["discriminator"].append(algorithm.embedding)
    moved = []
    for step in range(2 * (turns + 1)):
        before = copy.deepcopy({side: nn.ModuleList(of).state_dict() for side, of in sides.items()})
        algorithm.update(make_batches(step))
        for side, of in sides.items():
            after = nn.ModuleList(of).state_dict()
            same = {key for key, tensor in after.items() if torch.equal(tensor, before[side][key])}
            assert same in (set(), set(after)), f"part of the {side} moved in step {step}"
            if not same:
                moved.append(side)
    # The count starts at one, so that with one turn the generator is first.
    cycle = [*["discriminator"] * (turns - 1), "generator", "discriminator"]
    assert moved == 2 * cycle


@pytest.mark.parametrize("name", BOTH)
def test_one_pass_through_the_features(name: str) -> None:
    algorithm = make_one(name, grad_penalty=1.0)
    passes = []

    def forward(module: nn.Module, inputs: Any, output: Tensor) -> None:
        passes.append("forward")
        output.register_hook(lambda grad: passes.append("backward"))

    algorithm.model.features.register_forward_hook(forward)
    algorithm.update(make_batches(0))
    assert passes == ["forward", "backward"]


@pytest.mark.parametrize("name", BOTH)
def test_dropout_draws_from_its_own_stream_and_only_in_training(name: str) -> None:
    state = torch.get_rng_state()
    algorithm, without = make_one(name, mlp_dropout=0.5), make_one(name)
    features = torch.ones(4, FEATURES, dtype=torch.float64)
    expected = discriminate(without.discriminator, features, without.draws)
    assert not torch.equal(
        discriminate(algorithm.discriminator, features, algorithm.draws), expected
    )
    assert algorithm.draws.count == 2  # hidden layers
    algorithm.eval()
    assert torch.equal(discriminate(algorithm.discriminator, features, algorithm.draws), expected)
    assert algorithm.draws.count == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_keeps_the_mean() -> None:
    ones = torch.ones(200, 50)
    found = dropout(ones, 0.2, Draws("dropout"))
    assert set(found.unique().tolist()) == {0.0, 1.25}
    assert found.mean() == pytest.approx(1, abs=0.02)


def test_only_cdann_has_embeddings() -> None:
    assert not any("embedding" in key for key in make_one("dann").state_dict())
    cdann = make_one("cdann")
    assert cdann.embedding.weight.shape == (CLASSES, FEATURES)
    given = {id(weight) for weight in cdann.discriminator_optimiser.weights}
    assert id(cdann.embedding.weight) in given


def test_a_class_weighs_what_its_presence_says() -> None:
    algorithm = make_one("cdann")
    labels = torch.tensor([3, 0, 3, 3, 1])  # no 2: its slot is lost, as in DomainBed
    losses = torch.tensor([3.0, 5.0, 6.0, 9.0, 7.0])
    assert algorithm.weigh(losses, labels) == pytest.approx((6 + 5 + 7) / 4)


def test_one_logit_has_two_classes() -> None:
    def build() -> Network:
        features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())
        return Network(features, nn.Linear(FEATURES, 1))

    model = draw_weights(build, stream("binary")).double()
    algorithm = make("cdann", model=model, mlp_width=6)
    batches = [(inputs, labels.clamp(max=1)) for inputs, labels in make_batches(0)]
    assert algorithm.update(batches)["loss"].isfinite()


def test_hparams_are_domainbeds() -> None:
    names = ("lambda", "lr_g", "lr_d", "weight_decay_g", "weight_decay_d", "d_steps_per_g_step")
    names += ("grad_penalty", "beta1", "mlp_width", "mlp_depth", "mlp_dropout")
    fields = AdversarialHparams.__dataclass_fields__
    own = {f.metadata["key"] for f in fields.values()} - {
        f.metadata["key"] for f in Hparams.__dataclass_fields__.values()
    }
    assert own == set(names)
    for name in BOTH:
        assert ALGORITHMS[name].Hparams is AdversarialHparams
    for scale, lr in (("small", 1e-3), ("large", 5e-5), ("domainnet", 5e-5)):
        h = defaults(AdversarialHparams, scale)
        assert (h.penalty_weight, h.lr_g, h.lr_d, h.beta1) == (1.0, lr, lr, 0.5)
        assert (h.weight_decay_g, h.weight_decay_d, h.grad_penalty) == (0, 0, 0)
        assert (h.d_steps_per_g_step, h.mlp_width, h.mlp_depth, h.mlp_dropout) == (1, 256, 3, 0)
    ranges = {
        "small": ((10**-4.5, 10**-2.5), (0, 0)),
        "large": ((1e-5, 10**-3.5), (1e-6, 1e-2)),
    }
    for scale, ((low, high), (least, most)) in ranges.items():
        draws = [draw(AdversarialHparams, scale, 0, number) for number in range(1, 60)]
        for h in draws:
            assert low <= h.lr_g <= high and low <= h.lr_d <= high and h.lr_g != h.lr_d
            assert least <= h.weight_decay_g <= most
            assert 1e-6 <= h.weight_decay_d <= 1e-2 and 1e-2 <= h.penalty_weight <= 1e2
            assert 1e-2 <= h.grad_penalty <= 10 and 64 <= h.mlp_width < 1024
        assert {h.d_steps_per_g_step for h in draws} == set(range(1, 8))
        assert {h.beta1 for h in draws} == {0.0, 0.5}
        assert {h.mlp_depth for h in draws} == {3, 4, 5}
        assert {h.mlp_dropout for h in draws} == {0.0, 0.1, 0.5}


@pytest.mark.parametrize("name", BOTH)
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    algorithm = make_one(name, mlp_dropout=0.5, grad_penalty=1.0)
    asks_nothing(algorithm)


def test_binary_labels_in_a_column_weigh_the_same() -> None:
    algorithm = make_one("cdann")
    labels, losses = torch.tensor([1, 0, 1, 1]), torch.tensor([3.0, 5.0, 6.0, 9.0])
    assert algorithm.weigh(losses, labels[:, None]) == algorithm.weigh(losses, labels)
