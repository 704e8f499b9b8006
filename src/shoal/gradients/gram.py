"""Gram matrices: 1/|𝓔| Σ_e ‖C_e − C̄‖² of covariances from n × n matrices instead of P × P.

With centred gradients G̃_e: ⟨C_e, C_f⟩ = ‖G̃_e G̃_fᵀ‖² / ((n_e − 1)(n_f − 1)), and the spread is a
weighted sum of these inner products. The Gram matrix is a sum over layers. For a linear layer each
of its entries is a product of two inner products, and no gradient is ever formed.

If the covariances agree, the terms cancel, in the value and in its gradient. So products of Gram
matrices never use reduced precision, and the value is summed in float64.
Letters: n examples, E domains, o outputs, k inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..distributed import gather_rows, world_size
from ..replay import first_order
from .domains import Chunk, SortedDomains, host_order
from .materialised import BUDGET, AutogradGradients
from .precision import full_precision
from .sources import Centre, GradientSource, LinearOnVectors, deviations

# Examples per side of a Gram block: 64 MiB in float32.
BLOCK = 4096

Gradients = list[list[Tensor | None]]


@dataclass(frozen=True, eq=False)
class LayerGradients:
    """One source and the tensors that its individual gradients are computed from."""

    source: GradientSource
    tensors: list[Tensor]


def gram_spread(
    parts: Sequence[LayerGradients], groups: SortedDomains, unbiased: bool, block: int | None = None
) -> Tensor:
    """Return the spread of the covariances of all ``parts``' weights together, a scalar."""
    parts = list(parts)
    tensors = [t for part in parts for t in part.tensors]
    largest = max(
        [part.source.size for part in parts if not isinstance(part.source, LinearOnVectors)] or [1]
    )
    block = min(block or BLOCK, max(BUDGET // largest, 1))
    value: Tensor = _Gram.apply(parts, groups, unbiased, block, *tensors)  # type: ignore[no-untyped-call]
    return value


def dense_covariances(
    parts: Sequence[LayerGradients], groups: SortedDomains, unbiased: bool
) -> Tensor:
    """Return C_e, ``[E, P, P]``; only for few weights."""
    g = torch.cat([part.source.individual(part.tensors) for part in parts], 1)
    counts = groups.counts.to(g.dtype).clamp(min=1)
    centred = groups.centre(g, groups.total(g) / counts[:, None])
    divisor = (counts - 1 if unbiased else counts).clamp(min=1)
    with full_precision():
        return groups.outer(centred, centred) / divisor[:, None, None]


def split_by_tensor(part: LayerGradients, sizes: Sequence[int]) -> list[LayerGradients]:
    """Return one part per weight tensor; ``sizes`` are the tensors' sizes in order."""
    source = part.source
    if len(sizes) == 1:
        return [part]
    if isinstance(source, LinearOnVectors):
        bias = AutogradGradients(source.outputs, lambda r: r.clone())
        return [
            LayerGradients(replace(source, bias=False), part.tensors),
            LayerGradients(bias, part.tensors[1:]),
        ]
    parts, start = [], 0
    for size in sizes:
        columns = slice(start, start + size)
        one = AutogradGradients(size, partial(_some_columns, source, columns), source.shared)
        parts.append(LayerGradients(one, part.tensors))
        start += size
    return parts


def _some_columns(source: GradientSource, columns: slice, *tensors: Tensor) -> Tensor:
    return source.individual(tensors)[:, columns]


def gather_parts(
    parts: Sequence[LayerGradients], groups: SortedDomains
) -> tuple[list[LayerGradients], SortedDomains]:
    """Return the parts with the examples of all ranks, sorted by domain."""
    if world_size() == 1:
        return list(parts), groups
    local = torch.cat([torch.full((n,), e) for e, n in enumerate(groups.sizes)])
    (domains,) = gather_rows(local.to(groups.device))
    order, sizes = host_order(domains, groups.num_domains)

    def gather(tensor: Tensor) -> Tensor:
        (rows,) = gather_rows(tensor)
        return rows if order is None else rows[order.to(rows.device)]

    gathered = []
    for part in parts:
        batched = len(part.tensors) - part.source.shared
        tensors = [gather(t) if k < batched else t for k, t in enumerate(part.tensors)]
        gathered.append(LayerGradients(part.source, tensors))
    return gathered, SortedDomains(sizes, groups.device)


class _Gram(torch.autograd.Function):
    """The value and, if needed, its gradient, in one sweep over the blocks.

    Means are held fixed: rows of a centred Gram matrix sum to zero, so the derivative in the means
    vanishes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        parts: list[LayerGradients],
        groups: SortedDomains,
        unbiased: bool,
        block: int,
        *tensors: Tensor,
    ) -> Tensor:
        needed = ctx.needs_input_grad[4:]
        leaves = iter(
            t.detach().requires_grad_(need) for t, need in zip(tensors, needed, strict=True)
        )
        detached = [
            LayerGradients(part.source, [next(leaves) for _ in part.tensors]) for part in parts
        ]
        grads = [
            [torch.zeros_like(t) if t.requires_grad else None for t in part.tensors]
            for part in detached
        ]
        with full_precision():
            value = _sweep(detached, groups, unbiased, block, grads if any(needed) else None)
        flat = [grad for many in grads for grad in many]
        ctx.save_for_backward(*[grad for grad in flat if grad is not None])
        ctx.has_grad = [grad is not None for grad in flat]
        return value

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        grads = [next(saved) * c if has_grad else None for has_grad in ctx.has_grad]
        return None, None, None, None, *grads


def _sweep(
    parts: list[LayerGradients],
    groups: SortedDomains,
    unbiased: bool,
    block: int,
    grads: Gradients | None,
) -> Tensor:
    """Return Σ_{e,f} w_ef ‖K_ef‖² over pairs of domains and add its gradients to ``grads``."""
    like = next(t for part in parts for t in part.tensors if t.is_floating_point())
    present = [n >= 2 for n in groups.sizes]
    total = sum(present)
    value = torch.zeros((), dtype=torch.float64, device=like.device)
    if total < 2:
        return value.to(like.dtype)
    divisors = [float(n - 1 if unbiased else n) for n in groups.sizes]
    centres = [_centre(part, groups) for part in parts]
    pieces = [chunk for chunk in groups.chunks(block) if present[chunk[0]]]
    for a, (e, rows) in enumerate(pieces):
        for b, (f, columns) in enumerate(pieces[a:], start=a):
            weight = ((e == f) / total - 1 / total**2) / (divisors[e] * divisors[f])
            weight *= 1 if a == b else 2  # the Gram matrix is symmetric
            gram = like.new_zeros(rows.stop - rows.start, columns.stop - columns.start)
            blocks = [
                block_of(part, centre, (e, rows), (f, columns))
                for part, centre in zip(parts, centres, strict=True)
            ]
            for one in blocks:
                one.add_to(gram)
            value += weight * gram.square().sum(dtype=torch.float64)
            if grads is not None:
                gram.mul_(2 * weight)
                for one, into in zip(blocks, grads, strict=True):
                    one.pull_back(gram, into)
    return value.to(like.dtype)


def _centre(part: LayerGradients, groups: SortedDomains) -> Any:
    """Return each domain's means: z̄, r̄ and m for a linear layer, otherwise ḡ."""
    tensors = [t.detach() for t in part.tensors]
    if isinstance(part.source, LinearOnVectors):
        z, r = tensors
        return deviations(z, r, groups)[0]
    return part.source.moments(tensors, groups, True)[0]


class GramBlock(Protocol):
    """⟨g_i − ḡ_e, g_j − ḡ_f⟩ of one part's weights, for examples i in rows and j in columns."""

    def add_to(self, gram: Tensor) -> None: ...

    def pull_back(self, w: Tensor, grads: list[Tensor | None]) -> None:
        """Add to ``grads`` the gradients of Σ_ij w_ij ⟨g_i − ḡ_e, g_j − ḡ_f⟩."""


def block_of(part: LayerGradients, centre: Any, left: Chunk, right: Chunk) -> GramBlock:
    """Return the Gram block of a part's weights, for two chunks of examples."""
    if isinstance(part.source, LinearOnVectors):
        return _LinearBlock(part, centre, left, right)
    return _IndividualBlock(part, centre, left, right)


class _LinearBlock:
    """A block from g_i − ḡ_e = r_i ⊗ ζ_i + ρ_i ⊗ z̄_e − m_e, multiplied out.

    With S = ρσᵀ and T = ζηᵀ the block is T ∘ rsᵀ + S ∘ X + terms of low rank, where rsᵀ and zyᵀ
    are S and T with rows and columns added; gradients need only these: Σ_j w_ij (g_j − ḡ_f) is
    pulled back to r_i as ((w ∘ zyᵀ) s)_i and to z_i as ((w ∘ rsᵀ) y)_i, since Σ_j w_ij = 0.
    """

    def __init__(self, part: LayerGradients, centre: Centre, left: Chunk, right: Chunk) -> None:
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
    """A block from the gradients themselves, ``[chunk, P_l]``."""

    def __init__(self, part: LayerGradients, centre: Tensor, left: Chunk, right: Chunk) -> None:
        self.slices = (left[1], right[1])
        self.batched = len(part.tensors) - part.source.shared
        self.sides = [self._leaves(part, rows) for rows in self.slices]
        with torch.enable_grad():
            self.g = [part.source.individual(side) for side in self.sides]
        self.centred = [
            g.detach() - centre[domain]
            for g, (domain, _) in zip(self.g, (left, right), strict=True)
        ]

    def _leaves(self, part: LayerGradients, rows: slice) -> list[Tensor]:
        return [
            (t[rows] if k < self.batched else t).detach().requires_grad_(t.requires_grad)
            for k, t in enumerate(part.tensors)
        ]

    def add_to(self, gram: Tensor) -> None:
        gram.addmm_(self.centred[0], self.centred[1].mT)

    def pull_back(self, w: Tensor, grads: list[Tensor | None]) -> None:
        cotangents = (w @ self.centred[1], w.mT @ self.centred[0])
        for g, side, rows, c in zip(self.g, self.sides, self.slices, cotangents, strict=True):
            wanted = [k for k, leaf in enumerate(side) if leaf.requires_grad]
            if not g.requires_grad:
                continue
            found = torch.autograd.grad(g, [side[k] for k in wanted], c, allow_unused=True)
            for k, grad in zip(wanted, found, strict=True):
                into = grads[k]
                if grad is not None and into is not None:
                    (into[rows] if k < self.batched else into).add_(grad)
