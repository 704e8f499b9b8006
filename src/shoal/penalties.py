"""Penalties: pure functions of rows, one row of a statistic per domain."""

import torch
from torch import Tensor

from .checks import check_floating


def spread(rows: Tensor, present: Tensor | None = None) -> Tensor:
    """Return 1/|𝓔| Σ_e ‖s_e − s̄‖², Eq. 3 when s_e is a gradient variance.

    Averages over, and divides by, the domains that are present. With fewer than two of them the
    result is zero and its graph intact.

    Args:
        rows: a statistic, ``[E, P]`` or ``[E]``.
        present: which domains take part, bool ``[E]``; by default the rows that are not all
            zero, which is how a statistic marks a domain with fewer than two examples.
    """
    check_floating("rows", rows)
    if rows.ndim not in (1, 2):
        raise ValueError(f"rows must be [E, P] or [E], one per domain, got {list(rows.shape)}")
    rows = rows.reshape(len(rows), -1)
    weights = presence(rows, present).to(rows.dtype)[:, None]
    count = weights.sum().clamp(min=1)
    mean = (rows * weights).sum(0) / count
    return ((rows - mean).square() * weights).sum() / count


def presence(rows: Tensor, present: Tensor | None) -> Tensor:
    """Return ``present`` as a bool vector ``[E]``, by default the rows that are not all zero."""
    if present is None:
        return (rows.detach() != 0).reshape(len(rows), -1).any(1)
    if present.shape != rows.shape[:1]:
        raise ValueError(
            f"present must have one entry per row, [{len(rows)}], got {list(present.shape)}"
        )
    return present.to(rows.device, torch.bool)
