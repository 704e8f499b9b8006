"""Penalties: pure functions of rows, one row of a statistic per domain.

Only those with a kernel take the examples themselves: its mean embedding has no row of finite
length.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_domains, check_features, check_floating, check_sizes

__all__ = [
    "irm",
    "mmd",
    "mmd_between",
    "mmd_of_losses",
    "pairwise",
    "presence",
    "quantile",
    "spread",
]

# Exponents of the kernels' γ = 10^k, of features and of losses.
WIDTHS, LOSS_WIDTHS = range(-3, 4), range(-4, 4)


def spread(rows: Tensor, present: Tensor | None = None) -> Tensor:
    """Return 1/|𝓔| Σ_e ‖s_e − s̄‖², Eq. 3 when s_e is a gradient variance.

    Averages over the domains that are present. With fewer than two of them the result is zero,
    with its graph intact.

    Args:
        rows: a statistic, ``[E, P]`` or ``[E]``.
        present: which domains take part, bool ``[E]``; by default the rows that are not all zero.
            A statistic returns zeros for a domain with fewer than two examples.

    Example:
        >>> shoal.spread(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor(1.)
        >>> shoal.spread(torch.tensor([[1.0, 5.0], [3.0, 5.0], [0.0, 0.0]]))  # one is absent
        tensor(1.)
    """
    check_floating("rows", rows)
    if rows.ndim not in (1, 2) or rows.numel() == 0:
        raise ValueError(f"rows must be [E, P] or [E], one per domain, got {list(rows.shape)}")
    rows = rows.reshape(len(rows), -1)
    taking_part = presence(rows, present)[:, None]
    weights = taking_part.to(rows.dtype)
    count = weights.sum().clamp(min=1)
    rows = torch.where(taking_part, rows, 0.0)  # 0 · ∞ would let an absent row in
    mean = rows.sum(0) / count
    return ((rows - mean).square() * weights).sum() / count


def pairwise(rows: Tensor) -> Tensor:
    """Return the mean over pairs of domains i < j of ‖s_i − s_j‖², zero with one domain.

    This is 2E/(E − 1) · spread over all domains: one pass instead of one per pair.

    Args:
        rows: a statistic, ``[E, P]`` or ``[E]``.
    """
    check_floating("rows", rows)
    if rows.ndim not in (1, 2) or rows.numel() == 0:
        raise ValueError(f"rows must be [E, P] or [E], one per domain, got {list(rows.shape)}")
    mean = rows.mean(0, keepdim=True).expand_as(rows)
    # Fused: rows can be large, and autograd would keep a difference and its square as well.
    gaps = F.mse_loss(rows, mean, reduction="sum")
    return 2 / max(len(rows) - 1, 1) * gaps


def irm(slopes: Tensor) -> Tensor:
    """Return the mean over domains of the product of two slopes (Arjovsky et al., 2019).

    Each slope comes from half of the domain's examples, so the product is an unbiased estimate of
    the squared slope. It can be negative.

    Args:
        slopes: derivatives of the risk in the scale of the logits, ``[E, 2]``, from
            ``scale_slopes``.
    """
    check_floating("slopes", slopes)
    if slopes.ndim != 2 or slopes.shape[1] != 2:
        raise ValueError(f"slopes must be [E, 2], two per domain, got {list(slopes.shape)}")
    return (slopes[:, 0] * slopes[:, 1]).mean()


def quantile(risks: Tensor, level: float | Tensor) -> Tensor:
    """Return the q with (1/E) Σ_e Φ((q − R_e)/h) = level: a quantile of the risks' density.

    The density has a Gaussian of width h = 1.06 σ E^(−1/5) at each risk, σ² their variance with
    1/(E − 1). If all risks are equal, q is their mean, and so is its gradient.

    Args:
        risks: R_e, ``[E]``.
        level: in (0, 1).
    """
    check_floating("risks", risks)
    if risks.ndim != 1 or len(risks) == 0:
        raise ValueError(f"risks must be [E], one per domain, got {list(risks.shape)}")
    r = risks.double()
    gaps = r - r.mean()
    variance = gaps.square().sum() / max(len(r) - 1, 1)
    differ = variance > 0  # √ has no slope at zero
    h: Tensor = 1.06 * len(r) ** -0.2 * torch.where(differ, variance, 1.0).sqrt() * differ
    with torch.no_grad():
        centres = gaps / torch.where(differ, h, 1.0)
        u = _solve(centres, level) - centres
        p = torch.softmax(-u.square() / 2, 0)
    # Every R_e + u_e h is q. Weighted by the densities p_e at q, with u and p held constant, their
    # gradient is that of q as an implicit function of the risks.
    return (p * (r + u * h)).sum().to(risks.dtype)


def _solve(centres: Tensor, level: float | Tensor) -> Tensor:
    """Return the y with mean Φ(y − centres) = level, to 15 digits, without reading a value."""
    parts = 64
    marks = torch.arange(1, parts, dtype=centres.dtype, device=centres.device)
    low: Tensor = centres.amin() - 9  # Φ(−9) < 1e-18
    width = centres.amax() + 9 - low
    for _ in range(9):
        width = width / parts
        shares = torch.erfc((centres - low - width * marks[:, None]) / math.sqrt(2)).mean(1) / 2
        low = low + width * (shares < level).sum()
    return low + width / 2


def mmd(features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean over pairs of domains i < j of ‖m_i − m_j‖², zero with one domain.

    m_e is the domain's mean embedding under k(x, y) = Σ_γ exp(−γ ‖x − y‖²), γ = 10⁻³ … 10³. This is
    the squared maximum mean discrepancy, including the pairs of an example with itself.

    Args:
        features: ``[n, d]``, sorted by domain.
        sizes: n_e of each domain.
    """
    check_features(features)
    check_sizes(sizes, len(features))
    with torch.autocast(features.device.type, enabled=False):
        z = features if features.dtype == torch.float64 else features.float()
        kernel = _gaussians(_distances(z), WIDTHS)
        # Σ_e ‖m_e − m̄‖² as one weighted sum over the pairs of examples.
        shares = torch.cat([z.new_full((n,), 1 / n) for n in sizes])
        same: Tensor = torch.block_diag(*[z.new_ones(n, n) for n in sizes])
        weights = shares[:, None] * shares * (same - 1 / len(sizes))
        return 2 / max(len(sizes) - 1, 1) * (weights * kernel).sum()


def mmd_between(features: Tensor, domains: Tensor) -> Tensor:
    """Return ‖m_0 − m_1‖² as in ``mmd``, of two domains that only the device knows.

    Args:
        features: ``[n, d]``.
        domains: 0 or 1 for each example, ``[n]``; both must occur.
    """
    check_features(features)
    check_domains(domains, len(features), 2)
    with torch.autocast(features.device.type, enabled=False):
        z = features if features.dtype == torch.float64 else features.float()
        kernel = _gaussians(_distances(z), WIDTHS)
        weights = _share(domains == 0, z.dtype) - _share(domains == 1, z.dtype)
        return (weights[:, None] * weights * kernel).sum()


def mmd_of_losses(losses: Tensor, part: Tensor) -> Tensor:
    """Return ‖m_part − m‖² of the mean embeddings of some losses and of all of them.

    As in ``mmd``, with γ = 10⁻⁴ … 10³.

    Args:
        losses: ℓ_i, ``[n]``.
        part: which of them, bool ``[n]``; at least one.
    """
    check_floating("losses", losses)
    kernel = _gaussians((losses[:, None] - losses).square(), LOSS_WIDTHS)
    weights = _share(part, losses.dtype) - 1 / len(losses)
    return (weights[:, None] * weights * kernel).sum()


def _distances(z: Tensor) -> Tensor:
    """Return the squared distances of all pairs, ``[n, n]``."""
    # A shift changes no distance, and near the origin squares cancel less.
    z = z - z.detach().mean(0)
    products = z @ z.mT
    # The diagonal with the same rounding, so that d(x, x) is zero. Not with diagonal(), whose CPU
    # gradients are wrong in Inductor.
    squares = (products * torch.eye(len(z), dtype=z.dtype, device=z.device)).sum(1)
    return (squares[:, None] + squares - 2 * products).clamp(min=1e-30)


def _gaussians(distances: Tensor, widths: range) -> Tensor:
    """Return Σ_γ (exp(−γ d) − 1), γ = 10^k for k in ``widths``.

    Minus 1 does not change a sum with weights that add up to zero, and avoids cancellation if
    groups agree.
    """
    exponents = torch.arange(
        widths.start, widths.stop, dtype=distances.dtype, device=distances.device
    )
    gammas = torch.pow(10.0, exponents)
    return torch.expm1(-gammas[:, None, None] * distances).sum(0)


def _share(members: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of a mean over the members, ``[n]``; zeros if there is none."""
    weights = members.to(dtype)
    return weights / weights.sum().clamp(min=1)


def presence(rows: Tensor, present: Tensor | None) -> Tensor:
    """Return ``present`` as a bool vector ``[E]``; by default the rows that are not all zero."""
    if present is None:
        return (rows.detach() != 0).reshape(len(rows), -1).any(1)
    if not isinstance(present, Tensor):
        raise TypeError(f"present must be a bool tensor [E], got {type(present).__name__}")
    if present.shape != rows.shape[:1]:
        raise ValueError(
            f"present must have one entry per row, [{len(rows)}], got {list(present.shape)}"
        )
    return present.to(rows.device, torch.bool)
