"""Moments of the gradients r_i ⊗ z_i of a linear layer: matrix products, no [n, P] tensor.

With ρ = r − r̄ and ζ = z − z̄ the deviation of one gradient from their mean is

    g_i − ḡ = r_i ⊗ ζ_i + ρ_i ⊗ z̄ − m,    m = E[ρ ⊗ ζ],

whose square needs three products and cancels nothing when r and z are each nearly constant.
Letters: n examples, E domains, o outputs, k inputs.
"""

from typing import NamedTuple

from torch import Tensor

from .groups import Groups


class Centre(NamedTuple):
    """What a pull-back needs again: means of z ``[E, k]`` and r ``[E, o]``, m ``[E, o, k]``."""

    z: Tensor
    r: Tensor
    m: Tensor


def centre_of(z: Tensor, r: Tensor, groups: Groups, counts: Tensor) -> Centre:
    z_mean, r_mean = groups.total(z) / counts[:, None], groups.total(r) / counts[:, None]
    m = groups.outer(groups.centre(r, r_mean), groups.centre(z, z_mean)) / counts[:, None, None]
    return Centre(z_mean, r_mean, m)


def mean_of(centre: Centre) -> Tensor:
    """Return ḡ = r̄ ⊗ z̄ + m, ``[E, o, k]``."""
    return centre.m.addcmul(centre.r[:, :, None], centre.z[:, None])


def deviations(z: Tensor, r: Tensor, groups: Groups) -> tuple[Centre, Tensor]:
    """Return the centre and M2 = Σ_i (g_i − ḡ)², ``[E, o, k]``, by the formula above."""
    counts = groups.counts.to(z.dtype).clamp(min=1)
    z_mean, r_mean = groups.total(z) / counts[:, None], groups.total(r) / counts[:, None]
    ζ, ρ = groups.centre(z, z_mean), groups.centre(r, r_mean)
    m2 = groups.outer(r.square(), ζ.square())
    cross = groups.outer(r * ρ, ζ)
    m = groups.outer(ρ, ζ) / counts[:, None, None]
    z_row = z_mean[:, None]
    # 2 z̄ Σ rρζ + z̄² Σ ρ² − n m², in place on the largest tensor.
    cross.mul_(2).addcmul_(z_row, groups.total(ρ.square())[:, :, None])
    m2.addcmul_(cross, z_row).addcmul_(m.square(), counts[:, None, None], value=-1)
    return Centre(z_mean, r_mean, m), m2.clamp_(min=0)


def squares(z: Tensor, r: Tensor, groups: Groups) -> Tensor:
    """Return Σ_i g_i², ``[E, o, k]``."""
    return groups.outer(r.square(), z.square())


def pull_back(
    z: Tensor, r: Tensor, groups: Groups, c: Tensor, centre: Centre, want_z: bool = True
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients in z and r of Σ_i ⟨c_e, (g_i − ḡ_e)²⟩ with ḡ_e held fixed.

    Holding ḡ_e is exact for M2 (its own derivative vanishes) and is what a chunk must do.
    """
    ζ, ρ = groups.centre(z, centre.z), groups.centre(r, centre.r)
    z_row = centre.z[:, None]
    cz, cm = c * z_row, c * centre.m
    dr = (r + ρ).mul_(groups.apply(ζ, cz.mT))
    dr.addcmul_(r, groups.apply(ζ.square(), c.mT)).sub_(groups.apply(ζ, cm.mT))
    dr.add_(ρ * groups.expand((cz * z_row).sum(2))).sub_(groups.expand((cm * z_row).sum(2)))
    if not want_z:
        return None, dr.mul_(2)
    dz = ζ.mul_(groups.apply(r.square(), c))
    dz.addcmul_(groups.expand(centre.z), groups.apply(ρ.mul_(r), c)).sub_(groups.apply(r, cm))
    return dz.mul_(2), dr.mul_(2)


def pull_back_squares(
    z: Tensor, r: Tensor, groups: Groups, c: Tensor, want_z: bool = True
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients in z and r of Σ_i ⟨c_e, g_i²⟩."""
    dr = groups.apply(z.square(), c.mT).mul_(r).mul_(2)
    dz = groups.apply(r.square(), c).mul_(z).mul_(2) if want_z else None
    return dz, dr
