"""AND-mask and SAND-mask against masks computed number by number."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import draw
from shoal.algorithms.per_domain import Agreement
from shoal.algorithms.sand_mask import SANDMaskHparams
from shoal.randomness import stream

from .plain import Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing, keeps_its_weights, two_biases

SIZES = [(4, 6, 5), (5, 5, 5), (3, 7), (4,), (2, 3, 4, 5, 3, 1)]
Rule = Callable[[Sequence[float]], float]


def sign(number: float) -> float:
    return (number > 0) - (number < 0)


def agreement(numbers: Sequence[float]) -> float:
    return abs(sum(sign(number) for number in numbers) / len(numbers))


def and_rule(tau: float = 1.0) -> Rule:
    return lambda numbers: 1.0 if agreement(numbers) >= tau else 0.0


def sand_rule(tau: float = 1.0, k: float = 10.0) -> Rule:
    def rule(numbers: Sequence[float]) -> float:
        variance = statistics.variance(numbers) if len(numbers) > 1 else 1e-17
        gap = agreement(numbers) - tau
        if variance == 0:
            if gap == 0:
                return 1e-17  # ∞ · 0
            return 1.0 if gap > 0 else 0.0
        return max(0.0, math.tanh(k * (1 / variance) * gap))

    return rule


def oracle(rule: Rule, weight_decay: float = 0.0) -> Oracle:
    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        risks = [plain.risk(batch) for batch in batches]
        grads = [plain.gradients(risk) for risk in risks]
        new = {}
        for name, p in plain.weights.items():
            columns = list(zip(*[g[name].flatten().tolist() for g in grads], strict=True))
            mask = [rule(column) for column in columns]
            share = 1e-10 + sum(mask) / len(mask)
            numbers = [m * sum(c) / len(c) / share for m, c in zip(mask, columns, strict=True)]
            new[name] = torch.tensor(numbers, dtype=torch.float64).view_as(p)
        plain.adam(weight_decay=weight_decay).step(plain.weights, new)
        return sum(risks) / len(risks)

    return step


@pytest.mark.parametrize("sizes", SIZES)
def test_and_mask(sizes: tuple[int, ...]) -> None:
    # Six domains seldom agree all.
    tau = 1.0 if len(sizes) < 6 else 0.6
    compare(make("and-mask", len(sizes), tau=tau), oracle(and_rule(tau)), sizes=sizes)


@pytest.mark.parametrize("sizes", SIZES)
def test_sand_mask(sizes: tuple[int, ...]) -> None:
    options = {"tau": 0.3, "k": 0.01}
    compare(make("sand-mask", len(sizes), **options), oracle(sand_rule(**options)), sizes=sizes)


# A third is as much as the mean sign of three domains can be; 0.5, of two.
@pytest.mark.parametrize("tau", [1.0, 0.9, 0.5, 1 / 3, 0.1])
def test_hyperparameters_of_and_mask(tau: float) -> None:
    found = make("and-mask", tau=tau, weight_decay=0.1)
    compare(found, oracle(and_rule(tau), weight_decay=0.1))


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0, "k": 0.5},
        {"tau": 0.5, "k": 0.001},
        {"tau": 0.5, "k": 0.0123},
        {"tau": 0.9, "k": 1e5},
        {"tau": 1 / 3},
    ],
)
def test_hyperparameters_of_sand_mask(options: dict[str, Any]) -> None:
    found = make("sand-mask", **options, weight_decay=0.1)
    compare(found, oracle(sand_rule(**options), weight_decay=0.1))


@pytest.mark.parametrize("name", ["and-mask", "sand-mask"])
def test_weights_that_share_a_gradient_tensor(name: str) -> None:
    rules = {"and-mask": and_rule(0.5), "sand-mask": sand_rule(0.5)}
    compare(make(name, model=two_biases(), tau=0.5), oracle(rules[name]))


def test_sand_mask_where_all_domains_are_the_same() -> None:
    """No variance, and agreement at τ exactly: ∞ · 0 counts as 1e-17."""
    algorithm = make("sand-mask", tau=1.0)
    plain, step = Plain(algorithm), oracle(sand_rule(1.0))
    start = [p.detach().clone() for p in algorithm.model.parameters()]
    for count in range(3):
        batches = make_batches(count, (5,)) * 3
        algorithm.update(batches)
        step(plain, batches, count)
        for name, p in algorithm.model.named_parameters():
            torch.testing.assert_close(p, plain.weights[name], rtol=1e-9, atol=1e-9)
    for p, before in zip(algorithm.model.parameters(), start, strict=True):
        assert not torch.equal(p, before)


def test_sand_mask_takes_the_variance_of_one_domain_for_tiny() -> None:
    """So that any k saturates it."""
    options = {"tau": 0.5, "k": 1e-9}
    algorithm = make("sand-mask", 1, **options, weight_decay=0.1)
    compare(algorithm, oracle(sand_rule(**options), weight_decay=0.1), sizes=(5,))


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5,)])
def test_sand_mask_trains_nothing_at_the_default_threshold(sizes: tuple[int, ...]) -> None:
    """No mean sign exceeds τ = 1, DomainBed's default; its search has τ below."""
    algorithm = make("sand-mask", len(sizes))
    before = [p.detach().clone() for p in algorithm.model.parameters()]
    for step in range(3):
        algorithm.update(make_batches(step, sizes))
    for p, kept in zip(algorithm.model.parameters(), before, strict=True):
        assert torch.equal(p, kept)
    drawn = [draw(SANDMaskHparams, "large", 0, n) for n in range(1, 20)]
    assert all(0 < h.tau < 1 for h in drawn)
    assert any(h.k < 1 for h in drawn)  # not cut to whole numbers


def test_the_variance_cancels_nothing() -> None:
    """In float32, around gradients a million times their differences."""
    rows = 1000 + 1e-3 * torch.randn(4, 50, generator=stream("variance"))

    class Given:
        def gradient(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            return torch.zeros(()), (rows[int(batch[1])],)

    batches = [(torch.zeros(1), torch.tensor(e)) for e in range(4)]
    found = Agreement.of(Given(), batches, squares=True)  # type: ignore[arg-type]
    mean = rows.double().mean(0)
    squares = (rows.double() - mean).square().sum(0)
    torch.testing.assert_close(found.mean[0].double(), mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.squares[0].double(), squares, rtol=0.2, atol=1e-7)
    assert torch.equal(found.agreement[0], torch.ones(50))


@pytest.mark.parametrize("name", ["and-mask", "sand-mask"])
def test_a_step_asks_nothing(name: str) -> None:
    asks_nothing(make(name, tau=0.6))


@pytest.mark.parametrize("name", ["and-mask", "sand-mask"])
def test_a_loss_that_is_not_finite_changes_no_weight(name: str) -> None:
    keeps_its_weights(make(name, tau=0.6), 1, (4, 6, 5))
