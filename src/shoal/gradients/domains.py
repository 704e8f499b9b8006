"""Domains of a batch: which example belongs to which, and sums over each domain's examples.

``SortedDomains`` knows the domain sizes on the host and works on slices. ``MaskedDomains`` has the
same interface and knows only a device vector of ids.
Letters: n examples, E domains, a and b feature axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_range

Chunk = tuple[int, slice]

# A product over TALL examples or more is cut into pieces of about PIECE, which fill the device.
TALL, PIECE = 4096, 1000
# Domains of up to SMALL examples leave a device idle, so two products share one call.
SMALL = 256


class DomainGroups:
    """Sums over the examples of each domain: the interface, and the formulas both classes share."""

    @property
    def num_domains(self) -> int:
        raise NotImplementedError

    @property
    def counts(self) -> Tensor:
        """n_e, float32 ``[E]``."""
        raise NotImplementedError

    def total(self, x: Tensor) -> Tensor:
        """Return Σ_{i∈e} x_i, ``[n, ...] -> [E, ...]``."""
        raise NotImplementedError

    def expand(self, rows: Tensor) -> Tensor:
        """Return each example's row, ``[E, ...] -> [n, ...]``."""
        raise NotImplementedError

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        """Return Σ_{i∈e} a_i ⊗ b_i, ``[n, a], [n, b] -> [E, a, b]``."""
        raise NotImplementedError

    def apply(self, x: Tensor, matrices: Tensor) -> Tensor:
        """Return x_i M_{e(i)}, ``[n, a], [E, a, b] -> [n, b]``."""
        raise NotImplementedError

    def weighted_difference(
        self, weights: Tensor, x: Tensor, y: Tensor, matrices: Tensor, offset: Tensor | None
    ) -> Tensor:
        """Return w_i ∘ (x_i M_{e(i)} + b_{e(i)}) − y_i N_{e(i)} for (M, N) ``[2, E, a, b]``."""
        raise NotImplementedError

    def mean(self, x: Tensor) -> Tensor:
        """Return each domain's mean of x_i, ``[n, a] -> [E, a]``; zero for an empty domain."""
        return self.total(x) / self.counts.to(x.dtype).clamp(min=1)[:, None]

    def divide_by_count(self, x: Tensor) -> Tensor:
        """Return x_i / n_e, ``[n, a]``."""
        return x / self.expand(self.counts.to(x.dtype).clamp(min=1))[:, None]

    def centre(self, x: Tensor, mean: Tensor) -> Tensor:
        """Return x_i − mean_{e(i)}."""
        return x - self.expand(mean)

    def add_(self, out: Tensor, rows: Tensor, sign: int = 1) -> Tensor:
        """Add (or subtract) each example's row to ``out`` in place."""
        return out.add_(self.expand(rows), alpha=sign)

    def subtract_squares(self, sums: Tensor, means: Tensor) -> Tensor:
        """Return Σ − n_e m², ``[E, a, b]``."""
        return sums - self.counts.to(sums.dtype)[:, None, None] * means.square()


