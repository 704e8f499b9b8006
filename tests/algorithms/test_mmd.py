"""MMD against loops over pairs of domains and of their examples."""

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import Plain, compare, make, make_batches
from .stepping import asks_nothing
from .test_irm import pooled_risk, searches


def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for x in one:
        for y in other:
            square = ((x - y) ** 2).sum()
            for gamma in (0.001, 0.01, 0.1, 1, 10, 100, 1000):
                total = total + torch.exp(-gamma * square)
    return total / (len(one) * len(other))


def mmd_penalty(plain: Plain, batches: list[Batch]) -> Tensor:
    features = [plain.features(inputs) for inputs, _ in batches]
    distances = [torch.zeros((), dtype=torch.float64)]
    for one, other in combinations(features, 2):
        own = mean_kernel(one, one) + mean_kernel(other, other)
        distances.append(own - 2 * mean_kernel(one, other))
    return sum(distances) / max(len(distances) - 1, 1)


@pytest.mark.parametrize(
    ("sizes", "penalty_weight"),
    [((4, 6, 5), 7.0), ((4, 4, 4), 0.5), ((5, 3), 7.0), ((4,), 7.0), ((3, 1, 2, 4), 7.0)],
)
def test_mmd(sizes: Sequence[int], penalty_weight: float) -> None:
    def oracle(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        loss = pooled_risk(plain, batches) + penalty_weight * mmd_penalty(plain, batches)
        plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
        return loss

    settings = {"penalty_weight": penalty_weight, "weight_decay": 0.1}
    compare(make("mmd", len(sizes), **settings), oracle, steps=3, sizes=sizes)


def test_one_domain_has_no_penalty() -> None:
    algorithm = make("mmd", 1)
    assert algorithm.update(make_batches(0, (5,)))["penalty"] == 0


def test_every_kernel_matters_to_the_features_here() -> None:
    # Otherwise the comparison above would not notice a missing one.
    (x, _), (y, _) = make_batches(0, (4, 4))
    features = Plain(make("mmd", 2)).features
    squares = (torch.cdist(features(x), features(y)) ** 2).detach()
    for gamma in (0.001, 0.01, 0.1, 1, 10, 100):
        assert float(torch.exp(-gamma * squares).max()) > 1e-6
    assert math.exp(-1000 * float(squares.min())) < 1e-6  # the last is covered in test_penalties


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make("mmd")
    asks_nothing(algorithm)


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("mmd") == {"mmd_gamma": (1.0, "10^U(-1, 1)")}
