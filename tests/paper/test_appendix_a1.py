"""The inconsistency of quadratic bowls (\\label{appendix:limitincon}, Proposition 1)."""

from itertools import product

import pytest
import torch
from torch import Tensor

from shoal.curvature import Scores, diagonal_inconsistency, inconsistency, of_matrices

DOMAINS, WEIGHTS, POINTS = 3, 3, 200_000


def bowls(seed: int) -> tuple[Tensor, Tensor]:
    """Return risks R_e(θ*) and positive definite Hessians of domains that share the minimum θ*."""
    generator = torch.Generator().manual_seed(seed)
    roots = torch.randn(DOMAINS, WEIGHTS, WEIGHTS, generator=generator, dtype=torch.float64)
    hessians = roots @ roots.mT + 0.3 * torch.eye(WEIGHTS, dtype=torch.float64)
    return torch.rand(DOMAINS, generator=generator, dtype=torch.float64), hessians


def searched(risks: Tensor, hessians: Tensor, a: int, b: int, epsilon: float) -> float:
    """Return max |R_B(θ) − R_A(θ*)| over many θ with |R_A(θ) − R_A(θ*)| ≤ ε, by search."""
    generator = torch.Generator().manual_seed(9)
    directions = torch.randn(POINTS, WEIGHTS, generator=generator, dtype=torch.float64)
    height = 0.5 * torch.einsum("ni,ij,nj->n", directions, hessians[a], directions)
    border = directions * (epsilon / height).sqrt()[:, None]
    inside = border * torch.linspace(0, 1, POINTS, dtype=torch.float64)[:, None]
    points = torch.cat([border, inside])
    values = risks[b] + 0.5 * torch.einsum("ni,ij,nj->n", points, hessians[b], points)
    return float((values - risks[a]).abs().max())


def bound(risks: Tensor, hessians: Tensor) -> float:
    """Return the largest ε of Eq. \\ref{eq:eps}: −R(A, B) λ_h^A / λ_1^B for all R(A, B) < 0."""
    values = torch.linalg.eigvalsh(hessians)
    return min(
        float((risks[a] - risks[b]) * values[a, 0] / values[b, -1])
        for a, b in product(range(DOMAINS), repeat=2)
        if risks[b] < risks[a]
    )


def scores(risks: Tensor, hessians: Tensor, epsilon: float) -> Scores:
    return inconsistency(of_matrices(hessians), risks, epsilon)


def sums(found: Scores) -> dict[tuple[int, int], float]:
    """Return R(A, B) + H^ε(A, B); a domain with itself has ε."""
    own = {(e, e): found.epsilon for e in range(DOMAINS)}
    return own | {pair: one.risk + one.curvature for pair, one in found.pairs.items()}


@pytest.mark.parametrize("times", [0.5, 50.0], ids=["small ε", "large ε"])
@pytest.mark.parametrize("seed", range(4))
def test_score_of_every_pair_agrees_with_a_search(seed: int, times: float) -> None:
    risks, hessians = bowls(seed)
    epsilon = times * bound(risks, hessians)
    found = scores(risks, hessians, epsilon)
    for (a, b), score in found.pairs.items():
        best = searched(risks, hessians, a, b, epsilon)
        assert best <= score.inconsistency * (1 + 1e-9)
        assert best >= score.inconsistency * (1 - 1e-3)
        assert score.risk == float(risks[b] - risks[a]) and score.floored == 0


@pytest.mark.parametrize("seed", range(8))
def test_equality_holds_and_its_largest_pair_does_not_gain_if_epsilon_is_small(
    seed: int,
) -> None:
    """max I^ε(A, B) = max (R(A, B) + H^ε(A, B)), reached for R(A, B) ≥ 0."""
    risks, hessians = bowls(seed)
    epsilon = 0.99 * bound(risks, hessians)
    found = scores(risks, hessians, epsilon)
    assert found.small_enough
    together = sums(found)
    assert abs(found.largest - max(together.values())) <= 1e-12
    a, b = max(together, key=lambda pair: together[pair])
    assert risks[b] >= risks[a]
    for pair, score in found.pairs.items():
        if score.risk < 0:
            # The proof writes −R − H; the maximum of |R + x| over 0 ≤ x ≤ H is −R, at θ*.
            assert score.inconsistency == -score.risk
            assert together[pair] < 0


def test_case_that_violates_the_condition() -> None:
    """A flat domain with the higher risk: the largest pair has R < 0, which the proof excludes.

    The equality of the two maxima holds nevertheless, here and for every ε: if R < 0, the pair
    gives |R + H|, and if that is not R + H, it is below R(B, A).
    """
    risks = torch.tensor([0.5, 0.4], dtype=torch.float64)
    hessians = torch.diag_embed(torch.tensor([[0.1, 0.1], [5.0, 1.0]], dtype=torch.float64))
    found = scores(risks, hessians, 0.1)
    assert not found.small_enough
    assert found.pairs[0, 1].risk < 0
    assert found.pairs[0, 1].inconsistency == found.largest == pytest.approx(0.1 * 50 - 0.1)
    assert found.pairs[1, 0].inconsistency == pytest.approx(0.1 + 0.1 * 0.1)
    assert scores(risks, hessians, 1e-4).pairs[0, 1].inconsistency == pytest.approx(0.1)


@pytest.mark.parametrize("times", [0.1, 1.0, 3.0, 10.0, 100.0, 1e4])
def test_equality_needs_no_bound_on_epsilon(times: float) -> None:
    for seed in range(20):
        risks, hessians = bowls(seed)
        found = scores(risks, hessians, times * bound(risks, hessians))
        assert found.largest == pytest.approx(max(sums(found).values()), rel=1e-12)


def test_diagonal_hessians_give_the_largest_ratio() -> None:
    """H^ε(A, B) = ε max_i λ_i^B / λ_i^A, which agrees with full matrices."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(DOMAINS, WEIGHTS, generator=generator, dtype=torch.float64) + 0.1
    risks = torch.rand(DOMAINS, generator=generator, dtype=torch.float64)
    diagonal = diagonal_inconsistency(rows, risks, 0.2)
    full = scores(risks, torch.diag_embed(rows), 0.2)
    for (a, b), score in diagonal.pairs.items():
        assert score.curvature == pytest.approx(0.2 * float((rows[b] / rows[a]).max()))
        assert full.pairs[a, b].curvature == pytest.approx(score.curvature, rel=1e-9)
    assert diagonal.small_enough == full.small_enough


def test_directions_that_are_flat_in_a_count_as_the_floor() -> None:
    rows = torch.tensor([[1.0, 0.0, 1e-9], [2.0, 3.0, 0.0]], dtype=torch.float64)
    risks = torch.zeros(2, dtype=torch.float64)
    for found in (
        diagonal_inconsistency(rows, risks, 1.0, floor=1e-3),
        inconsistency(of_matrices(torch.diag_embed(rows)), risks, 1.0, floor=1e-3),
    ):
        assert found.floor == pytest.approx(3e-3)
        assert found.pairs[0, 1].floored == 2 and found.pairs[1, 0].floored == 1
        assert found.pairs[0, 1].curvature == pytest.approx(3 / 3e-3)
        assert found.pairs[1, 0].curvature == pytest.approx(0.5)
