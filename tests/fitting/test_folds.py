"""Folds: every domain is left out once, alone or with others if there are many."""

from itertools import chain

import pytest
import torch

from shoal.datasets import Domain, DomainDataset
from shoal.fitting.folds import MOST, Fold, folds_of, make_folds


def test_each_domain_alone() -> None:
    sizes = {"b": 5, "a": 500, "c": 1}
    assert make_folds(sizes) == (Fold("b", ("b",)), Fold("a", ("a",)), Fold("c", ("c",)))
    exact = {f"d{k}": 10 for k in range(MOST)}
    assert [fold.domains for fold in make_folds(exact)] == [(name,) for name in exact]


@pytest.mark.parametrize("count", [13, 24, 25, 200])
def test_many_domains_are_left_out_in_twelve_folds(count: int) -> None:
    sizes = {f"d{k}": 10 + 7 * k % 31 for k in range(count)}
    folds = make_folds(sizes)
    assert len(folds) == MOST == 12
    assert sorted(chain.from_iterable(fold.domains for fold in folds)) == sorted(sizes)
    # Folds, and domains in them, are in the order of the data.
    order = list(sizes)
    places = [[order.index(name) for name in fold.domains] for fold in folds]
    assert all(mine == sorted(mine) for mine in places)
    assert [mine[0] for mine in places] == sorted(mine[0] for mine in places)
    assert len({fold.name for fold in folds}) == 12
    # They differ by less than one domain has.
    totals = [sum(sizes[name] for name in fold.domains) for fold in folds]
    assert max(totals) - min(totals) <= max(sizes.values())


def test_a_large_domain_stays_alone() -> None:
    sizes = {"a": 2, "huge": 1000, "b": 4, "c": 3, "d": 1}
    assert make_folds(sizes, most=3) == (
        Fold("a and 1 more", ("a", "c")),
        Fold("huge", ("huge",)),
        Fold("b and 1 more", ("b", "d")),
    )


def test_names() -> None:
    sizes = dict.fromkeys("abcdefg", 10)
    assert [fold.name for fold in make_folds(sizes, most=2)] == ["a and 3 more", "b and 2 more"]


def test_folds_of_a_data_set() -> None:
    domains = [
        Domain(f"d{k}", torch.zeros(1 + (k == 3), dtype=torch.long), torch.zeros(1 + (k == 3), 2))
        for k in range(13)
    ]
    folds = folds_of(DomainDataset("x", ("n", "y"), tuple(domains)))
    # The domain of two examples is alone, and two of one example are together.
    assert [fold.name for fold in folds if "more" in fold.name] == ["d0 and 1 more"]
    assert Fold("d3", ("d3",)) in folds
