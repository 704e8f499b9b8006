"""Named streams: draws depend on the name alone."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.randomness import Draws, stream


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
    """Not even a correlation: names that differ by one must not give similar numbers."""
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
    """Records name a restart, not a seed, so this number must never change."""
    assert stream("colored-mnist", "order", 0).initial_seed() == 9223361789132933727


# Draws: numbers from a name and a counter, on the device


def plain_splitmix(key: int, count: int, n: int) -> list[int]:
    """SplitMix64 in Python's whole numbers."""
    wrap = 2**64 - 1
    step = 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wrap
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wrap
        return x ^ (x >> 31)

    start = mix((count * step + key) & wrap)
    return [mix((start + i * step) & wrap) for i in range(1, n + 1)]


def test_bits_are_splitmix() -> None:
    draws = Draws("bits", 3)
    for count in range(3):
        found = [x % 2**64 for x in draws.bits(50).tolist()]
        assert found == plain_splitmix(int(draws.key), count, 50)


def test_compiled_bits_are_the_same_bits() -> None:
    """Also if only a part is used: Inductor then reads the range from its middle."""

    def parts(draws: Draws) -> tuple[Tensor, Tensor]:
        bits = draws.bits(60).view(10, 6)
        return bits[:, :2] + 0, bits[:, 3:5] + 0

    eager, compiled = Draws("bits", 3), Draws("bits", 3)
    torch._dynamo.reset()
    compiled_parts = torch.compile(parts, fullgraph=True)
    for _ in range(3):
        for found, expected in zip(compiled_parts(compiled), parts(eager), strict=True):
            assert torch.equal(found, expected)


def test_draws_depend_on_name_and_count_alone() -> None:
    one, same, other = Draws("a", 1), Draws("a", 1), Draws("a", 2)
    first, second = one.uniform(5), one.uniform(5)
    assert torch.equal(same.uniform(5), first)
    assert not torch.equal(first, second)
    assert not torch.equal(other.uniform(5), first)
    resumed = Draws("a", 1)
    resumed.load_state_dict({"count": torch.tensor(1)})
    assert torch.equal(resumed.uniform(5), second)


def test_draws_do_not_change_the_global_state() -> None:
    before = torch.get_rng_state()
    draws = Draws("x")
    draws.beta(0.2, 4), draws.permutation(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_uniform_numbers_are_uniform() -> None:
    draws = Draws("uniform")
    many = torch.cat([draws.uniform(1000) for _ in range(200)])
    assert many.min() > 0 and many.max() < 1
    counts = torch.histc(many, 20, 0, 1)
    chi2 = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi2 < 45  # 99.9 % of 19 degrees of freedom is 43.8
    rows = many.view(200, 1000)
    assert torch.corrcoef(torch.stack([rows[:-1].flatten(), rows[1:].flatten()]))[0, 1].abs() < 0.01
    assert torch.corrcoef(torch.stack([many[:-1], many[1:]]))[0, 1].abs() < 0.01


def test_every_permutation_comes_equally_often() -> None:
    draws = Draws("permutation")
    counts = Counter(tuple(draws.permutation(3).tolist()) for _ in range(6000))
    assert len(counts) == 6
    assert all(abs(count - 1000) < 120 for count in counts.values())


@pytest.mark.parametrize("a", [0.1, 0.2, 1.0, 8.0])
def test_beta_numbers_have_the_moments_and_quantiles_of_beta(a: float) -> None:
    many = Draws("beta", a).beta(a, 20_000)
    assert many.isfinite().all() and (many >= 0).all() and (many <= 1).all()
    assert abs(many.mean() - 0.5) < 0.01
    assert abs(many.var() - 1 / (4 * (2 * a + 1))) < 0.004
    reference = torch.tensor(np.random.RandomState(0).beta(a, a, 50_000))
    for share in (0.1, 0.25, 0.4):
        below = float(np.quantile(reference, share))
        assert abs((many < below).double().mean() - share) < 0.01


def test_a_uniform_number_of_any_bits_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    monkeypatch.setattr(Draws, "bits", lambda self, n: extremes)
    found = Draws("x").uniform(4)
    assert (found > 0).all() and (found < 1).all()


def test_gamma_has_a_candidate_to_spare() -> None:
    """One of 32 candidates is accepted; of two, none would be in one case of 400."""
    draws = Draws("gamma")
    many = torch.cat([draws._log_gamma(1.0, 20_000) for _ in range(10)]).exp()
    assert abs(many.mean() - 1) < 0.01
    for quantile in (0.001, 0.01, 0.99, 0.999):  # of Gamma(1), an exponential
        below = -np.log1p(-quantile)
        share = float((many < below).double().mean())
        assert abs(share - quantile) < 4.5 * np.sqrt(quantile * (1 - quantile) / len(many))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernel_draws_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = (Draws("x", 3, device=torch.device("cuda", 0)) for _ in range(2))
    for n in (0, 1, 700, 100_001):
        found = ours.bits(n), ours.uniform(n)
        with monkeypatch.context() as patch:
            patch.setattr("shoal.random_kernels.triton", None)
            truth = plain.bits(n), plain.uniform(n)
        assert all(map(torch.equal, found, truth))
        assert [one.dtype for one in found] == [torch.int64, torch.float64]
        assert torch.equal(ours.count, plain.count)
