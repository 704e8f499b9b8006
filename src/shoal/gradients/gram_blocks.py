"""Blocks of the Gram matrix of centred gradients, for one layer's weights at a time.

Letters: n examples, E domains, o outputs, k inputs.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import linear
from .groups import Chunk
from .sources import LinearOnVectors, Source


@dataclass(frozen=True, eq=False)
class Part:
    """One source and the tensors that its individual gradients are made of."""

    source: Source
    tensors: list[Tensor]


class Block(Protocol):
    """⟨g_i − ḡ_e, g_j − ḡ_f⟩ of one part's weights, for examples i in rows and j in columns."""

    def add_to(self, gram: Tensor) -> None: ...

    def pull_back(self, w: Tensor, grads: list[Tensor | None]) -> None:
        """Add to ``grads`` the gradients of Σ_ij w_ij ⟨g_i − ḡ_e, g_j − ḡ_f⟩."""


def block_of(part: Part, centre: Any, left: Chunk, right: Chunk) -> Block:
    """Return the block of a part's weights."""
    if isinstance(part.source, LinearOnVectors):
        return _LinearBlock(part, centre, left, right)
    return _IndividualBlock(part, centre, left, right)


class _LinearBlock:
    """From g_i − ḡ_e = r_i ⊗ ζ_i + ρ_i ⊗ z̄_e − m_e, multiplied out.

    With S = ρσᵀ and T = ζηᵀ the block is T ∘ rsᵀ + S ∘ X + terms of low rank, where rsᵀ and zyᵀ
    are S and T with rows and columns added; gradients need only these: Σ_j w_ij (g_j − ḡ_f) is
    pulled back to r_i as ((w ∘ zyᵀ) s)_i and to z_i as ((w ∘ rsᵀ) y)_i, since Σ_j w_ij = 0.
    """

    def __init__(self, part: Part, centre: linear.Centre, left: Chunk, right: Chunk) -> None:
        z, r = (t.detach() for t in part.tensors)
        (e, self.rows), (f, self.columns) = left, right
        self.z, self.r = z[self.rows], r[self.rows]
        self.y, self.s = z[self.columns], r[self.columns]
        ζ, η = self.z - centre.z[e], self.y - centre.z[f]
        ρ, σ = self.r - centre.r[e], self.s - centre.r[f]
        m, w = centre.m[e], centre.m[f]
        self.products, self.factors = ρ @ σ.mT, ζ @ η.mT
        self.α, β = ρ @ centre.r[f], σ @ centre.r[e]
        self.offset = β + centre.r[e] @ centre.r[f]
        self.x, ξ = ζ @ centre.z[f], η @ centre.z[e]
        # The bias is one more input that is always 1.
        self.ξ = ξ + centre.z[e] @ centre.z[f] + float(part.source.size > m.numel())
        own = ((self.r @ w) * ζ).sum(1) + ρ @ (w @ centre.z[e])
        other = ((self.s @ m) * η).sum(1) + σ @ (m @ centre.z[f])
        self.low = torch.stack([self.x, self.α, own, torch.ones_like(own)], 1)
        self.rank = torch.stack([β, ξ, -torch.ones_like(other), (m * w).sum() - other])

    def add_to(self, gram: Tensor) -> None:
        gram.addmm_(self.low, self.rank)
        gram.addcmul_(self.products, self.x[:, None]).addcmul_(self.products, self.ξ)
        self.products.add_(self.α[:, None]).add_(self.offset)  # now rsᵀ
        gram.addcmul_(self.factors, self.products)
        self.factors.add_(self.x[:, None]).add_(self.ξ)  # now zyᵀ, + 1 with a bias

    def pull_back(self, w: Tensor, grads: list[Tensor | None]) -> None:
        dz, dr = grads
        if dr is not None:
            self.factors.mul_(w)
            dr[self.rows].addmm_(self.factors, self.s)
            dr[self.columns].addmm_(self.factors.mT, self.r)
        if dz is not None:
            self.products.mul_(w)
            dz[self.rows].addmm_(self.products, self.y)
            dz[self.columns].addmm_(self.products.mT, self.z)


class _IndividualBlock:
    """From the gradients themselves, ``[chunk, P_l]``."""

    def __init__(self, part: Part, centre: Tensor, left: Chunk, right: Chunk) -> None:
        self.slices = (left[1], right[1])
        self.batched = len(part.tensors) - part.source.shared
        self.sides = [self._leaves(part, rows) for rows in self.slices]
        with torch.enable_grad():
            self.g = [part.source.individual(side) for side in self.sides]
        self.centred = [
            g.detach() - centre[domain]
            for g, (domain, _) in zip(self.g, (left, right), strict=True)
        ]

    def _leaves(self, part: Part, rows: slice) -> list[Tensor]:
        return [
            (t[rows] if k < self.batched else t).detach().requires_grad_(t.requires_grad)
            for k, t in enumerate(part.tensors)
        ]

    def add_to(self, gram: Tensor) -> None:
        gram.addmm_(self.centred[0], self.centred[1].mT)

    def pull_back(self, w: Tensor, grads: list[Tensor | None]) -> None:
        cotangents = (w @ self.centred[1], w.mT @ self.centred[0])
        for g, side, rows, c in zip(self.g, self.sides, self.slices, cotangents, strict=True):
            asked = [k for k, leaf in enumerate(side) if leaf.requires_grad]
            if not g.requires_grad:
                continue
            found = torch.autograd.grad(g, [side[k] for k in asked], c, allow_unused=True)
            for k, grad in zip(asked, found, strict=True):
                into = grads[k]
                if grad is not None and into is not None:
                    (into[rows] if k < self.batched else into).add_(grad)
