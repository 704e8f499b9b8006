"""Where a weight's individual gradients come from, and what is known of them without keeping them.

A source gives the moments of the gradients per domain, and pulls a cotangent of those moments
back to the tensors that the gradients were made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import linear
from .groups import Groups, Sorted

# At most this many numbers in the [chunk, P_l] tensor of one layer: 256 MiB in float32.
BUDGET = 2**26

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


@dataclass(frozen=True)
class Individual:
    """g_i = function(*tensors), ``[chunk, P]`` at a time."""

    size: int
    function: Callable[..., Tensor]
    shared: int = 0

    def _chunks(self, groups: Sorted) -> list[tuple[int, slice]]:
        return groups.chunks(max(BUDGET // max(self.size, 1), 1))

    def _cut(self, tensors: Sequence[Tensor], part: slice) -> list[Tensor]:
        batched = len(tensors) - self.shared
        return [t[part] if k < batched else t for k, t in enumerate(tensors)]

    def moments(
        self, tensors: Sequence[Tensor], groups: Sorted, centered: bool
    ) -> tuple[Tensor, Tensor]:
        total = Moments.zero(groups.num_domains, self.size, tensors)
        for domain, part in self._chunks(groups):
            with torch.no_grad():
                g = self.individual(self._cut(tensors, part))
            mean = g.mean(0)
            m2 = g.sub_(mean).square_().sum(0) if centered else g.square_().sum(0)
            total.add(domain, float(part.stop - part.start), mean, m2, centered)
        return total.mean, total.m2

    def pull_back(
        self, tensors: Sequence[Tensor], groups: Sorted, c: Tensor, mean: Tensor | None
    ) -> Grads:
        grads = [torch.zeros_like(t) if t.requires_grad else None for t in tensors]
        wanted = [k for k, grad in enumerate(grads) if grad is not None]
        for domain, part in self._chunks(groups):
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in self._cut(tensors, part)]
            with torch.enable_grad():
                g = self.individual(leaves)
            if not g.requires_grad:
                continue
            cotangent = c[domain] * (g.detach() if mean is None else g.detach() - mean[domain])
            found = torch.autograd.grad(
                g, [leaves[k] for k in wanted], cotangent, allow_unused=True
            )
            for k, one in zip(wanted, found, strict=True):
                into = grads[k]
                if one is not None and into is not None:
                    (into[part] if k < len(tensors) - self.shared else into).add_(one)
        return tuple(grads)

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.function(*tensors)


@dataclass
class Moments:
    """Counts ``[E]``, means and M2 ``[E, P]`` of the gradients seen so far (Chan's merge).

    Plain sums of squares would lose everything in float32.
    """

    counts: list[float]
    mean: Tensor
    m2: Tensor

    @staticmethod
    def zero(num_domains: int, size: int, like: Sequence[Tensor]) -> "Moments":
        floats = [t for t in like if t.is_floating_point()]
        double = any(t.dtype == torch.float64 for t in floats)
        dtype = torch.float64 if double else torch.float32
        rows = torch.zeros(num_domains, size, dtype=dtype, device=floats[0].device)
        return Moments([0.0] * num_domains, rows, torch.zeros_like(rows))

    def add(self, domain: int, n: float, mean: Tensor, m2: Tensor, centered: bool) -> None:
        """Merge n more gradients of a domain: δ = ḡ_B − ḡ_A, M2 += M2_B + δ² n_A n_B / n."""
        if n == 0:
            return
        before = self.counts[domain]
        self.counts[domain] = before + n
        share = n / (before + n)
        delta = mean - self.mean[domain]
        self.mean[domain] += delta * share
        self.m2[domain] += m2 + delta.square() * (before * share) if centered else m2
