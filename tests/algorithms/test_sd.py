"""SD against loops over the logits of each example."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import CLASSES, Plain, compare, make, make_batches
from .stepping import asks_nothing, single_logit
from .test_irm import pooled_risk, searches


def mean_square(plain: Plain, batches: list[Batch]) -> Tensor:
    squares = [
        logit**2 for inputs, _ in batches for logits in plain.logits(inputs) for logit in logits
    ]
    assert len(squares) == CLASSES * sum(len(labels) for _, labels in batches)
    return sum(squares) / len(squares)


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5,), (1, 3)])
def test_sd(sizes: Sequence[int]) -> None:
    def oracle(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        loss = pooled_risk(plain, batches) + 7.0 * mean_square(plain, batches)
        plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
        return loss

    algorithm = make("sd", len(sizes), penalty_weight=7.0, weight_decay=0.1)
    compare(algorithm, oracle, sizes=sizes)


def test_a_single_logit() -> None:
    algorithm = make("sd", 1, single_logit(), penalty_weight=2.0)
    ((inputs, labels),) = make_batches(0, (5,))
    expected = 2 * algorithm.model(inputs).square().sum() / 5
    terms = algorithm([(inputs, labels % 2)])
    torch.testing.assert_close(terms["penalty"], expected)


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make("sd"))


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("sd") == {"sd_reg": (0.1, "10^U(-5, -1)")}
