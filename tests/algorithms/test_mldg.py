"""MLDG against a copy of the network that takes a real step of a new Adam."""

from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.randomness import Draws

from .plain import INPUTS, Oracle, Plain, PlainAdam, compare, make
from .stepping import asks_nothing, keeps_its_weights, two_biases, with_batch_norm

SIZES = [(4, 6, 5), (5, 5, 5), (3, 7), (1, 4), (4,), (2, 3, 4, 5, 3, 1)]


def oracle(
    beta: float = 1.0, num_meta_test: int = 2, lr: float = 0.01, weight_decay: float = 0.0
) -> Oracle:
    draws = Draws("mldg", 0)

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        domains = len(batches)
        order = draws.permutation(domains).tolist()
        if domains == 1:
            train, test = order, order
        else:
            held_out = domains - 1 if domains <= num_meta_test else num_meta_test
            train, test = order[: domains - held_out], order[domains - held_out :]
        total = {name: torch.zeros_like(p) for name, p in plain.weights.items()}
        loss = torch.zeros((), dtype=torch.float64)
        for k, i in enumerate(train):
            j = test[k % len(test)]
            risk = plain.risk(batches[i])
            grads = plain.gradients(risk)
            there = {name: p.detach().clone().requires_grad_() for name, p in plain.weights.items()}
            PlainAdam(lr, weight_decay).step(there, grads)
            their_risk = plain.risk(batches[j], there)
            theirs = torch.autograd.grad(their_risk, list(there.values()))
            for (name, g), h in zip(grads.items(), theirs, strict=True):
                total[name] = total[name] + g / domains + beta * h / domains
            loss = loss + (risk + beta * their_risk).detach() / domains
        plain.adam(lr=lr, weight_decay=weight_decay).step(plain.weights, total)
        return loss

    return step


@pytest.mark.parametrize("num_meta_test", [1, 2, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_mldg(sizes: tuple[int, ...], num_meta_test: int) -> None:
    algorithm = make("mldg", len(sizes), num_meta_test=num_meta_test)
    compare(algorithm, oracle(num_meta_test=num_meta_test), sizes=sizes)


@pytest.mark.parametrize(
    "options", [{"beta": 0.1}, {"beta": 7.0, "weight_decay": 0.3}, {"lr": 0.1, "beta": 3.0}]
)
def test_hyperparameters(options: dict[str, Any]) -> None:
    compare(make("mldg", **options), oracle(**options))


def test_weights_that_share_a_gradient_tensor() -> None:
    options = {"num_meta_test": 1, "weight_decay": 0.1}
    compare(make("mldg", model=two_biases(), **options), oracle(**options))


@pytest.mark.parametrize(
    ("domains", "num_meta_test", "train", "test"),
    [
        (1, 1, 1, 1),
        (1, 2, 1, 1),
        (2, 1, 1, 1),
        (2, 2, 1, 1),
        (3, 1, 2, 1),
        (3, 2, 1, 2),
        (6, 2, 4, 2),
    ],
)
def test_who_trains_and_who_tests(domains: int, num_meta_test: int, train: int, test: int) -> None:
    """Inputs that equal their domain's number show the pairs; DomainBed would have none in some."""
    algorithm = make("mldg", domains, num_meta_test=num_meta_test, lr=0.0)
    seen: list[int] = []
    algorithm.model.features.register_forward_pre_hook(
        lambda _, inputs: seen.append(int(inputs[0][0].argmax()))
    )
    names = torch.eye(INPUTS, dtype=torch.float64)
    batches = [(names[e].repeat(2, 1), torch.tensor([0, 1])) for e in range(domains)]
    met = set()
    for _ in range(40):
        seen.clear()
        algorithm.update(batches)
        pairs = list(zip(seen[::2], seen[1::2], strict=True))
        first, second = [i for i, _ in pairs], [j for _, j in pairs]
        assert len(pairs) == train
        assert len(set(first)) == train  # each once
        assert len(set(second)) == min(test, train)
        if domains > 1:
            assert not set(first) & set(second)
        assert second == (second[:test] * train)[:train]  # in turn
        met |= set(first)
    assert met == set(range(domains))


def test_meta_test_domains_must_be_one_or_more() -> None:
    with pytest.raises(
        ValueError, match=r"num_meta_test must be a whole number in \[1, ∞\), got 0"
    ):
        make("mldg", num_meta_test=0)


def test_a_step_asks_nothing() -> None:
    asks_nothing(make("mldg", num_meta_test=1))
    asks_nothing(make("mldg", model=with_batch_norm(), num_meta_test=1))


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    keeps_its_weights(make("mldg", num_meta_test=1), 1, (4, 6, 5))
