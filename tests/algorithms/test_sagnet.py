"""SagNet against its three stages, written out example by example."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.forward import Batch
from shoal.algorithms.sagnet import SagNet, SagNetHparams
from shoal.randomness import Draws

from .plain import FEATURES, Plain, PlainAdam, compare, make, make_batches
from .stepping import asks_nothing


def content_and_style(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean = sum(z) / len(z)
    variance = sum((one - mean) ** 2 for one in z) / (len(z) - 1)
    return (z - mean) / (variance + 1e-5) ** 0.5, mean, variance


def log_p(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum().log()


class Stages:
    """The oracle: the style classifier's weights are its own."""

    def __init__(self, algorithm: SagNet, weight: float, weight_decay: float = 0.0) -> None:
        self.algorithm, self.weight = algorithm, weight
        self.style = {
            name: p.detach().clone().requires_grad_()
            for name, p in algorithm.style.named_parameters()
        }
        self.options = {"weight_decay": weight_decay}
        self.adam = PlainAdam(**self.options)
        self.draws = Draws("sagnet", 0)
        self.terms: dict[str, Tensor] = {}
        original = algorithm.report

        def report(**terms: Tensor) -> dict[str, Tensor]:
            self.terms = original(**terms)
            return self.terms

        algorithm.report = report  # type: ignore[method-assign]

    def step_part(self, plain: Plain, part: str, gradients: dict[str, Tensor]) -> None:
        own = {name: g for name, g in gradients.items() if name.startswith(part)}
        plain.adam(part, **self.options).step(plain.weights, own)

    def style_logits(self, plain: Plain, inputs: Tensor, other: list[int]) -> list[Tensor]:
        parts = [content_and_style(plain.features(x[None])[0]) for x in inputs]
        found = []
        for i, (_, mean, variance) in enumerate(parts):
            mixed = parts[other[i]][0].detach() * (variance + 1e-5) ** 0.5 + mean
            found.append(self.style["weight"] @ mixed + self.style["bias"])
        return found

    def __call__(self, plain: Plain, batches: list[Batch], step: int) -> Tensor:
        inputs = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        n = len(labels)

        shares, other = self.draws.uniform(n).tolist(), self.draws.permutation(n).tolist()
        assert sorted(other) == list(range(n))
        parts = [content_and_style(plain.features(x[None])[0]) for x in inputs]
        content = 0.0
        for i, (own, share) in enumerate(zip(parts, shares, strict=True)):
            mean = share * own[1] + (1 - share) * parts[other[i]][1]
            variance = share * own[2] + (1 - share) * parts[other[i]][2]
            logits = plain.classify(own[0] * (variance + 1e-5) ** 0.5 + mean)
            content = content - log_p(logits)[labels[i]] / n
        gradients = plain.gradients(content)
        self.step_part(plain, "features", gradients)
        self.step_part(plain, "classifier", gradients)

        other = self.draws.permutation(n).tolist()
        style = 0.0
        for logits, y in zip(self.style_logits(plain, inputs, other), labels, strict=True):
            style = style - log_p(logits)[y] / n
        found = torch.autograd.grad(style, list(self.style.values()))
        self.adam.step(self.style, dict(zip(self.style, found, strict=True)))

        other = self.draws.permutation(n).tolist()
        against = 0.0
        for logits in self.style_logits(plain, inputs, other):
            for class_ in range(len(logits)):
                against = against - self.weight * log_p(logits)[class_] / (n * len(logits))
        self.step_part(plain, "features", plain.gradients(against))

        for name, p in self.algorithm.style.named_parameters():
            torch.testing.assert_close(p, self.style[name], rtol=1e-9, atol=1e-9)
        expected = {"loss": content, "style": style, "adversarial": against}
        for name, value in expected.items():
            torch.testing.assert_close(self.terms[name], value.detach(), rtol=1e-9, atol=1e-9)
        return content


def make_one(num_domains: int = 3, **hparams: Any) -> SagNet:
    algorithm = make("sagnet", num_domains, **hparams)
    assert isinstance(algorithm, SagNet)
    return algorithm


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (3,), (1,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize("weight", [0.1, 4.0])
def test_sagnet(sizes: tuple[int, ...], weight: float) -> None:
    algorithm = make_one(len(sizes), penalty_weight=weight)
    compare(algorithm, Stages(algorithm, weight), sizes=sizes)


def test_every_adam_decays() -> None:
    algorithm = make_one(penalty_weight=0.5, weight_decay=0.3)
    compare(algorithm, Stages(algorithm, 0.5, 0.3))


def test_the_features_step_twice_and_both_classifiers_once() -> None:
    algorithm = make_one()
    algorithm.update(make_batches(0))
    adams = (algorithm.features_optimiser, algorithm.content_optimiser, algorithm.style_optimiser)
    assert [int(adam.count_0) for adam in adams] == [2, 1, 1]


def test_a_style_in_between_keeps_the_content() -> None:
    algorithm = make_one()
    z = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = algorithm._other_style(z)
    means = z.mean(1)
    assert means.min() <= mixed.mean(1).min() and mixed.mean(1).max() <= means.max()
    for before, after in zip(z, mixed, strict=True):
        one, two = content_and_style(before)[0], content_and_style(after)[0]
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(mixed, z)


def test_the_second_stage_has_no_graph_of_the_features() -> None:
    algorithm = make_one()
    graphs = []

    def forward(module: nn.Module, inputs: Any, output: Tensor) -> None:
        graphs.append(output.requires_grad)

    algorithm.model.features.register_forward_hook(forward)
    algorithm.update(make_batches(0))
    assert graphs == [True, False, True]


def test_random_numbers_are_its_own_and_new_in_every_step() -> None:
    state = torch.get_rng_state()
    algorithm = make_one()
    algorithm.update(make_batches(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert algorithm.draws.count == 4  # shares and three permutations
    assert algorithm.state_dict()["draws.count"] == 4


def test_hparams_are_domainbeds() -> None:
    field = SagNetHparams.__dataclass_fields__["penalty_weight"]
    assert field.metadata["key"] == "sag_w_adv"
    assert {s.distribution.text for s in field.metadata["searches"].values()} == {"10^U(-2, 1)"}
    assert SagNetHparams().penalty_weight == 0.1


@pytest.mark.parametrize("where", ["inputs", "classifier"])
def test_what_is_not_finite_moves_nothing(where: str) -> None:
    algorithm = make_one()
    batches = make_batches(1)
    if where == "inputs":
        batches[1][0][0, 0] = float("nan")
    else:  # later stages do not see it, and yet must not go on without the first
        algorithm.model.classifier.bias.data[0] = float("inf")
    before = {name: p.detach().clone() for name, p in algorithm.named_parameters()}
    algorithm.update(batches)
    for name, p in algorithm.named_parameters():
        assert torch.equal(p, before[name]), name


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make_one()
    asks_nothing(algorithm)
