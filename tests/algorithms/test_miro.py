"""MIRO against its loss written out, entry by entry, with an Adam for the variances."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import defaults, draw
from shoal.algorithms.miro import MIRO, MIROHparams
from shoal.catalogue import DATASETS
from shoal.networks import Network, draw_weights, for_data, measure_inputs
from shoal.randomness import stream

from .plain import (
    CLASSES,
    FEATURES,
    INPUTS,
    Plain,
    PlainAdam,
    compare,
    domainbed_stream,
    make,
    make_batches,
    tiny,
)
from .stepping import asks_nothing, with_batch_norm


class Staged(nn.Module):
    """A stage of three channels with six pixels each, one of a vector, then the features."""

    stage_widths = (3, 4)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Conv1d(1, 3, 3, padding=1),
            nn.Linear(3 * INPUTS, 4),
            nn.Linear(4, FEATURES),
        )

    def stages(self, inputs: Tensor) -> tuple[Tensor, ...]:
        wide = torch.tanh(self.first(inputs[:, None]))
        vector = torch.tanh(self.second(wide.flatten(1)))
        return wide, vector, torch.tanh(self.third(vector))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stages(inputs)[-1]


def staged() -> Network:
    def build() -> Network:
        return Network(Staged(), nn.Linear(FEATURES, CLASSES))

    return draw_weights(build, stream("staged")).double()


class WrittenOut:
    """The oracle; the initial network and the variances are its own."""

    def __init__(self, algorithm: MIRO, weight: float, weight_decay: float) -> None:
        self.algorithm, self.weight, self.weight_decay = algorithm, weight, weight_decay
        self.initial = Plain(algorithm)
        self.own = {
            f"{k}": torch.full((n,), math.log(math.exp(0.1 - 1e-5) - 1), dtype=torch.float64)
            for k, n in enumerate(algorithm.initial.widths)
        }
        for value in self.own.values():
            value.requires_grad_()
        self.adam = PlainAdam(lr=0.1, weight_decay=weight_decay)

    def stages(self, plain: Plain, inputs: Tensor) -> list[Tensor]:
        features = plain.network.features
        if not isinstance(features, Staged):
            return [plain.features(inputs)]
        weights = {
            name.removeprefix("features."): w
            for name, w in plain.weights.items()
            if name.startswith("features.")
        }

        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = features

            def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
                return self.inner.stages(inputs)

        named = {f"inner.{name}": w for name, w in weights.items()}
        return list(functional_call(Inner(), named, (inputs,)))[:-1]

    def __call__(self, plain: Plain, batches: list[Batch], step: int) -> Tensor:
        inputs = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        loss = plain.risk((inputs, labels))
        now, before = self.stages(plain, inputs), self.stages(self.initial, inputs)
        for k, (f, f0) in enumerate(zip(now, before, strict=True)):
            variance = (1 + self.own[f"{k}"].exp()).log() + 1e-5
            total = 0.0
            for i in range(len(f)):
                for c in range(f.shape[1]):
                    gaps = (f[i, c] - f0[i, c].detach()) ** 2
                    total = total + (gaps / variance[c] + variance[c].log()).sum()
            loss = loss + self.weight * total / f.numel() / 2
        found = torch.autograd.grad(loss, list(self.own.values()), retain_graph=True)
        gradients = plain.gradients(loss)
        plain.adam(weight_decay=self.weight_decay).step(plain.weights, gradients)
        self.adam.step(self.own, dict(zip(self.own, found, strict=True)))
        for p, q in zip(self.algorithm.variances, self.own.values(), strict=True):
            torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-8, atol=1e-9)
        return loss


def make_one(num_domains: int = 3, model: nn.Module | None = None, **hparams: Any) -> MIRO:
    algorithm = make("miro", num_domains, model, **hparams)
    assert isinstance(algorithm, MIRO)
    return algorithm


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (1,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize("weight", [0.1, 4.0])
def test_on_features_alone(sizes: tuple[int, ...], weight: float) -> None:
    algorithm = make_one(len(sizes), penalty_weight=weight, weight_decay=0.1)
    compare(algorithm, WrittenOut(algorithm, weight, 0.1), sizes=sizes)


def test_on_stages() -> None:
    algorithm = make_one(model=staged(), penalty_weight=0.7, weight_decay=0.1)
    assert [len(p) for p in algorithm.variances] == [3, 4]
    compare(algorithm, WrittenOut(algorithm, 0.7, 0.1))


def test_at_the_start_only_the_variances_count() -> None:
    algorithm = make_one(model=staged(), penalty_weight=2.0)
    terms = algorithm.update(make_batches(0))
    assert float(terms["penalty"]) == pytest.approx(2.0 * 2 * math.log(0.1) / 2)
    assert float(terms["loss"]) == pytest.approx(float(terms["risk"] + terms["penalty"]))


def test_without_weight_the_network_is_that_of_erm() -> None:
    one, erm = make_one(penalty_weight=0.0), make("erm")
    for step in range(4):
        one.update(make_batches(step))
        erm.update(make_batches(step))
    for p, q in zip(one.model.parameters(), erm.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_large_weight_keeps_the_features() -> None:
    loose, tight = make_one(penalty_weight=0.0), make_one(penalty_weight=1e4)
    inputs = make_batches(0)[0][0]
    start = tiny().features(inputs)
    for algorithm in (loose, tight):
        for step in range(40):
            algorithm.update(make_batches(step))
    moved = [float((a.model.features(inputs) - start).detach().norm()) for a in (loose, tight)]
    assert moved[1] < moved[0] / 4


def test_the_initial_network_is_state_and_stays() -> None:
    algorithm = make_one()
    for step in range(3):
        algorithm.update(make_batches(step))
    kept = {
        key.removeprefix("initial.network."): value
        for key, value in algorithm.state_dict().items()
        if key.startswith("initial.")
    }
    start = tiny().features.state_dict()
    assert kept.keys() == start.keys()
    assert all(torch.equal(kept[key], value) for key, value in start.items())
    assert not any(key.startswith("initial") for key, _ in algorithm.named_parameters())


def test_batch_norm_that_follows_the_data_moves_once() -> None:
    one, erm = make_one(model=with_batch_norm()), make("erm", model=with_batch_norm())
    one.update(make_batches(0))
    erm.update(make_batches(0))
    for p, q in zip(one.model.buffers(), erm.model.buffers(), strict=True):
        assert torch.equal(p, q)
    found, start = one.initial.network[1], with_batch_norm().features[1]
    assert torch.equal(found.running_mean, start.running_mean)


def test_columns_are_standardised_alike_in_both() -> None:
    """A run measures the columns after the method is made."""
    network = for_data((INPUTS,), CLASSES, name="standardised-mlp", generator=stream("mlp"))
    algorithm = make_one(model=network.double(), penalty_weight=1.0)
    batches = make_batches(0)
    measure_inputs(algorithm, torch.cat([x for x, _ in batches]))
    terms = algorithm.update(batches)
    assert float(terms["penalty"]) == pytest.approx(math.log(0.1) / 2)


@pytest.mark.parametrize("where", ["inputs", "variances"])
def test_what_is_not_finite_moves_nothing(where: str) -> None:
    algorithm = make_one()
    algorithm.update(make_batches(0))
    batches = make_batches(1)
    if where == "inputs":
        batches[1][0][0, 0] = float("nan")
    else:
        algorithm.variances[0].data[0] = float("nan")
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    algorithm.update(batches)
    for name, p in algorithm.named_parameters():
        assert torch.equal(p.nan_to_num(), before[name].nan_to_num()), name


def test_searches() -> None:
    for number in range(1, 8):
        found = draw(MIROHparams, "large", 0, number).penalty_weight
        assert found == domainbed_stream("penalty_weight", number).choice([1, 0.1, 0.01, 0.001])
        assert draw(MIROHparams, "pacs", 0, number).penalty_weight == found
    by_data = {name: defaults(MIROHparams, name).penalty_weight for name in ("large", *DATASETS)}
    assert {name for name, weight in by_data.items() if weight == 0.01} == {"pacs", "vlcs"}
    assert set(by_data.values()) == {0.01, 0.1}


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make_one(model=staged()))
