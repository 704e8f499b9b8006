"""CausIRL against loops over two lists of features, split by the method's own draws."""

import copy
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from shoal.algorithms.causirl import split
from shoal.algorithms.forward import Batch
from shoal.penalties import mmd_between, pairwise
from shoal.randomness import Draws
from shoal.statistics import feature_moments, group_moments

from .plain import FEATURES, Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing
from .test_coral import moments
from .test_irm import pooled_risk, searches
from .test_mmd import mean_kernel

BOTH = ["causirl-coral", "causirl-mmd"]
# Two groups of the facts, with their CORAL distance.
ONE = torch.tensor([[1, 0], [0.8, 0.1], [0, 1]], dtype=torch.float64)
OTHER = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.4, -0.3]], dtype=torch.float64)


def coral(one: Tensor, other: Tensor) -> Tensor:
    (means, covariances), (their_means, their_covariances) = moments(one), moments(other)
    first = [(p - q) ** 2 for p, q in zip(means, their_means, strict=True)]
    second = [(p - q) ** 2 for p, q in zip(covariances, their_covariances, strict=True)]
    return sum(first) / FEATURES + sum(second) / FEATURES**2


def mmd(one: Tensor, other: Tensor) -> Tensor:
    return mean_kernel(one, one) + mean_kernel(other, other) - 2 * mean_kernel(one, other)


def oracle(name: str, draws: Draws, counts: list[tuple[int, int]]) -> Oracle:
    """With draws of its own, that start like the method's; notes the sizes of the groups."""
    distance = coral if name == "causirl-coral" else mmd

    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        groups: tuple[list[Tensor], list[Tensor]] = ([], [])
        for share, (inputs, _) in zip(draws.uniform(len(batches)).tolist(), batches, strict=True):
            features, first = plain.features(inputs), int(share * len(inputs))
            groups[0].extend(features[:first])
            groups[1].extend(features[first:])
        sizes = len(groups[0]), len(groups[1])
        counts.append(sizes)
        loss = pooled_risk(plain, batches)
        if min(sizes) >= 2:
            loss = loss + 7.0 * distance(torch.stack(groups[0]), torch.stack(groups[1]))
        plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("sizes", [(4, 6, 5), (4, 4), (2, 1), (9,)])
def test_causirl(name: str, sizes: Sequence[int]) -> None:
    algorithm = make(name, len(sizes), penalty_weight=7.0, weight_decay=0.1)
    counts: list[tuple[int, int]] = []
    compare(algorithm, oracle(name, copy.deepcopy(algorithm.draws), counts), sizes=sizes)
    assert len(set(counts)) > 1 or sum(sizes) == 3, "every step draws a new split"
    if sum(sizes) > 3:
        assert max(min(pair) for pair in counts) >= 2, "the distance was never compared"


def test_the_known_distance_of_two_groups() -> None:
    rows = feature_moments(torch.cat([ONE, OTHER]), (3, 3))
    assert float(pairwise(rows)) == pytest.approx(0.0742555, abs=1e-7)
    # In any order, by ids alone.
    order, ids = [3, 0, 4, 1, 2, 5], torch.tensor([1, 0, 1, 0, 0, 1])
    mixed = torch.cat([ONE, OTHER])[order]
    torch.testing.assert_close(group_moments(mixed, ids, 2), rows)
    torch.testing.assert_close(mmd_between(mixed, ids), mmd(ONE, OTHER))


def test_moments_of_groups_that_are_small() -> None:
    """One example has no covariance, none has a row of zeros; neither divides by zero."""
    rows = group_moments(ONE, torch.tensor([1, 1, 1]), 3)
    assert torch.equal(rows[[0, 2]], torch.zeros(2, 6, dtype=torch.float64))
    alone = group_moments(ONE, torch.tensor([0, 1, 1]), 2)
    assert torch.equal(alone[0, 2:], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(alone, feature_moments(ONE, (1, 2)))


@pytest.mark.parametrize("name", BOTH)
def test_a_group_of_fewer_than_two_has_no_penalty(name: str) -> None:
    algorithm = make(name, 1)
    draws, seen = copy.deepcopy(algorithm.draws), set()
    for step in range(12):
        first = int(float(draws.uniform(1)) * 4)
        terms = algorithm.update(make_batches(step, (4,)))
        assert (terms["penalty"] > 0) == (first == 2)
        seen.add(first)
    assert seen == {0, 1, 2, 3}


def test_a_cut_is_anywhere_in_a_domain_but_at_its_end() -> None:
    algorithm = make("causirl-mmd", 2)
    cuts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for _ in range(2000):
        groups = split((4, 6), algorithm.draws.uniform(2))
        for part, found in zip(groups.split((4, 6)), cuts, strict=True):
            first = int((part == 0).sum())
            assert part.tolist() == [0] * first + [1] * (len(part) - first)
            found[first] += 1
    for n, found in zip((4, 6), cuts, strict=True):
        assert set(found) == set(range(n))
        assert all(abs(count - 2000 / n) < 100 for count in found.values())


@pytest.mark.parametrize("name", BOTH)
def test_a_seed_decides_the_splits(name: str) -> None:
    kind = type(make(name))
    cuts = [kind(make(name).model, 3, seed=seed).draws.uniform(3) for seed in (0, 0, 1)]
    assert torch.equal(cuts[0], cuts[1])
    assert not torch.equal(cuts[0], cuts[2])


@pytest.mark.parametrize("name", BOTH)
def test_without_weight_it_is_erm_bit_for_bit(name: str) -> None:
    method, erm = make(name, penalty_weight=0.0), make("erm")
    for step in range(3):
        batches = make_batches(step)
        assert torch.equal(method.update(batches)["loss"], erm.update(batches)["loss"])
    for one, other in zip(method.model.parameters(), erm.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", BOTH)
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    algorithm = make(name)
    assert "draws.count" in algorithm.state_dict()
    asks_nothing(algorithm)


@pytest.mark.parametrize("name", BOTH)
def test_hyperparameters_are_those_of_domainbed(name: str) -> None:
    assert searches(name) == {"mmd_gamma": (1.0, "10^U(-1, 1)")}
