"""Where a weight's individual gradients come from, and what is known of them without keeping them.

A source gives the moments of the gradients per domain, and pulls a cotangent of those moments
back to the tensors that the gradients were made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import linear
from .masked import Groups

Grads = tuple[Tensor | None, ...]


class Source(Protocol):
    """Moments of the individual gradients of ``size`` weights.

    The last ``shared`` of its tensors belong to no example (weights), the others have examples
    first.
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


@dataclass(frozen=True)
class LinearOnVectors:
    """g_i = r_i ⊗ z_i, then r_i for the bias, with tensors (z, r): matrix products only."""

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
        self, tensors: Sequence[Tensor], groups: Groups, centered: bool
    ) -> tuple[Tensor, Tensor]:
        z, r = tensors
        if centered and torch.compiler.is_compiling():
            centre, *m2 = linear.deviations(z, r, groups)
            return self._flat(linear.mean_of(centre), centre.r), self._flat(*m2)
        if centered:  # the same, written in place: rows are the largest tensors of a wide head
            mean, rows = (z.new_empty(groups.num_domains, self.size) for _ in range(2))
            centre, _, bias = linear.deviations(z, r, groups, self._pair(rows)[0])
            linear.mean_of(centre, self._pair(mean)[0])
            if self.bias:
                rows[:, -self.outputs :], mean[:, -self.outputs :] = bias, centre.r
            return mean, rows
        counts = groups.counts.to(z.dtype).clamp(min=1)[:, None, None]
        mean = groups.outer(r, z) / counts
        return self._flat(mean, groups.mean(r)), self._flat(*linear.squares(z, r, groups))

    def pull_back(
        self, tensors: Sequence[Tensor], groups: Groups, c: Tensor, mean: Tensor | None
    ) -> Grads:
        z, r = tensors
        held = None
        if mean is not None:
            weight, bias = self._pair(mean)
            held = (weight, weight if bias is None else bias)
        return linear.pull_back(z, r, groups, self._pair(c), held, z.requires_grad)

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        return linear.individual(z, r, self.bias)
