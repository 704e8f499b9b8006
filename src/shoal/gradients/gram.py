"""1/|𝓔| Σ_e ‖C_e − C̄‖² of gradient covariances, from matrices of size n × n instead of P × P.

With centred gradients G̃_e: ⟨C_e, C_f⟩ = ‖G̃_e G̃_fᵀ‖² / ((n_e − 1)(n_f − 1)), and the spread is a
weighted sum of these inner products. The Gram matrix is a sum over layers; for a linear layer an
entry of it is a product of two inner products, and no gradient is ever formed.

The terms cancel as the covariances agree, so they are summed in float64 and the products are
never taken in reduced precision. Letters: n examples, E domains, o outputs, k inputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..distributed import gather_rows, world_size
from . import linear
from .groups import Sorted, host_order
from .repeat import first_order
from .sources import Individual, LinearOnVectors, Source

# Examples per side of a Gram block: 64 MiB in float32.
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Part:
    """One source and the tensors that its individual gradients are made of."""

    source: Source
    tensors: list[Tensor]


def gram_spread(
    parts: Sequence[Part], groups: Sorted, unbiased: bool, block: int | None = None
) -> Tensor:
    """Return the spread of the covariances of all ``parts``' weights together, a scalar."""
    parts = list(parts)
    tensors = [t for part in parts for t in part.tensors]
    value: Tensor = _Gram.apply(parts, groups, unbiased, block or BLOCK, *tensors)  # type: ignore[no-untyped-call]
    return value


def dense_covariances(parts: Sequence[Part], groups: Sorted, unbiased: bool) -> Tensor:
    """Return C_e, ``[E, P, P]``, for few weights."""
    g = torch.cat([part.source.individual(part.tensors) for part in parts], 1)
    counts = groups.counts.to(g.dtype).clamp(min=1)
    centred = groups.centre(g, groups.total(g) / counts[:, None])
    divisor = (counts - 1 if unbiased else counts).clamp(min=1)
    with full_precision():
        return groups.outer(centred, centred) / divisor[:, None, None]


def by_tensor(part: Part, sizes: Sequence[int]) -> list[Part]:
    """Return a part for each weight tensor; ``sizes`` are the tensors' sizes in order."""
    source = part.source
    if len(sizes) == 1:
        return [part]
    if isinstance(source, LinearOnVectors):
        bias = Individual(source.outputs, lambda r: r.clone())
        return [
            Part(replace(source, bias=False), part.tensors),
            Part(bias, part.tensors[1:]),
        ]
    apart, start = [], 0
    for size in sizes:
        columns = slice(start, start + size)
        one = Individual(size, partial(_some_columns, source, columns), source.shared)
        apart.append(Part(one, part.tensors))
        start += size
    return apart


def _some_columns(source: Source, columns: slice, *tensors: Tensor) -> Tensor:
    return source.individual(tensors)[:, columns]


def over_ranks(parts: Sequence[Part], groups: Sorted) -> tuple[list[Part], Sorted]:
    """Return the parts with the examples of all ranks, sorted by domain again."""
    if world_size() == 1:
        return list(parts), groups
    local = torch.cat([torch.full((n,), e) for e, n in enumerate(groups.sizes)])
    (domains,) = gather_rows(local.to(groups.device))
    order, sizes = host_order(domains, groups.num_domains)

    def everywhere(tensor: Tensor) -> Tensor:
        (rows,) = gather_rows(tensor)
        return rows if order is None else rows[order.to(rows.device)]

    gathered = []
    for part in parts:
        batched = len(part.tensors) - part.source.shared
        tensors = [everywhere(t) if k < batched else t for k, t in enumerate(part.tensors)]
        gathered.append(Part(part.source, tensors))
    return gathered, Sorted(sizes, groups.device)


def _divisors(groups: Sorted, unbiased: bool) -> list[float]:
    return [float(n - 1 if unbiased else n) for n in groups.sizes]


