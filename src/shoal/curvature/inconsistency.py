"""Inconsistency: the score of Proposition 1 for every ordered pair of domains, and its two terms.

With quadratic risks around θ*, R(A, B) = R_B − R_A and H^ε(A, B) = max ½θᵀH_Bθ subject to
½θᵀH_Aθ ≤ ε. ½θᵀH_Bθ takes every value between 0 and H, so I^ε(A, B) = max(|R|, |R + H|).
H is unbounded if H_A vanishes. So curvatures of A below a floor, the same for all domains, count as
the floor, and the score reports how many there were.
"""

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from .roots import Roots

# As a share of the largest curvature of all domains.
FLOOR = 1e-3
# The lowest floor, so that a division gives 0 if nothing is curved.
TINY = 1e-100


@dataclass(frozen=True)
class PairScore:
    """The terms R and H of an ordered pair, I itself, and how many curvatures of A were floored."""

    risk: float
    curvature: float
    floored: int

    @property
    def inconsistency(self) -> float:
        return max(abs(self.risk), abs(self.risk + self.curvature))


@dataclass(frozen=True)
class Scores:
    """The score of every ordered pair, the floor, and whether ε is as small as Eq. eps requires."""

    pairs: dict[tuple[int, int], PairScore]
    epsilon: float
    floor: float
    small_enough: bool

    @property
    def largest(self) -> float:
        """I^ε(θ*): the largest over all pairs; a domain with itself scores ε."""
        return max([self.epsilon, *(score.inconsistency for score in self.pairs.values())])


def inconsistency(roots: Roots, risks: Tensor, epsilon: float, floor: float = FLOOR) -> Scores:
    """Return the scores of full matrices H_e: H^ε(A, B) = ε λ_max(H_B, H_A).

    Args:
        roots: of the domains' Hessians, which for a head are the Fisher matrices.
        risks: R_e, ``[E]``.
        epsilon: ε, the largest allowed increase of a risk.
        floor: the floor of curvatures, as a share of the largest of all domains.
    """
    _check(epsilon, floor)
    domains = range(len(roots.sizes))
    eigen = [roots.eigen(e) for e in domains]
    lowest = max(floor * max(_largest(values) for values, _ in eigen), TINY)
    ratios, floored = {}, {}
    for a, b in permutations(domains, 2):
        values, vectors = eigen[a]
        above = values > lowest
        # 1/max(λ, floor) is 1/floor minus a correction for the eigenvalues above the floor.
        correction = ((1 / lowest - 1 / values) / values).where(above, torch.zeros_like(values))
        across = roots.block(b, a) @ vectors
        matrix = roots.block(b, b) / lowest - (across * correction) @ across.mT
        ratios[a, b] = _largest(torch.linalg.eigvalsh(matrix))
        floored[a, b] = roots.weights - int(above.sum())
    extremes = {}
    for e in domains:
        values = eigen[e][0]
        full = len(values) >= roots.weights
        smallest = float(values[roots.weights - 1]) if full else 0.0
        extremes[e] = (max(smallest, lowest), max(_largest(values), lowest))
    return _scores(ratios, floored, extremes, risks, epsilon, lowest)


def _largest(values: Tensor) -> float:
    """Return the largest eigenvalue; 0 for a domain without examples."""
    return max(float(values.max()), 0.0) if len(values) else 0.0


def diagonal_inconsistency(
    hessian: Tensor, risks: Tensor, epsilon: float, floor: float = FLOOR
) -> Scores:
    """Return the scores of diagonals ``[E, P]``: H^ε(A, B) = ε max_i λ_i^B / λ_i^A."""
    _check(epsilon, floor)
    rows = hessian.double().clamp(min=0)
    lowest = max(floor * float(rows.max()), TINY)
    raised = rows.clamp(min=lowest)
    pairs = list(permutations(range(len(rows)), 2))
    ratios = {(a, b): float((rows[b] / raised[a]).max()) for a, b in pairs}
    floored = {(a, b): int((rows[a] < lowest).sum()) for a, b in pairs}
    extremes = {e: (float(row.min()), float(row.max())) for e, row in enumerate(raised)}
    return _scores(ratios, floored, extremes, risks, epsilon, lowest)


def _scores(
    ratios: dict[tuple[int, int], float],
    floored: dict[tuple[int, int], int],
    extremes: dict[int, tuple[float, float]],
    risks: Tensor,
    epsilon: float,
    lowest: float,
) -> Scores:
    values = risks.double().tolist()
    pairs = {
        (a, b): PairScore(values[b] - values[a], epsilon * ratio, floored[a, b])
        for (a, b), ratio in ratios.items()
    }
    # ε ≤ −R(A, B) λ_min(A) / λ_max(B) for all pairs with R(A, B) < 0
    small = all(
        epsilon <= -score.risk * extremes[a][0] / extremes[b][1]
        for (a, b), score in pairs.items()
        if score.risk < 0
    )
    return Scores(pairs, epsilon, lowest, small)


def _check(epsilon: float, floor: float) -> None:
    for name, value in (("epsilon", epsilon), ("floor", floor)):
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
