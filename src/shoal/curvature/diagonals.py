"""Every diagonal of the paper's chain H ≈ F ≈ F̃ ∝ C, side by side."""

from dataclasses import dataclass

from torch import Tensor

from ..gradients.groups import Sorted


@dataclass(frozen=True)
class Diagonals:
    """One row per domain, in the order of P; a domain with fewer than two examples has zeros.

    Args:
        sizes: n_e.
        risks: R_e, ``[E]``.
        mean: g_e, ``[E, P]``.
        variance: Var(G_e) = Diag(C_e) with 1/(n − 1), Eq. 2.
        empirical: Diag(F̃_e) / n_e, the uncentred variance.
        fisher: Diag(F_e) / n_e, with labels drawn from the model; what Gauss-Newton has too.
        hessian: Diag(H_e) of the mean risk.
    """

    sizes: tuple[int, ...]
    risks: Tensor
    mean: Tensor
    variance: Tensor
    empirical: Tensor
    fisher: Tensor
    hessian: Tensor


def from_moments(
    groups: Sorted, losses: Tensor, mean: Tensor, m2: Tensor, fisher: Tensor, hessian: Tensor
) -> Diagonals:
    """Return the diagonals of ḡ and M2 = Σ_i (g_i − ḡ)², ``[E, P]``, and of losses ``[n]``."""
    counts = groups.counts.to(m2.dtype)[:, None]
    present = counts >= 2
    zero = m2.new_zeros(())
    variance = m2 / (counts - 1).clamp(min=1)
    # E[g²] = M2 / n + ḡ² adds what is not negative: nothing cancels.
    empirical = m2 / counts.clamp(min=1) + mean.square()
    rows = (mean, variance, empirical, fisher, hessian)
    kept = [row.where(present, zero) for row in rows]
    risks = groups.mean(losses[:, None]).where(present, zero)[:, 0]
    return Diagonals(groups.sizes, risks, *kept)
