"""Class shares: told where a class is much more frequent in one domain, and not by chance."""

from typing import Any

import pytest
import torch

from shoal.cli.fit import print_data
from shoal.datasets import Domain, DomainDataset
from shoal.fitting.class_shares import class_shares, describe_shares, differing_shares
from shoal.fitting.inspection import FitData


def dataset(**sick: tuple[int, int]) -> DomainDataset:
    """Return domains with so many sick and so many well."""
    domains = []
    for name, (ill, well) in sick.items():
        labels = torch.tensor([0] * ill + [1] * well)
        domains.append(Domain(name, labels, torch.zeros(ill + well, 1)))
    return DomainDataset("d", ("sick", "well"), tuple(domains))


def test_a_class_that_is_frequent_in_one_domain_is_told() -> None:
    made = dataset(basel=(94, 6), bern=(36, 64), chur=(40, 60))
    assert class_shares(made)["bern"] == {"sick": 0.36, "well": 0.64}
    assert differing_shares(made) == {"sick": ("bern", "basel"), "well": ("basel", "bern")}
    (note,) = describe_shares(made)
    assert note.startswith(
        "the share of the class 'sick' goes from 36 % in 'bern' to 94 % in 'basel'; a model"
    )


def test_of_several_classes_the_most_different_is_named() -> None:
    shares = {"a": (50, 40, 10), "b": (50, 10, 40), "c": (20, 10, 70)}
    domains = [
        Domain(name, torch.arange(3).repeat_interleave(torch.tensor(counts)), torch.zeros(100, 1))
        for name, counts in shares.items()
    ]
    (note,) = describe_shares(DomainDataset("d", ("p", "q", "r"), tuple(domains)))
    told = "'r' goes from 10 % in 'a' to 70 % in 'c', and that of 2 other classes differs too"
    assert told in note


@pytest.mark.parametrize(
    "made",
    [
        dataset(basel=(50, 50), bern=(36, 64)),  # 14 points are no news
        dataset(basel=(12, 8), bern=(7, 13)),  # 25 points of 20 rows each are chance
        dataset(basel=(10, 0), bern=(0, 10)),  # too few to judge
    ],
)
def test_small_differences_and_chance_are_not_told(made: DomainDataset) -> None:
    assert describe_shares(made) == [] and not FitData(dataset=made).shares_differ


def test_the_terminal_shows_the_shares_only_then(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for made, shown in ((dataset(a=(90, 10), b=(20, 80)), True), (dataset(a=(5, 5)), False)):
        data = FitData(dataset=made)
        print_data(data)
        assert ("(90 %)" in capsys.readouterr().out) is shown