class _Gram(torch.autograd.Function):
    """The value and, if anyone will ask, its gradient, in one sweep over the blocks.

    Means are held fixed: rows of a centred Gram matrix sum to zero, so their derivative vanishes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        parts: list[Part],
        groups: Sorted,
        unbiased: bool,
        block: int,
        *tensors: Tensor,
    ) -> Tensor:
        needed = ctx.needs_input_grad[4:]
        detached, start = [], 0
        for part in parts:
            count = len(part.tensors)
            detached.append(
                [
                    t.detach().requires_grad_(need)
                    for t, need in zip(
                        tensors[start : start + count], needed[start : start + count], strict=True
                    )
                ]
            )
            start += count
        grads = [
            torch.zeros_like(t) if need else None for t, need in zip(tensors, needed, strict=True)
        ]
        with full_precision():
            value = _sweep(parts, detached, groups, unbiased, block, grads)
        ctx.save_for_backward(*[g for g in grads if g is not None])
        ctx.asked = [g is not None for g in grads]
        return value

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        return None, None, None, None, *(next(kept) * c if asked else None for asked in ctx.asked)


def _sweep(
    parts: list[Part],
    tensors: list[list[Tensor]],
    groups: Sorted,
    unbiased: bool,
    block: int,
    grads: list[Tensor | None],
) -> Tensor:
    """Return Σ_{e,f} w_ef ‖K_ef‖² and add its gradients to ``grads``."""
    floats = next(t for many in tensors for t in many if t.is_floating_point())
    present = [n >= 2 for n in groups.sizes]
    total = sum(present)
    value = torch.zeros((), dtype=torch.float64, device=floats.device)
    if total < 2:
        return value.to(floats.dtype)
    divisors = _divisors(groups, unbiased)
    centres = [_centre(part, many, groups) for part, many in zip(parts, tensors, strict=True)]
    pieces = [chunk for chunk in groups.chunks(block) if present[chunk[0]]]
    for a, (e, rows) in enumerate(pieces):
        for b, (f, columns) in enumerate(pieces[a:], start=a):
            weight = ((e == f) / total - 1 / total**2) / (divisors[e] * divisors[f])
            weight *= 1 if a == b else 2  # the Gram matrix is symmetric
            _block(parts, tensors, centres, (e, rows), (f, columns), weight, value, grads)
    return value.to(floats.dtype)


def _block(
    parts: list[Part],
    tensors: list[list[Tensor]],
    centres: list[Any],
    left: tuple[int, slice],
    right: tuple[int, slice],
    weight: float,
    value: Tensor,
    grads: list[Tensor | None],
) -> None:
    """Add w ‖K‖² of one block to ``value`` and its gradients to ``grads``."""
    sides = [
        [_leaves(part.source, many, rows) for part, many in zip(parts, tensors, strict=True)]
        for _, rows in (left, right)
    ]
    wanted = any(grad is not None for grad in grads)
    with torch.set_grad_enabled(wanted):
        entries = [
            _entry(part, sides[0][k], sides[1][k], centres[k], left[0], right[0])
            for k, part in enumerate(parts)
        ]
        gram = sum(entries[1:], start=entries[0])
    value += weight * gram.detach().square().sum(dtype=torch.float64)
    if not wanted:
        return
    flat = [leaf for side in sides for many in side for leaf in many]
    places = [
        (k, slice(None) if k in _shared(parts) else rows)
        for _, rows in (left, right)
        for k in range(len(grads))
    ]
    asked = [k for k, leaf in enumerate(flat) if leaf.requires_grad]
    found = torch.autograd.grad(
        gram, [flat[k] for k in asked], 2 * weight * gram.detach(), allow_unused=True
    )
    for k, grad in zip(asked, found, strict=True):
        index, rows = places[k]
        into = grads[index]
        if grad is not None and into is not None:
            into[rows].add_(grad)


def _leaves(source: Source, tensors: list[Tensor], rows: slice) -> list[Tensor]:
    batched = len(tensors) - source.shared
    return [
        (t[rows] if k < batched else t).detach().requires_grad_(t.requires_grad)
        for k, t in enumerate(tensors)
    ]


def _shared(parts: list[Part]) -> set[int]:
    """Return the places, in the flat list of all tensors, of those that hold no examples."""
    places: set[int] = set()
    start = 0
    for part in parts:
        stop = start + len(part.tensors)
        places.update(range(stop - part.source.shared, stop))
        start = stop
    return places


def _centre(part: Part, tensors: list[Tensor], groups: Sorted) -> Any:
    """Return what centres this part: per domain z̄, r̄, m for a linear layer, ḡ otherwise."""
    detached = [t.detach() for t in tensors]
    if isinstance(part.source, LinearOnVectors):
        z, r = detached
        return linear.deviations(z, r, groups)[0]
    return part.source.moments(detached, groups, True)[0]


def _entry(
    part: Part, left: list[Tensor], right: list[Tensor], centre: Any, e: int, f: int
) -> Tensor:
    """Return ⟨g_i − ḡ_e, g_j − ḡ_f⟩ for this part's weights, ``[rows, columns]``."""
    if not isinstance(part.source, LinearOnVectors):
        g = part.source.individual(left) - centre[e]
        h = part.source.individual(right) - centre[f]
        product: Tensor = g @ h.mT
        return product
    # g_i − ḡ_e = r_i ⊗ ζ_i + ρ_i ⊗ z̄_e − m_e, multiplied out. With S = ρσᵀ and T = ζηᵀ the
    # entries are T ∘ (S + A) + S ∘ X + terms of low rank; S + A is r sᵀ.
    (z, r), (y, s) = left, right
    ζ, η = z - centre.z[e], y - centre.z[f]
    ρ, σ = r - centre.r[e], s - centre.r[f]
    m, w = centre.m[e], centre.m[f]
    products, factors = ρ @ σ.mT, ζ @ η.mT
    α, β = ρ @ centre.r[f], σ @ centre.r[e]
    x, ξ = ζ @ centre.z[f], η @ centre.z[e]
    offset = β + centre.r[e] @ centre.r[f]
    gram: Tensor = factors * (products + α[:, None] + offset)
    # The bias is one more input that is always 1: it adds ρσᵀ.
    constant = centre.z[e] @ centre.z[f] + part.source.bias
    gram = torch.addcmul(gram, products, x[:, None] + (ξ + constant))
    own = ((r @ w) * ζ).sum(1) + ρ @ (w @ centre.z[e])
    other = ((s @ m) * η).sum(1) + σ @ (m @ centre.z[f])
    one = torch.ones_like(own)
    rank = torch.stack([x, α, own, one], 1)
    return torch.addmm(
        gram, rank, torch.stack([β, ξ, -torch.ones_like(other), (m * w).sum() - other])
    )


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch reduced-precision float32 products off inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
