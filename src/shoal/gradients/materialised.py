"""Materialised gradients: formed ``[chunk, P]`` at a time, then reduced to moments and dropped."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .domains import SortedDomains
from .sources import Grads

# Numbers in the [chunk, P_l] tensor of one layer, at most: 1 GiB in float32.
BUDGET = 2**28
# An [n, P_l] of up to this many numbers is cached for the backward, which forms a larger one again.
CACHE = 2**26

# Writing a number and reading it again takes as long as this many multiplications of a product.
WRITING = 100

VJP = Callable[[Tensor], Grads]


class MaterialisedGradients(ABC):
    """A source that forms its individual gradients, ``[chunk, P]`` at a time.

    Moments are reduced and cotangents are pulled back chunk by chunk, so that a large ``[n, P]``
    never exists.
    """

    size: int
    shared: int = 0

    # Whether ``forward_and_vjp`` can use cached g_i.
    caches: ClassVar[bool] = False
    # Whether tensors can be bf16; other sources get float32.
    takes_bf16: ClassVar[bool] = False

    @abstractmethod
    def forward_and_vjp(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, VJP]:
        """Return g_i, ``[n, P]``, and the function from a cotangent of g to those of ``tensors``.

        Args:
            g: the result of ``values``, if it was cached.
        """

    @abstractmethod
    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return g_i, ``[n, P]``, differentiable in ``tensors``."""

    def values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return g_i, ``[n, P]``, without a graph."""
        with torch.no_grad():
            return self.individual(tensors)

    def cotangent_dtype(self, tensors: Sequence[Tensor], g: Tensor) -> torch.dtype:
        """Return the dtype in which the VJP takes a cotangent of g."""
        return g.dtype

    def width(self, tensors: Sequence[Tensor]) -> int:
        """Return the size of the largest tensor per example that exists while g_i is formed."""
        return self.size

    def cached(self, tensors: Sequence[Tensor], groups: SortedDomains) -> Tensor | None:
        """Return g_i of all examples, ``[n, P]``, if they are worth keeping for the backward."""
        if not self.caches or sum(groups.sizes) * self.size > CACHE:
            return None
        chunks = self._chunks(tensors)
        if len(chunks) == 1:
            return self.values(tensors)
        return torch.cat([self.values(self._cut(tensors, part)) for part in chunks])

    def _chunks(self, tensors: Sequence[Tensor]) -> list[slice]:
        n = len(tensors[0])
        step = max(BUDGET // max(self.width(tensors), 1), 1)
        return [slice(start, min(start + step, n)) for start in range(0, n, step)]

    def _cut(self, tensors: Sequence[Tensor], part: slice) -> list[Tensor]:
        batched = len(tensors) - self.shared
        return [t[part] if k < batched else t for k, t in enumerate(tensors)]

    def squared_norms(self, tensors: Sequence[Tensor]) -> Tensor:
        chunks = self._chunks(tensors)
        with torch.no_grad():
            if len(chunks) == 1:
                return self.norms_of(tensors)
            return torch.cat([self.norms_of(self._cut(tensors, part)) for part in chunks])

    def norms_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return ‖g_i‖², ``[n]``, of one chunk."""
        norms: Tensor = torch.linalg.vector_norm(self.values(tensors), dim=1)
        return norms.square_()

    def squared_norms_of_pieces(self, tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        """Return ‖g_i‖² of consecutive pieces of g_i, ``[n, pieces]``."""
        rows = []
        for part in self._chunks(tensors):
            pieces = self.values(self._cut(tensors, part)).split(list(sizes), 1)
            rows.append(torch.stack([torch.linalg.vector_norm(g, dim=1) for g in pieces], 1))
        return torch.cat(rows).square_()

    def sum_of_squares(self, tensors: Sequence[Tensor]) -> Tensor:
        chunks = self._chunks(tensors)
        if len(chunks) == 1:
            return sum_of_squares(self.values(tensors))
        total: Tensor | None = None
        with torch.no_grad():
            for part in chunks:
                squares = sum_of_squares(self.values(self._cut(tensors, part)))
                total = squares if total is None else total.add_(squares)
        if total is None:
            raise ValueError("a sum of squares needs examples, got none")
        return total

    def moments(
        self,
        tensors: Sequence[Tensor],
        groups: SortedDomains,
        centered: bool,
        cache: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        chunks = self._chunks(tensors)
        # Otherwise one domain at a time, so that temporaries as large as g belong to one domain.
        if len(chunks) == 1 and groups.equal and in_one_pass(tensors[0], centered):
            g = self.values(tensors) if cache is None else cache
            return moments_over(groups.by_domain(g), 1, centered)
        total = Moments.zero(groups.num_domains, self.size, tensors)
        for part in chunks:
            g = self.values(self._cut(tensors, part)) if cache is None else cache[part]
            for domain, own in groups.within(part).slices():
                n = float(own.stop - own.start)
                total.add(domain, n, *moments_over(g[own], 0, centered), centered)
            del g  # before the next chunk is formed
        return total.mean, total.m2

    def pull_back(
        self,
        tensors: Sequence[Tensor],
        groups: SortedDomains,
        c: Tensor,
        mean: Tensor | None,
        cache: Tensor | None = None,
    ) -> Grads:
        parts = self._chunks(tensors)
        if len(parts) == 1:
            return self._pull_back_chunk(tensors, groups, c, mean, cache)
        batched = len(tensors) - self.shared
        grads = [
            (torch.empty_like if k < batched else torch.zeros_like)(t) if t.requires_grad else None
            for k, t in enumerate(tensors)
        ]
        for part in parts:
            own = None if cache is None else cache[part]
            chunk = self._cut(tensors, part)
            found = self._pull_back_chunk(chunk, groups.within(part), c, mean, own)
            for k, (into, one) in enumerate(zip(grads, found, strict=True)):
                if into is None:
                    continue
                if k < batched:
                    into[part] = 0 if one is None else one
                elif one is not None:
                    into.add_(one)
        return tuple(grads)

    def _pull_back_chunk(
        self,
        tensors: Sequence[Tensor],
        groups: SortedDomains,
        c: Tensor,
        mean: Tensor | None,
        cache: Tensor | None,
    ) -> Grads:
        cut = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        g, vjp = self.forward_and_vjp(cut, cache)
        dtype = self.cotangent_dtype(tensors, g)
        fresh = cache is not None or dtype != g.dtype
        cotangent = torch.empty_like(g, dtype=dtype) if fresh else g
        shift = None if mean is None else -(c * mean)
        if groups.equal:
            g, into, c = groups.by_domain(g), groups.by_domain(cotangent), c[:, None]
            _write_weighted(g, c, None if shift is None else shift[:, None], into)
        else:
            for domain, own in groups.slices():
                held = None if shift is None else shift[domain]
                _write_weighted(g[own], c[domain], held, cotangent[own])
        return vjp(cotangent)


@dataclass(frozen=True)
class AutogradGradients(MaterialisedGradients):
    """g_i = function(*tensors), with derivatives by autograd."""

    size: int
    function: Callable[..., Tensor]
    shared: int = 0

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.function(*tensors)

    def forward_and_vjp(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, VJP]:
        with torch.enable_grad():
            g = self.individual(tensors)
        wanted = [k for k, t in enumerate(tensors) if t.requires_grad]

        def vjp(c: Tensor) -> Grads:
            grads: list[Tensor | None] = [None] * len(tensors)
            if g.requires_grad:
                leaves = [tensors[k] for k in wanted]
                found = torch.autograd.grad(g, leaves, c, allow_unused=True)
                for k, one in zip(wanted, found, strict=True):
                    # A sum's gradient is one number expanded to many places, which a caller cannot
                    # write to.
                    grads[k] = one if one is None or all(one.stride()) else one.clone()
            return tuple(grads)

        # A copy that a caller can overwrite: the graph can hold on to the original.
        return g.detach().clone(), vjp


def gram_is_cheaper(positions: int, size: int, width: int) -> bool:
    """Return whether ‖Σ_t r_t ⊗ z_t‖² is cheaper from products of positions than from g itself.

    Both multiply, and write their products, which takes as long as ``WRITING`` multiplications.

    Args:
        size: numbers in g.
        width: numbers in r_t and z_t together.
    """
    return positions**2 * (width + 2 * WRITING) < size * (positions + WRITING)


def gram_norms(r: Tensor, z: Tensor) -> Tensor:
    """Return ‖Σ_t r_it ⊗ z_it‖² = Σ_ts ⟨r_t, r_s⟩⟨z_t, z_s⟩, ``[n, t, o], [n, t, k] -> [n]``."""
    return torch.bmm(r, r.mT).mul_(torch.bmm(z, z.mT)).sum((1, 2)).clamp_(min=0)


def sum_of_squares(g: Tensor) -> Tensor:
    """Return Σ_i g_i², ``[P]``."""
    if g.device.type == "cpu":  # whose norms along the first axis are slow
        return g.square().sum(0)
    # One pass over g, and no other tensor of its size.
    norms: Tensor = torch.linalg.vector_norm(g, dim=0)
    return norms.square_()


def _write_weighted(g: Tensor, c: Tensor, shift: Tensor | None, out: Tensor) -> None:
    """Write c (g − ḡ) to ``out`` in one pass, given the shift −cḡ."""
    if shift is None:
        torch.mul(g, c, out=out)
    else:
        torch.addcmul(shift, g, c, out=out)


@dataclass
class Moments:
    """Counts ``[E]``, means and M2 ``[E, P]`` of the gradients so far (Chan's merge).

    Plain sums of squares would lose all digits of a variance in float32.
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


def moments_over(g: Tensor, axis: int, centered: bool) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 of the gradients, reduced along an axis."""
    if in_one_pass(g, centered):
        variance, mean = torch.var_mean(g, axis, correction=0)
        return mean, variance.mul_(g.shape[axis])
    mean = g.mean(axis, keepdim=True)
    squares = (g - mean).square_() if centered else g.square()
    return mean.squeeze(axis), squares.sum(axis)


def in_one_pass(g: Tensor, centered: bool) -> bool:
    """Return whether the moments take one pass over g and no other tensor of its size."""
    return centered and g.device.type == "cuda"