@dataclass(frozen=True)
class SortedDomains(DomainGroups):
    """Examples sorted by domain: the first ``sizes[0]`` belong to domain 0, and so on."""

    sizes: tuple[int, ...]
    device: torch.device

    @property
    def num_domains(self) -> int:
        return len(self.sizes)

    @property
    def counts(self) -> Tensor:
        return self.vector([float(size) for size in self.sizes], torch.float32)

    def vector(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        """Return host numbers as ``[E]``, filled on the device so that a graph can be captured."""
        if all(value == values[0] for value in values):
            return torch.full((len(values),), values[0], dtype=dtype, device=self.device)
        ones = [torch.full((1,), value, dtype=dtype, device=self.device) for value in values]
        return torch.cat(ones)

    @property
    def equal(self) -> bool:
        """Whether all domains have equally many examples, and at least one."""
        # Not with a set: a hashed size becomes a constant of the compiled code.
        return self.sizes[0] > 0 and self.sizes == self.sizes[:1] * len(self.sizes)

    @property
    def small(self) -> bool:
        """Whether the domains are of equal size, and too small to keep a device busy."""
        return self.equal and self.sizes[0] <= SMALL

    def by_domain(self, x: Tensor) -> Tensor:
        """Return x with a domain axis, ``[n, a] -> [E, n_e, a]``; domains must be ``equal``."""
        return x.reshape(len(self.sizes), self.sizes[0], *x.shape[1:])

    def total(self, x: Tensor) -> Tensor:
        if self.equal:
            return self.by_domain(x).sum(1)
        return torch.stack([part.sum(0) for part in x.split(self.sizes)])

    def mean(self, x: Tensor) -> Tensor:
        return self.by_domain(x).mean(1) if self.equal else super().mean(x)

    def divide_by_count(self, x: Tensor) -> Tensor:
        return x / self.sizes[0] if self.equal else super().divide_by_count(x)

    def expand(self, rows: Tensor) -> Tensor:
        if self.equal:
            shape = (len(self.sizes), self.sizes[0], *rows.shape[1:])
            return rows[:, None].expand(shape).reshape(-1, *rows.shape[1:])
        return torch.cat(
            [row.expand(size, *row.shape) for row, size in zip(rows, self.sizes, strict=True)]
        )

    def centre(self, x: Tensor, mean: Tensor) -> Tensor:
        if self.equal:
            return (self.by_domain(x) - mean[:, None]).reshape(x.shape)
        return super().centre(x, mean)

    def add_(self, out: Tensor, rows: Tensor, sign: int = 1) -> Tensor:
        if self.equal:
            self.by_domain(out).add_(rows[:, None], alpha=sign)
            return out
        return super().add_(out, rows, sign)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        if self.equal and self.sizes[0] < TALL:
            return torch.bmm(self.by_domain(a).mT, self.by_domain(b))
        pairs = zip(a.split(self.sizes), b.split(self.sizes), strict=True)
        return torch.stack([_tall_product(x, y) for x, y in pairs])

    def apply(self, x: Tensor, matrices: Tensor) -> Tensor:
        if self.equal:
            return torch.bmm(self.by_domain(x), matrices).reshape(len(x), -1)
        pairs = zip(x.split(self.sizes), matrices, strict=True)
        return torch.cat([part @ matrix for part, matrix in pairs])

    def weighted_difference(
        self, weights: Tensor, x: Tensor, y: Tensor, matrices: Tensor, offset: Tensor | None
    ) -> Tensor:
        if self.small:
            left = torch.stack([self.by_domain(x), self.by_domain(y)]).flatten(0, 1)
            out, other = torch.bmm(left, matrices.flatten(0, 1)).reshape(2, len(x), -1)
            out = out if offset is None else self.add_(out, offset)
            return out.mul_(weights).sub_(other)
        out = self.apply(x, matrices[0])
        out = (out if offset is None else self.add_(out, offset)).mul_(weights)
        if self.equal:
            self.by_domain(out).baddbmm_(self.by_domain(y), matrices[1], alpha=-1)
            return out
        parts = zip(out.split(self.sizes), y.split(self.sizes), matrices[1], strict=True)
        for into, part, matrix in parts:
            into.addmm_(part, matrix, alpha=-1)
        return out

    def subtract_squares(self, sums: Tensor, means: Tensor) -> Tensor:
        if self.equal:
            return torch.addcmul(sums, means, means, value=-self.sizes[0])
        return super().subtract_squares(sums, means)

    def chunks(self, size: int) -> list[Chunk]:
        """Return (domain, slice) of at most ``size`` examples of one domain each."""
        found, start = [], 0
        for domain, length in enumerate(self.sizes):
            for begin in range(start, start + length, size):
                found.append((domain, slice(begin, min(begin + size, start + length))))
            start += length
        return found

    def slices(self) -> list[Chunk]:
        """Return (domain, slice) of each domain that has examples."""
        return self.chunks(max(sum(self.sizes), 1))

    def within(self, part: slice) -> "SortedDomains":
        """Return the groups of the examples in ``part``."""
        sizes, start = [], 0
        for length in self.sizes:
            overlap = min(part.stop, start + length) - max(part.start, start)
            sizes.append(max(overlap, 0))
            start += length
        return SortedDomains(tuple(sizes), self.device)


@dataclass(frozen=True)
class MaskedDomains(DomainGroups):
    """Domain ids on the device, in any order."""

    domains: Tensor
    mask: Tensor  # 1 if example i belongs to domain e, float32 [E, n]
    sizes: Tensor  # n_e, float32 [E]

    @staticmethod
    def of(domains: Tensor, num_domains: int) -> "MaskedDomains":
        ids = torch.arange(num_domains, device=domains.device)
        mask = (ids[:, None] == domains[None]).float()
        return MaskedDomains(domains, mask, mask.sum(1))

    @property
    def num_domains(self) -> int:
        return len(self.sizes)

    @property
    def counts(self) -> Tensor:
        return self.sizes

    def _masked(self, x: Tensor) -> Tensor:
        return self.mask.to(x.dtype)[:, :, None] * x

    def total(self, x: Tensor) -> Tensor:
        # Not a product with the mask: reduced-precision products would round the means.
        return self._masked(x).sum(1)

    def expand(self, rows: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            # A sum, because Inductor turns the gradient of index_select into unordered additions:
            # with two CPU threads the results were wrong, or were written out of bounds.
            mask = (self.mask > 0).view(*self.mask.shape, *[1] * (rows.ndim - 1))
            return torch.where(mask, rows[:, None], 0.0).sum(0)
        return rows.index_select(0, self.domains)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] <= b.shape[1]:
            return self._masked(a).mT @ b
        return a.mT @ self._masked(b)

    def apply(self, x: Tensor, matrices: Tensor) -> Tensor:
        return (self.mask.to(x.dtype)[:, :, None] * (x @ matrices)).sum(0)

    def weighted_difference(
        self, weights: Tensor, x: Tensor, y: Tensor, matrices: Tensor, offset: Tensor | None
    ) -> Tensor:
        out = self.apply(x, matrices[0])
        out = (out if offset is None else self.add_(out, offset)).mul_(weights)
        return out.sub_(self.apply(y, matrices[1]))


def host_order(domains: Tensor, num_domains: int) -> tuple[Tensor | None, tuple[int, ...]]:
    """Return the order that sorts ``domains`` (None if sorted already) and the domain sizes.

    Reads values: for a GPU vector this waits for the device.
    """
    ids = domains.detach().cpu().long()
    check_range("domains", ids, num_domains, f"num_domains is {num_domains}")
    sizes = tuple(torch.bincount(ids, minlength=num_domains).tolist())
    if bool((ids[1:] >= ids[:-1]).all()):
        return None, sizes
    return torch.argsort(ids, stable=True), sizes


def _tall_product(a: Tensor, b: Tensor) -> Tensor:
    """Return aᵀb, ``[n, a], [n, b] -> [a, b]``; fast even if n is far larger than a and b."""
    if len(a) < TALL:
        return a.mT @ b
    piece = next((size for size in range(PIECE, 2 * PIECE) if len(a) % size == 0), PIECE)
    pieces = len(a) // piece
    cut = pieces * piece
    left, right = a[:cut].reshape(pieces, piece, -1), b[:cut].reshape(pieces, piece, -1)
    product = torch.bmm(left.mT, right).sum(0)
    return product if cut == len(a) else product.addmm_(a[cut:].mT, b[cut:])
