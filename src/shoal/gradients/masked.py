"""Domains that only the device knows: sums over each domain's examples without asking the host.

``Masked`` has the interface of ``groups.Sorted`` and pays E times the products.
Letters: n examples, E domains, a and b feature axes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .groups import Sorted


@dataclass(frozen=True)
class Masked:
    """Domain ids on the device, in any order."""

    domains: Tensor
    mask: Tensor  # 1 where example i belongs to domain e, float32 [E, n]
    counts: Tensor  # n_e, float32 [E]

    @staticmethod
    def of(domains: Tensor, num_domains: int) -> "Masked":
        ids = torch.arange(num_domains, device=domains.device)
        mask = (ids[:, None] == domains[None]).float()
        return Masked(domains, mask, mask.sum(1))

    @property
    def num_domains(self) -> int:
        return len(self.counts)

    def _spread_out(self, x: Tensor) -> Tensor:
        return self.mask.to(x.dtype)[:, :, None] * x

    def total(self, x: Tensor) -> Tensor:
        # Not a product with the mask: reduced-precision products would round the means.
        return self._spread_out(x).sum(1)

    def mean(self, x: Tensor) -> Tensor:
        return self.total(x) / self.counts.to(x.dtype).clamp(min=1)[:, None]

    def shared(self, x: Tensor) -> Tensor:
        return x / self.expand(self.counts.to(x.dtype).clamp(min=1))[:, None]

    def expand(self, rows: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            # A sum, because Inductor makes additions in no order of the gradient of index_select:
            # with two threads of a CPU they came out wrong, or wrote where nothing was theirs.
            mask = (self.mask > 0).view(*self.mask.shape, *[1] * (rows.ndim - 1))
            return torch.where(mask, rows[:, None], 0.0).sum(0)
        return rows.index_select(0, self.domains)

    def centre(self, x: Tensor, mean: Tensor) -> Tensor:
        return x - self.expand(mean)

    def add_(self, out: Tensor, rows: Tensor, sign: int = 1) -> Tensor:
        return out.add_(self.expand(rows), alpha=sign)

    def outer(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] <= b.shape[1]:
            return self._spread_out(a).mT @ b
        return a.mT @ self._spread_out(b)

    def apply(self, x: Tensor, matrices: Tensor) -> Tensor:
        return (self.mask.to(x.dtype)[:, :, None] * (x @ matrices)).sum(0)

    def less(
        self, weights: Tensor, x: Tensor, y: Tensor, matrices: Tensor, offset: Tensor | None
    ) -> Tensor:
        out = self.apply(x, matrices[0])
        out = (out if offset is None else self.add_(out, offset)).mul_(weights)
        return out.sub_(self.apply(y, matrices[1]))

    def subtract_squares(self, sums: Tensor, means: Tensor) -> Tensor:
        return sums - self.counts.to(sums.dtype)[:, None, None] * means.square()


Groups = Sorted | Masked
