"""Named streams: the name is all that matters."""

import itertools
import random

import numpy as np
import torch

from shoal.randomness import stream


def draw(*name: str | int | float) -> list[float]:
    return torch.rand(8, generator=stream(*name)).tolist()


def test_same_name_same_draws() -> None:
    assert draw("split", 3, 0.25) == draw("split", 3, 0.25)
    assert stream("split", 3) is not stream("split", 3)


def test_any_change_of_the_name_changes_the_draws() -> None:
    names = [
        *[("split", 3, 1), ("split", 3, 2), ("split", 4, 1), ("order", 3, 1), ("Split", 3, 1)],
        *[("split", 1, 3), (3, "split", 1), ("split", 31), ("split", 3), ("split", 3, 1, 0)],
        *[("split", "3", 1), ("split", 3.0, 1), ("split", -3, 1), ("split3", 1), ("split 3 1",)],
        *[("split",), ("s", "plit"), ("split", ""), ("",), (), ("split', 3, 1",)],
    ]
    found = [draw(*name) for name in names]
    for (a, first), (b, second) in itertools.combinations(zip(names, found, strict=True), 2):
        assert first != second, (a, b)


def test_neighbours_have_nothing_in_common() -> None:
    """Not even a correlation: seeds that differ by one must not give similar numbers."""
    rows = torch.stack([torch.randn(2_000, generator=stream("restart", i)) for i in range(20)])
    correlations = torch.corrcoef(rows.double()) - torch.eye(20)
    assert correlations.abs().max() < 5 / 2_000**0.5
    assert rows.mean().abs() < 4 / 40_000**0.5
    assert len({stream("restart", i).initial_seed() for i in range(1_000)}) == 1_000


def test_global_state_neither_matters_nor_changes() -> None:
    torch.manual_seed(0)
    first = draw("a", 1)
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert draw("a", 1) == first
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_draws_of_one_stream_do_not_move_another() -> None:
    first, second = stream("a"), stream("b")
    torch.rand(100, generator=first)
    assert torch.rand(8, generator=second).tolist() == draw("b")
    assert torch.rand(8, generator=first).tolist() != draw("a")


def test_a_stream_is_on_the_host() -> None:
    assert stream("a").device == torch.device("cpu")


def test_seeds_are_the_same_in_every_process_and_release() -> None:
    """Records name a restart, not a seed: this number may never change."""
    assert stream("colored-mnist", "order", 0).initial_seed() == 9223361789132933727
