"""Moments of the gradients r_i ⊗ z_i of a linear layer: matrix products, no [n, P] tensor.

With ρ = r − r̄ and ζ = z − z̄ the deviation of one gradient from their mean is

    g_i − ḡ = r_i ⊗ ζ_i + ρ_i ⊗ z̄ − m,    m = E[ρ ⊗ ζ],

whose square needs three products and cancels nothing when r and z are each nearly constant; the
plain E[g²] − E[g]² loses everything there in float32. The bias has gradient r_i.
Letters: n examples, E domains, o outputs, k inputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .groups import Sorted
from .masked import Groups


class Centre(NamedTuple):
    """Means of z ``[E, k]`` and of r ``[E, o]``, and m ``[E, o, k]``."""

    z: Tensor
    r: Tensor
    m: Tensor


def deviations(
    z: Tensor, r: Tensor, groups: Groups, out: Tensor | None = None
) -> tuple[Centre, Tensor, Tensor]:
    """Return the centre and Σ_i (g_i − ḡ)² of the weight ``[E, o, k]`` and the bias ``[E, o]``.

    The weight's share is written to ``out`` where one is given.
    """
    z_mean, r_mean = groups.mean(z), groups.mean(r)
    ζ, ρ = groups.centre(z, z_mean), groups.centre(r, r_mean)
    bias = groups.total(ρ.square())
    m = groups.outer(groups.shared(ρ), ζ)
    # Σ r²ζ² + 2 z̄ (Σ rρζ + z̄ Σ ρ² / 2) − n m²
    z_row = z_mean[:, None]
    if isinstance(groups, Sorted) and groups.few:  # one product, over 2n + 1 rows
        left = [groups.cube(r * ρ), groups.cube(r.square()), bias[:, None]]
        right = [groups.cube(ζ) * (2 * z_row), groups.cube(ζ.square()), z_row.square()]
        weight = torch.bmm(torch.cat(left, 1).mT, torch.cat(right, 1))
    else:
        cross = torch.addcmul(groups.outer(r * ρ, ζ), z_row, bias[:, :, None], value=0.5)
        weight = torch.addcmul(groups.outer(r.square(), ζ.square()), cross, z_row, value=2)
    weight = torch.clamp(groups.subtract_squares(weight, m), min=0, out=out)
    return Centre(z_mean, r_mean, m), weight, bias


def mean_of(centre: Centre, out: Tensor | None = None) -> Tensor:
    """Return ḡ = r̄ ⊗ z̄ + m of the weight, ``[E, o, k]``."""
    return torch.addcmul(centre.m, centre.r[:, :, None], centre.z[:, None], out=out)


def squares(z: Tensor, r: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Return Σ_i g_i² of the weight ``[E, o, k]`` and the bias ``[E, o]``."""
    squared = r.square()
    return groups.outer(squared, z.square()), groups.total(squared)


def pull_back(
    z: Tensor,
    r: Tensor,
    groups: Groups,
    c: tuple[Tensor, Tensor | None],
    mean: tuple[Tensor, Tensor] | None,
    want_z: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients in z and r of ½ Σ_i ⟨c_e, (g_i − ḡ_e)²⟩, ḡ_e held fixed (or zero).

    Holding ḡ_e is exact for a variance, whose derivative in it vanishes, and is what a chunk must
    do. r ∘ (z²cᵀ) − z(c ∘ ḡ)ᵀ cancels at most |g|/|g − ḡ| roundings, as r and z themselves do.

    Args:
        c: the cotangents of weight ``[E, o, k]`` and bias ``[E, o]``.
        mean: ḡ of weight and bias.
    """
    weight, bias = c
    if mean is None:
        dr = groups.apply(z.square(), weight.mT)
        dz = groups.apply(r.square(), weight) if want_z else None
        if bias is not None:
            groups.add_(dr, bias)
        return None if dz is None else dz.mul_(z), dr.mul_(r)
    both = weight.new_empty(2, *weight.shape)
    both[0] = weight
    torch.mul(weight, mean[0], out=both[1])
    dr = groups.less(r, z.square(), z, both.mT, bias)
    if bias is not None:
        groups.add_(dr, bias * mean[1], -1)
    dz = groups.less(z, r.square(), r, both, None) if want_z else None
    return dz, dr


def individual(z: Tensor, r: Tensor, bias: bool) -> Tensor:
    """Return g_i, ``[n, P]``: weight, then bias."""
    weight = (r[:, :, None] * z[:, None]).flatten(1)
    return torch.cat([weight, r], 1) if bias else weight
