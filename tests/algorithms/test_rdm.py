"""RDM against loops over pairs of losses."""

from collections.abc import Sequence
from math import exp
from statistics import variance

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.algorithms.rdm import _variance
from shoal.penalties import mmd_of_losses

from .plain import Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing

GAMMAS = (1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000)
# The example of the facts: losses of the worst domain, and of the others.
WORST, OTHERS = (0.1, 0.4, 1.2), (0.3, 0.2, 0.5)


def mean_kernel(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    terms = [sum(torch.exp(-gamma * (x - y) ** 2) for gamma in GAMMAS) for x in one for y in other]
    return sum(terms) / len(terms)


def unbiased(losses: Sequence[Tensor]) -> Tensor:
    mean = sum(losses) / len(losses)
    return sum((loss - mean) ** 2 for loss in losses) / max(len(losses) - 1, 1)


def oracle(weights: tuple[float, float], warmup: int, rates: tuple[float, float]) -> Oracle:
    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        losses = [
            [F.cross_entropy(plain.logits(x[None]), y[None]) for x, y in zip(*batch, strict=True)]
            for batch in batches
        ]
        every = [loss for own in losses for loss in own]
        loss = sum(every) / len(every)
        if step == warmup:
            plain.forget()
        if step >= warmup:
            worst = max(losses, key=lambda own: float(sum(own).detach()) / len(own))
            own = mean_kernel(worst, worst) + mean_kernel(every, every)
            distance = own - 2 * mean_kernel(worst, every)
            loss = loss + weights[0] * distance
            loss = loss + weights[1] * (unbiased(every) + unbiased(worst))
        adam = plain.adam(lr=rates[step >= warmup], weight_decay=0.1)
        adam.step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("warmup", [0, 2, 100])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 5, 1), (4,)])
def test_rdm(sizes: Sequence[int], warmup: int) -> None:
    """A new Adam with its own rate begins with the penalty; batches can differ in size."""
    rates = 1 / 128, 1 / 1024  # exact in float32, the precision of a rate that changes
    settings = {"lr": rates[0], "lr_after_warmup": rates[1], "warmup_steps": warmup}
    settings |= {"penalty_weight": 7.0, "variance_weight": 3.0, "weight_decay": 0.1}
    algorithm = make("rdm", len(sizes), **settings)
    compare(algorithm, oracle((7.0, 3.0), warmup, rates), steps=4, sizes=sizes)


def test_the_known_distance_and_variances() -> None:
    losses = torch.tensor(WORST + OTHERS, dtype=torch.float64, requires_grad=True)
    part = torch.tensor([True] * 3 + [False] * 3)
    distance = mmd_of_losses(losses, part)
    assert float(distance.detach()) == pytest.approx(0.381131, abs=1e-6)
    spreads = _variance(losses, torch.ones_like(part)) + _variance(losses, part)
    assert float(spreads.detach()) == pytest.approx(0.478333, abs=1e-6)
    assert float(spreads.detach()) == pytest.approx(variance(WORST + OTHERS) + variance(WORST))
    assert torch.autograd.gradcheck(lambda x: mmd_of_losses(x, part), losses)


def test_the_distance_of_equal_losses_is_accurate_in_float32() -> None:
    """Far from zero, and nearly the same in both groups."""
    losses = torch.tensor([20.0, 20.1, 20.2, 20.0, 20.1, 20.3])
    part = torch.tensor([True, True, True, False, False, False])

    def kernel(one: list[float], other: list[float]) -> float:
        pairs = [(x, y) for x in one for y in other]
        return sum(exp(-g * (x - y) ** 2) for x, y in pairs for g in GAMMAS) / len(pairs)

    worst, every = losses[:3].tolist(), losses.tolist()
    expected = kernel(worst, worst) + kernel(every, every) - 2 * kernel(worst, every)
    assert float(mmd_of_losses(losses, part)) == pytest.approx(expected, rel=1e-5)


def test_which_domain_is_the_worst_has_no_gradient_and_both_lists_share_it() -> None:
    """Its losses are also among all: with two domains alike in size, m_worst − m is a half."""
    algorithm = make("rdm", 2, warmup_steps=0, penalty_weight=1.0, variance_weight=0.0)
    batches = make_batches(0, (4, 4))
    terms, plain = algorithm(batches), Plain(algorithm)
    lists = [
        [F.cross_entropy(plain.logits(x[None]), y[None]) for x, y in zip(*batch, strict=True)]
        for batch in batches
    ]
    own = mean_kernel(lists[0], lists[0]) + mean_kernel(lists[1], lists[1])
    between = own - 2 * mean_kernel(lists[0], lists[1])
    torch.testing.assert_close(terms["penalty"], between / 4)


def test_one_domain_has_variances_alone() -> None:
    algorithm = make("rdm", 1, warmup_steps=0)
    terms = algorithm(make_batches(0, (5,)))
    assert float(terms["penalty"].detach()) == pytest.approx(0, abs=1e-12)
    assert terms["variance"] > 0
    alone = algorithm(make_batches(0, (1,)))
    assert alone["penalty"] == alone["variance"] == 0


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make("rdm", warmup_steps=2))
