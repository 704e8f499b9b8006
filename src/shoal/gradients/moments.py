"""Counts, means and sums of squared deviations that can be merged."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


def moments_over(g: Tensor, axis: int, centered: bool) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 of the gradients along an axis, which disappears."""
    if in_one_pass(g, centered):
        variance, mean = torch.var_mean(g, axis, correction=0)
        return mean, variance.mul_(g.shape[axis])
    mean = g.mean(axis, keepdim=True)
    squares = (g - mean).square_() if centered else g.square()
    return mean.squeeze(axis), squares.sum(axis)


def in_one_pass(g: Tensor, centered: bool) -> bool:
    """Return whether moments need one pass over g and no other tensor of its size."""
    return centered and g.device.type == "cuda"
