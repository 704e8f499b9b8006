"""CORAL against loops over pairs of domains and entries of their moments."""

from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import FEATURES, Plain, compare, make, make_batches
from .stepping import asks_nothing
from .test_irm import pooled_risk, searches


def moments(features: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The entries of the mean and of the covariance, one after the other."""
    n = len(features)
    mean = [sum(features[i, a] for i in range(n)) / n for a in range(FEATURES)]
    covariance = []
    for a in range(FEATURES):
        for b in range(FEATURES):
            products = [(features[i, a] - mean[a]) * (features[i, b] - mean[b]) for i in range(n)]
            covariance.append(sum(products) / (n - 1) if n > 1 else 0 * products[0])
    return mean, covariance


def coral_penalty(plain: Plain, batches: list[Batch]) -> Tensor:
    found = [moments(plain.features(inputs)) for inputs, _ in batches]
    distances = [torch.zeros((), dtype=torch.float64)]
    for one, other in combinations(found, 2):
        means = [(p - q) ** 2 for p, q in zip(one[0], other[0], strict=True)]
        covariances = [(p - q) ** 2 for p, q in zip(one[1], other[1], strict=True)]
        distances.append(sum(means) / len(means) + sum(covariances) / len(covariances))
    return sum(distances) / max(len(distances) - 1, 1)


@pytest.mark.parametrize(
    ("sizes", "penalty_weight"),
    [((4, 6, 5), 7.0), ((4, 4, 4), 0.5), ((5, 3), 7.0), ((4,), 7.0), ((3, 1, 2, 4), 7.0)],
)
def test_coral(sizes: Sequence[int], penalty_weight: float) -> None:
    def oracle(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        loss = pooled_risk(plain, batches) + penalty_weight * coral_penalty(plain, batches)
        plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
        return loss

    settings = {"penalty_weight": penalty_weight, "weight_decay": 0.1}
    compare(make("coral", len(sizes), **settings), oracle, steps=3, sizes=sizes)


def test_one_domain_has_no_penalty() -> None:
    algorithm = make("coral", 1)
    assert algorithm.update(make_batches(0, (5,)))["penalty"] == 0


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make("coral")
    asks_nothing(algorithm)


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("coral") == {"mmd_gamma": (1.0, "10^U(-1, 1)")}
