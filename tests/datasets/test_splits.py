"""DomainBed's split: the same numbers, disjoint, complete, and independent of the test domains."""

import numpy as np
import pytest
import torch

from shoal.datasets import Domain, DomainDataset, split, splits
from shoal.randomness import domainbed_hash


def test_golden_vector() -> None:
    found = split(10, trial=0, place=0)
    assert found.held_out.tolist() == [2, 3]
    assert found.kept.tolist() == [8, 1, 4, 5, 0, 9, 6, 7]


@pytest.mark.parametrize(("trial", "place", "n"), [(0, 1, 23_333), (2, 0, 1_670), (1, 3, 77)])
def test_a_list_shuffled_by_hand_is_the_same(trial: int, place: int, n: int) -> None:
    keys = list(range(n))
    np.random.RandomState(domainbed_hash(trial, place)).shuffle(keys)
    found = split(n, trial, place)
    assert found.held_out.tolist() == keys[: int(0.2 * n)]
    assert found.kept.tolist() == keys[int(0.2 * n) :]


@pytest.mark.parametrize(("n", "held_out"), [(23_334, 4_666), (23_333, 4_666), (9, 1), (5, 1)])
def test_sizes(n: int, held_out: int) -> None:
    found = split(n, 0, 0)
    assert (len(found.held_out), len(found.kept)) == (held_out, n - held_out)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 1_001])
@pytest.mark.parametrize("holdout", [0.0, 0.2, 0.5])
def test_disjoint_and_complete(n: int, holdout: float) -> None:
    found = split(n, 4, 2, holdout)
    assert torch.cat(found).sort().values.tolist() == list(range(n))
    assert len(found.held_out) == int(n * holdout)
    assert all(part.dtype == torch.int64 for part in found)


def test_one_image_is_kept_and_nothing_held_out() -> None:
    found = split(1, 0, 0)
    assert found.kept.tolist() == [0]
    assert found.held_out.tolist() == []


def test_trial_and_place_each_matter_and_numpy_numbers_do_not() -> None:
    first = split(100, 0, 0).kept.tolist()
    assert split(100, 1, 0).kept.tolist() != first
    assert split(100, 0, 1).kept.tolist() != first
    assert split(100, np.int64(0), np.int64(0)).kept.tolist() == first


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="trial must be 0 or more, got -2"):
        split(10, -2, 0)
    for holdout in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="holdout must be 0 or more and below 1"):
            split(10, 0, 0, holdout)


def test_splits_by_name_are_the_same_without_the_test_domain() -> None:
    names = ("north", "east", "south")
    images = torch.zeros(50, 1, 1, 1, dtype=torch.uint8)
    domains = tuple(Domain(name, torch.zeros(50, dtype=torch.int64), images) for name in names)
    dataset = DomainDataset("compass", ("all",), domains)
    whole = splits(dataset, 1)
    assert tuple(whole) == names
    for place, name in enumerate(names):
        assert torch.equal(whole[name].kept, split(50, 1, place).kept)
    rest = splits(dataset.without(["north"]), 1)
    assert tuple(rest) == ("east", "south")
    assert all(torch.equal(rest[name].kept, whole[name].kept) for name in rest)
    quarter = splits(dataset, 1, holdout=0.25)
    assert len(quarter["east"].held_out) == 12
