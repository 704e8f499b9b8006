"""Mixup against pairs of examples, mixed one by one."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import draw
from shoal.algorithms.mixup import MixupHparams
from shoal.randomness import Draws

from .plain import CLASSES, INPUTS, Oracle, Plain, compare, make
from .stepping import asks_nothing, keeps_its_weights, single_logit

SIZES = [(4, 6, 5), (5, 5, 5), (3, 7), (1, 4), (4,), (2, 3, 4, 5, 3, 1)]


def oracle(alpha: float = 0.2, weight_decay: float = 0.0, binary: bool = False) -> Oracle:
    draws = Draws("mixup", 0)

    def loss_of(logits: Tensor, label: Tensor) -> Tensor:
        if binary:
            return F.binary_cross_entropy_with_logits(logits[0], label.double())
        return -F.log_softmax(logits, 0)[label]

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        domains = len(batches)
        order = draws.permutation(domains).tolist()
        parts = draws.beta(alpha, domains).tolist()
        loss = torch.zeros((), dtype=torch.float64)
        for k in range(domains):
            (x, y), (other_x, other_y) = batches[order[k]], batches[order[(k + 1) % domains]]
            shorter = min(len(y), len(other_y))
            for i in range(shorter):
                mixed = parts[k] * x[i] + (1 - parts[k]) * other_x[i]
                logits = plain.logits(mixed[None])[0]
                both = parts[k] * loss_of(logits, y[i]) + (1 - parts[k]) * loss_of(
                    logits, other_y[i]
                )
                loss = loss + both / shorter / domains
        adam = plain.adam(weight_decay=weight_decay)
        adam.step(plain.weights, plain.gradients(loss))
        return loss

    return step


@pytest.mark.parametrize("sizes", SIZES)
def test_mixup(sizes: tuple[int, ...]) -> None:
    compare(make("mixup", len(sizes)), oracle(), sizes=sizes)


@pytest.mark.parametrize("options", [{"alpha": 3.0}, {"alpha": 0.1, "weight_decay": 0.1}])
def test_hyperparameters(options: dict[str, Any]) -> None:
    compare(make("mixup", **options), oracle(**options))


def test_one_logit() -> None:
    kept = oracle(binary=True)

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        return kept(plain, [(x, y % 2) for x, y in batches], count)

    algorithm = make("mixup", model=single_logit())
    update = algorithm.update
    algorithm.update = lambda batches: update([(x, y % 2) for x, y in batches])  # type: ignore
    compare(algorithm, step)


@pytest.mark.parametrize("domains", [1, 2, 3, 6])
def test_the_domains_stand_in_one_ring(domains: int) -> None:
    """Inputs that equal their domain's number show which are mixed, and with which share."""
    algorithm = make("mixup", domains, lr=0.0, alpha=5.0)
    seen: list[Tensor] = []
    algorithm.model.features.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    names = torch.eye(INPUTS, dtype=torch.float64)
    batches = [(names[e].repeat(3, 1), torch.arange(3) % CLASSES) for e in range(domains)]
    met = set()
    for _ in range(30):
        seen.clear()
        algorithm.update(batches)
        (rows,) = seen  # one forward pass
        rows = rows.view(domains, 3, INPUTS)
        assert torch.equal(rows, rows[:, :1].expand_as(rows))  # λ is one for the pair
        parts = rows[:, 0, :domains]
        torch.testing.assert_close(parts.sum(1), torch.ones(domains, dtype=torch.float64))
        pairs = [frozenset(part.nonzero()[:, 0].tolist()) for part in parts]
        if domains > 1:
            assert [len(pair) for pair in pairs] == [2] * domains
            assert parts.max(1).values.unique().numel() == domains  # and another for the next
        for pair, following in zip(pairs, pairs[1:] + pairs[:1], strict=True):
            assert pair & following
        for domain in range(domains):
            assert sum(domain in pair for pair in pairs) == min(domains, 2)
        met |= set(pairs)
    # Over the steps every domain meets every other.
    assert len(met) == max(domains * (domains - 1) // 2, 1)


def test_the_published_constant_is_not_todays_search() -> None:
    assert MixupHparams().alpha == 0.2
    drawn = [draw(MixupHparams, "large", 0, n).alpha for n in range(1, 20)]
    assert len(set(drawn)) == 19
    assert all(0.1 <= alpha <= 10 for alpha in drawn)


def test_alpha_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match=r"alpha must be a number in \(0, ∞\), got 0"):
        make("mixup", alpha=0.0)


def test_a_step_asks_nothing() -> None:
    asks_nothing(make("mixup"))


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    keeps_its_weights(make("mixup"), 1, (4, 6, 5))
