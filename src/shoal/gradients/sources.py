"""Sources of individual gradients: the ``GradientSource`` protocol, and linear layers as products.

A source returns the moments of a weight's individual gradients per domain, and pulls a cotangent of
those moments back to the tensors that the gradients are computed from.
Letters: n examples, E domains, o outputs, k inputs, P weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..transforms import transformed
from .domains import DomainGroups, SortedDomains

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Form:
    """Which second moment: centred or not, 1/(n−1) or 1/n."""

    centered: bool = True
    unbiased: bool = True

    def scale(self, counts: Tensor) -> Tensor:
        """Return the factor of Σ_i, ``[E, 1]``; 0 for a domain that is absent (n < 2)."""
        divisor = counts - 1 if self.centered and self.unbiased else counts
        return torch.where(counts >= 2, 1 / divisor.clamp(min=1), 0.0)[:, None]

    def scale_of(self, groups: DomainGroups, dtype: torch.dtype) -> Tensor | float:
        """Return the scale of groups; one number if the host knows that all are of equal size."""
        if isinstance(groups, SortedDomains) and len(set(groups.sizes)) == 1:
            n = groups.sizes[0]
            return 0.0 if n < 2 else 1 / (n - 1 if self.centered and self.unbiased else n)
        return self.scale(groups.counts.to(dtype))


class GradientSource(Protocol):
    """Moments of the individual gradients of ``size`` weights.

    Its last ``shared`` tensors belong to no example (weights); the others have examples first.
    """

    @property
    def size(self) -> int: ...

    @property
    def shared(self) -> int: ...

    def moments(
        self, tensors: Sequence[Tensor], groups: Any, centered: bool
    ) -> tuple[Tensor, Tensor]:
        """Return ḡ ``[E, P]`` and M2 = Σ_i (g_i − ḡ)² (or Σ_i g_i²) ``[E, P]``."""

    def pull_back(
        self, tensors: Sequence[Tensor], groups: Any, c: Tensor, mean: Tensor | None
    ) -> Grads:
        """Return the gradients of ½ Σ_i ⟨c_e, (g_i − mean_e)²⟩ in ``tensors``, mean held fixed."""

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return g_i, ``[n, P]``, differentiable in ``tensors``."""

    def squared_norms(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return ‖g_i‖², ``[n]``, without a graph."""

    def sum_of_squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return Σ_i g_i², ``[P]``, without a graph."""


@dataclass(frozen=True)
class LinearOnVectors:
    """g_i = r_i ⊗ z_i, then r_i for the bias, from tensors (z, r): matrix products only."""

    outputs: int
    inputs: int
    bias: bool
    shared: int = 0

    @property
    def size(self) -> int:
        return self.outputs * (self.inputs + self.bias)

    def _flat(self, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([weight.flatten(1), bias], 1) if self.bias else weight.flatten(1)

    def _pair(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        weights = self.outputs * self.inputs
        weight = rows[:, :weights].unflatten(1, (self.outputs, self.inputs))
        return weight, rows[:, weights:] if self.bias else None

    def moments(
        self, tensors: Sequence[Tensor], groups: DomainGroups, centered: bool
    ) -> tuple[Tensor, Tensor]:
        z, r = tensors
        if centered and (torch.compiler.is_compiling() or transformed()):
            centre, *m2 = deviations(z, r, groups)
            return self._flat(mean_of(centre), centre.r), self._flat(*m2)
        if centered:  # the same, written in place: rows are the largest tensors of a wide head
            mean, rows = (z.new_empty(groups.num_domains, self.size) for _ in range(2))
            centre, _, bias = deviations(z, r, groups, self._pair(rows)[0])
            mean_of(centre, self._pair(mean)[0])
            if self.bias:
                rows[:, -self.outputs :], mean[:, -self.outputs :] = bias, centre.r
            return mean, rows
        counts = groups.counts.to(z.dtype).clamp(min=1)[:, None, None]
        mean = groups.outer(r, z) / counts
        return self._flat(mean, groups.mean(r)), self._flat(*squares(z, r, groups))

    def pull_back(
        self, tensors: Sequence[Tensor], groups: DomainGroups, c: Tensor, mean: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        z, r = tensors
        held = None
        if mean is not None:
            weight, bias = self._pair(mean)
            held = (weight, weight if bias is None else bias)
        return pull_back_moments(z, r, groups, self._pair(c), held, z.requires_grad)

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        weight = (r[:, :, None] * z[:, None]).flatten(1)
        return torch.cat([weight, r], 1) if self.bias else weight

    @torch.no_grad()
    def squared_norms(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        return r.square().sum(1) * (z.square().sum(1) + float(self.bias))

    @torch.no_grad()
    def sum_of_squares(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (t.square() for t in tensors)
        weight = (r.mT @ z).flatten()
        return torch.cat([weight, r.sum(0)]) if self.bias else weight


class Centre(NamedTuple):
    """Means z̄ ``[E, k]`` and r̄ ``[E, o]``, and m = E[(r − r̄) ⊗ (z − z̄)] ``[E, o, k]``."""

    z: Tensor
    r: Tensor
    m: Tensor


def deviations(
    z: Tensor, r: Tensor, groups: DomainGroups, out: Tensor | None = None
) -> tuple[Centre, Tensor, Tensor]:
    """Return the centre and Σ_i (g_i − ḡ)² of the weight ``[E, o, k]`` and the bias ``[E, o]``.

    The weight's share is written to ``out``, if given.
    """
    z_mean, r_mean = groups.mean(z), groups.mean(r)
    ζ, ρ = groups.centre(z, z_mean), groups.centre(r, r_mean)
    bias = groups.total(ρ.square())
    m = groups.outer(groups.divide_by_count(ρ), ζ)
    # Σ r²ζ² + 2 z̄ (Σ rρζ + z̄ Σ ρ² / 2) − n m²
    z_row = z_mean[:, None]
    if isinstance(groups, SortedDomains) and groups.small:  # one product, over 2n + 1 rows
        left = [groups.by_domain(r * ρ), groups.by_domain(r.square()), bias[:, None]]
        right = [groups.by_domain(ζ) * (2 * z_row), groups.by_domain(ζ.square()), z_row.square()]
        weight = torch.bmm(torch.cat(left, 1).mT, torch.cat(right, 1))
    else:
        cross = torch.addcmul(groups.outer(r * ρ, ζ), z_row, bias[:, :, None], value=0.5)
        weight = torch.addcmul(groups.outer(r.square(), ζ.square()), cross, z_row, value=2)
    weight = torch.clamp(groups.subtract_squares(weight, m), min=0, out=out)
    return Centre(z_mean, r_mean, m), weight, bias


def mean_of(centre: Centre, out: Tensor | None = None) -> Tensor:
    """Return ḡ = r̄ ⊗ z̄ + m of the weight, ``[E, o, k]``."""
    return torch.addcmul(centre.m, centre.r[:, :, None], centre.z[:, None], out=out)


def squares(z: Tensor, r: Tensor, groups: DomainGroups) -> tuple[Tensor, Tensor]:
    """Return Σ_i g_i² of the weight ``[E, o, k]`` and the bias ``[E, o]``."""
    squared = r.square()
    return groups.outer(squared, z.square()), groups.total(squared)


def pull_back_moments(
    z: Tensor,
    r: Tensor,
    groups: DomainGroups,
    c: tuple[Tensor, Tensor | None],
    mean: tuple[Tensor, Tensor] | None,
    want_z: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients in z and r of ½ Σ_i ⟨c_e, (g_i − ḡ_e)²⟩, ḡ_e held fixed (or zero).

    Holding ḡ_e fixed is exact for a variance, because its derivative in ḡ_e vanishes, and a chunk
    has no other choice. r ∘ (z²cᵀ) − z(c ∘ ḡ)ᵀ cancels at most |g|/|g − ḡ| roundings, as r and z
    themselves do.

    Args:
        c: cotangents of the weight ``[E, o, k]`` and the bias ``[E, o]``.
        mean: ḡ of the weight and the bias.
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
    dr = groups.weighted_difference(r, z.square(), z, both.mT, bias)
    if bias is not None:
        groups.add_(dr, bias * mean[1], -1)
    dz = groups.weighted_difference(z, r.square(), r, both, None) if want_z else None
    return dz, dr
