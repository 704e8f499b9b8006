"""Where a weight's individual gradients come from, and what is known of them without keeping them.

A source gives the moments of the gradients per domain, and pulls a cotangent of those moments
back to the tensors that the gradients were made of.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from . import linear
from .groups import Groups, Sorted

# At most this many numbers in the [chunk, P_l] tensor of one layer: 1 GiB in float32.
BUDGET = 2**28
# Up to so many in [n, P_l] are kept for the backward, which forms them again otherwise.
KEPT = 2**26

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


Pull = Callable[[Tensor], Grads]


class Formed(ABC):
    """A source whose individual gradients are formed, ``[chunk, P]`` at a time.

    Its moments are reduced and its cotangents sent back chunk by chunk, so that no ``[n, P]``
    exists where that is large.
    """

    size: int
    shared: int = 0

    # Whether ``formed`` has use for g_i that were kept.
    keeps: ClassVar[bool] = False

    @abstractmethod
    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        """Return g_i, ``[n, P]``, and what takes a cotangent of g to gradients in ``tensors``.

        Args:
            g: what ``values`` returned, where it was kept.
        """

    @abstractmethod
    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return g_i, ``[n, P]``, differentiable in ``tensors``."""

    def values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return g_i, ``[n, P]``, without a graph."""
        with torch.no_grad():
            return self.individual(tensors)

    def width(self, tensors: Sequence[Tensor]) -> int:
        """Return how many numbers the largest tensor of one example has while g_i is formed."""
        return self.size

    def kept(self, tensors: Sequence[Tensor], groups: Sorted) -> Tensor | None:
        """Return g_i of all examples, where that is worth keeping."""
        if not self.keeps or sum(groups.sizes) * self.size > KEPT:
            return None
        parts = [self.values(self._cut(tensors, part)) for part in self._chunks(tensors, groups)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _chunks(self, tensors: Sequence[Tensor], groups: Sorted) -> list[slice]:
        n = sum(groups.sizes)
        step = max(BUDGET // max(self.width(tensors), 1), 1)
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def _cut(self, tensors: Sequence[Tensor], part: slice) -> list[Tensor]:
        batched = len(tensors) - self.shared
        return [t[part] if k < batched else t for k, t in enumerate(tensors)]

    def moments(
        self,
        tensors: Sequence[Tensor],
        groups: Sorted,
        centered: bool,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        total = Moments.zero(groups.num_domains, self.size, tensors)
        for part in self._chunks(tensors, groups):
            g = self.values(self._cut(tensors, part)) if kept is None else kept[part]
            for domain, own in groups.within(part).runs():
                n = float(own.stop - own.start)
                total.add(domain, n, *_moments(g[own], centered), centered)
            del g  # before the next is formed
        return total.mean, total.m2

    def pull_back(
        self,
        tensors: Sequence[Tensor],
        groups: Sorted,
        c: Tensor,
        mean: Tensor | None,
        kept: Tensor | None = None,
    ) -> Grads:
        parts = self._chunks(tensors, groups)
        if len(parts) == 1:
            return self._pulled(tensors, groups, c, mean, kept)
        batched = len(tensors) - self.shared
        grads = [
            (torch.empty_like if k < batched else torch.zeros_like)(t) if t.requires_grad else None
            for k, t in enumerate(tensors)
        ]
        for part in parts:
            own = None if kept is None else kept[part]
            found = self._pulled(self._cut(tensors, part), groups.within(part), c, mean, own)
            for k, (into, one) in enumerate(zip(grads, found, strict=True)):
                if into is None:
                    continue
                if k < batched:
                    into[part] = 0 if one is None else one
                elif one is not None:
                    into.add_(one)
        return tuple(grads)

    def _pulled(
        self,
        tensors: Sequence[Tensor],
        groups: Sorted,
        c: Tensor,
        mean: Tensor | None,
        kept: Tensor | None,
    ) -> Grads:
        cut = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        g, pull = self.formed(cut, kept)
        cotangent = g if kept is None else torch.empty_like(g)
        for domain, own in groups.runs():
            if mean is None:
                torch.mul(g[own], c[domain], out=cotangent[own])
            else:  # c (g − ḡ) in one pass over what is largest
                shift = c[domain] * mean[domain]
                torch.addcmul(-shift, g[own], c[domain], out=cotangent[own])
        return pull(cotangent)


def _moments(g: Tensor, centered: bool) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 of gradients of one domain, ``[n, P] -> [P]``."""
    if centered and g.device.type == "cuda":  # one pass over what is largest
        variance, mean = torch.var_mean(g, 0, correction=0)
        return mean, variance.mul_(len(g))
    mean = g.mean(0)
    return mean, (g - mean if centered else g).square().sum(0)


@dataclass(frozen=True)
class Individual(Formed):
    """g_i = function(*tensors), with derivatives by autograd."""

    size: int
    function: Callable[..., Tensor]
    shared: int = 0

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.function(*tensors)

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            g = self.individual(tensors)
        wanted = [k for k, t in enumerate(tensors) if t.requires_grad]

        def pull(c: Tensor) -> Grads:
            grads: list[Tensor | None] = [None] * len(tensors)
            if g.requires_grad:
                leaves = [tensors[k] for k in wanted]
                found = torch.autograd.grad(g, leaves, c, allow_unused=True)
                for k, one in zip(wanted, found, strict=True):
                    # A sum's gradient is one number for many places; a caller may write to them.
                    grads[k] = one if one is None or all(one.stride()) else one.clone()
            return tuple(grads)

        # A copy, which a caller may overwrite: the graph may hold on to what it returned.
        return g.detach().clone(), pull


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
