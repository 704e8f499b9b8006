"""1/|𝓔| Σ_e ‖C_e − C̄‖² of gradient covariances, from matrices of size n × n instead of P × P.

With centred gradients G̃_e: ⟨C_e, C_f⟩ = ‖G̃_e G̃_fᵀ‖² / ((n_e − 1)(n_f − 1)), and the spread is a
weighted sum of these inner products. The Gram matrix is a sum over layers; for a linear layer an
entry of it is a product of two inner products, and no gradient is ever formed.

The terms cancel as the covariances agree, in the value and in its gradient, so products of Gram
matrices are never taken in reduced precision and the value is summed in float64.
Letters: n examples, E domains, o outputs, k inputs.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..distributed import gather_rows, world_size
from . import linear
from .formed import BUDGET, Individual
from .gram_blocks import Part, block_of
from .groups import Sorted, host_order
from .precision import full_precision
from .repeat import first_order
from .sources import LinearOnVectors, Source

# Examples per side of a Gram block: 64 MiB in float32.
BLOCK = 4096


def gram_spread(
    parts: Sequence[Part], groups: Sorted, unbiased: bool, block: int | None = None
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


class _Gram(torch.autograd.Function):
    """The value and, if anyone will ask, its gradient, in one sweep over the blocks.

    Means are held fixed: rows of a centred Gram matrix sum to zero, so their derivative vanishes.
    """

    @staticmethod
    def forward(
        ctx: Any, parts: list[Part], groups: Sorted, unbiased: bool, block: int, *tensors: Tensor
    ) -> Tensor:
        needed = ctx.needs_input_grad[4:]
        leaves = iter(
            t.detach().requires_grad_(need) for t, need in zip(tensors, needed, strict=True)
        )
        detached = [Part(part.source, [next(leaves) for _ in part.tensors]) for part in parts]
        grads = [
            [torch.zeros_like(t) if t.requires_grad else None for t in part.tensors]
            for part in detached
        ]
        with full_precision():
            value = _sweep(detached, groups, unbiased, block, grads if any(needed) else None)
        flat = [grad for many in grads for grad in many]
        ctx.save_for_backward(*[grad for grad in flat if grad is not None])
        ctx.asked = [grad is not None for grad in flat]
        return value

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        return None, None, None, None, *(next(kept) * c if asked else None for asked in ctx.asked)


Gradients = list[list[Tensor | None]]


def _sweep(
    parts: list[Part], groups: Sorted, unbiased: bool, block: int, grads: Gradients | None
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


def _centre(part: Part, groups: Sorted) -> Any:
    """Return what centres this part: per domain z̄, r̄, m for a linear layer, ḡ otherwise."""
    tensors = [t.detach() for t in part.tensors]
    if isinstance(part.source, LinearOnVectors):
        z, r = tensors
        return linear.deviations(z, r, groups)[0]
    return part.source.moments(tensors, groups, True)[0]
