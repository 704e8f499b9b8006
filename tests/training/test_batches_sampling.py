"""Which examples make a batch: uniform, balanced, and of nothing but name and step."""

import inspect

import pytest
import torch
from torch import Tensor

from shoal.randomness import Draws
from shoal.training.batches import Sampler
from tests.test_capture_safety import NoQuestions

CPU = torch.device("cpu")
EXAMPLES = torch.tensor([5, 2, 9, 14, 30, 7, 8])
# Classes 0, 1 and 3 have 4, 1 and 2 of them; there is no 2.
LABELS = torch.tensor([0, 3, 0, 0, 1, 3, 0])


# Whole numbers and fractions; one example is never drawn.
WHOLE = torch.tensor([2.0, 1, 3, 1, 5, 0, 1], dtype=torch.float64)
FRACTIONS = torch.tensor([0.5, 0.25, 3, 1e-3, 1.7, 0, 0.1], dtype=torch.float64)


def sampler(
    labels: Tensor | None = None, *name: str | int, weights: Tensor | None = None
) -> Sampler:
    return Sampler(EXAMPLES, labels, name or ("data", 0, "a"), CPU, weights)


def shares(found: Tensor) -> dict[int, float]:
    return {int(k): float((found == k).double().mean()) for k in EXAMPLES}


def test_examples_are_uniform_and_come_again() -> None:
    n = 70_000
    found = sampler()(n)
    assert set(found.tolist()) == set(EXAMPLES.tolist())
    for share in shares(found).values():
        assert abs(share - 1 / 7) < 5 * (6 / 49 / n) ** 0.5  # five standard deviations
    # With replacement: neighbours are equal as often as anything else.
    same = float((found[1:] == found[:-1]).double().mean())
    assert abs(same - 1 / 7) < 5 * (6 / 49 / n) ** 0.5


def test_balanced_is_one_over_the_count_of_the_class() -> None:
    """As with DomainBed's weights 1 / (count_y · classes), a class that is absent aside."""
    n = 70_000
    counts = torch.bincount(LABELS)
    weights = 1 / counts[LABELS].double()
    expected = weights / weights.sum()
    found = shares(sampler(LABELS)(n))
    for example, share in zip(EXAMPLES.tolist(), expected.tolist(), strict=True):
        assert abs(found[example] - share) < 5 * (share * (1 - share) / n) ** 0.5
    assert [round(float(share) * 12) for share in expected] == [1, 2, 1, 1, 4, 2, 1]


@pytest.mark.parametrize("labels", [None, LABELS])
def test_a_batch_against_a_plain_loop(labels: Tensor | None) -> None:
    draws, mine = Draws("batches", "data", 3, "a", device=CPU), sampler(labels, "data", 3, "a")
    kinds = [EXAMPLES.tolist()]
    if labels is not None:
        kinds = [EXAMPLES[labels == kind].tolist() for kind in (0, 1, 3)]
    for _ in range(3):
        bits = [int(number) % 2**62 for number in draws.bits(10)]
        expected = []
        for first, second in zip(bits[::2], bits[1::2], strict=True):
            kind = kinds[first % len(kinds)]
            expected.append(kind[second % len(kind)])
        assert mine(5).tolist() == expected


@pytest.mark.parametrize("weights", [WHOLE, FRACTIONS], ids=["whole", "fractions"])
@pytest.mark.parametrize("labels", [None, LABELS], ids=["plain", "balanced"])
def test_weights_are_shares_of_the_draws(labels: Tensor | None, weights: Tensor) -> None:
    n = 70_000
    expected = weights / weights.sum()
    if labels is not None:
        totals = torch.zeros(4, dtype=torch.float64).index_add_(0, labels, weights)
        expected = weights / totals[labels] / (totals > 0).sum()
    found = shares(sampler(labels, weights=weights)(n))
    for example, share in zip(EXAMPLES.tolist(), expected.tolist(), strict=True):
        assert abs(found[example] - share) <= 5 * (share * (1 - share) / n) ** 0.5
    assert found[7] == 0


@pytest.mark.parametrize("labels", [None, LABELS], ids=["plain", "balanced"])
def test_whole_weights_draw_what_repeated_examples_draw(labels: Tensor | None) -> None:
    times = WHOLE.long()
    repeated = Sampler(
        EXAMPLES.repeat_interleave(times),
        None if labels is None else labels.repeat_interleave(times),
        ("data", 0, "a"),
        CPU,
    )
    for weights in (WHOLE, WHOLE * 2**50, WHOLE / 3):  # the last two have no whole places
        mine = sampler(labels, weights=weights)
        same = [torch.equal(mine(50), repeated(50)) for _ in range(3)]
        repeated.draws.count.zero_()
        assert all(same) == (weights is WHOLE)
    ones = sampler(labels, weights=torch.ones(7))
    assert torch.equal(ones(50), sampler(labels)(50))


def test_fractions_of_any_scale_are_alike() -> None:
    """The number of parts is fixed, so one factor for all weights changes no draw."""
    expected = sampler(weights=FRACTIONS)(500)
    for factor in (1e-9, 7.3, 1e12):
        assert torch.equal(sampler(weights=FRACTIONS * factor)(500), expected)


@pytest.mark.parametrize("labels", [None, LABELS])
def test_a_larger_batch_begins_with_a_smaller_one(labels: Tensor | None) -> None:
    small, large = sampler(labels), sampler(labels)
    for _ in range(3):
        assert torch.equal(small(4), large(11)[:4])


def test_only_the_name_and_the_step_matter() -> None:
    one, same = sampler(None, "data", 0, "test", "a"), sampler(None, "data", 0, "test", "a")
    steps = [one(20).tolist() for _ in range(3)]
    assert steps == [same(20).tolist() for _ in range(3)]
    assert len({tuple(step) for step in steps}) == 3
    for name in (("other", 0, "test", "a"), ("data", 1, "test", "a"), ("data", 0, "a", "test")):
        assert sampler(None, *name)(20).tolist() != steps[0]
    # Nothing about a method can reach it, nor does it touch the global random state.
    known = ["examples", "labels", "name", "device", "weights"]
    assert list(inspect.signature(Sampler).parameters) == known
    before = torch.get_rng_state()
    one(20)
    assert torch.equal(torch.get_rng_state(), before)


def test_its_state_is_the_count_of_steps() -> None:
    one, other = sampler(), sampler()
    assert list(one.state_dict()) == ["draws.count"]
    for _ in range(4):
        one(8)
    assert int(one.state_dict()["draws.count"]) == 4
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(8), other(8))


@pytest.mark.parametrize("weights", [None, FRACTIONS])
@pytest.mark.parametrize("labels", [None, LABELS])
def test_it_can_be_captured(labels: Tensor | None, weights: Tensor | None) -> None:
    mine = sampler(labels, weights=weights)
    before = mine.draws.count.data_ptr()
    with NoQuestions():
        mine(8)
        mine(8)
    assert mine.draws.count.data_ptr() == before


def test_examples_that_were_given_are_left_alone() -> None:
    before = EXAMPLES.clone()
    sampler(LABELS)(50)
    assert torch.equal(EXAMPLES, before)
