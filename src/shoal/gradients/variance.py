"""v_e = Var(G_e), Eq. 2, from sources of individual gradients, with the graph of the forward kept.

Each layer's share of the statistic is one node of the graph.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import all_ranks, world_size
from .formed import Formed
from .groups import Sorted
from .job import Form, Job, like_of, outside_autocast
from .masked import Groups
from .recording import Entry
from .repeat import first_order
from .sources import Source


def rows_at_once(source: Source, tensors: Sequence[Tensor], groups: Groups, form: Form) -> Tensor:
    """Return the variance rows of one source, ``[E, P]``, as one node of the graph."""
    if torch.compiler.is_compiling():  # the compiler finds the derivative of the products itself
        _, m2 = source.moments(tensors, groups, form.centered)
        return m2 * form.scale_of(groups, m2.dtype)
    rows: Tensor = _Rows.apply(source, groups, form, *tensors)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Source, groups: Groups, form: Form, *tensors: Tensor) -> Tensor:
        kept: tuple[Tensor, ...] = ()
        if isinstance(source, Formed) and isinstance(groups, Sorted):
            whole = source.kept(tensors, groups)
            kept = () if whole is None else (whole,)
        mean, m2 = source.moments(tensors, groups, form.centered, *kept)
        scale = form.scale_of(groups, m2.dtype)
        ctx.scale = 2 * scale
        ctx.source, ctx.groups, ctx.centered = source, groups, form.centered
        ctx.tensors = len(tensors)
        ctx.save_for_backward(mean, *tensors, *kept)
        return m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        mean, saved = ctx.saved_tensors[0], ctx.saved_tensors[1 : 1 + ctx.tensors]
        kept = ctx.saved_tensors[1 + ctx.tensors :]
        mean = mean if ctx.centered else None
        tensors = [
            t.detach().requires_grad_(need)
            for t, need in zip(saved, ctx.needs_input_grad[3:], strict=True)
        ]
        smaller = c.numel() <= sum(t.numel() for t in tensors if t.requires_grad)
        with torch.autocast(c.device.type, enabled=False):
            if smaller or not isinstance(ctx.scale, float):
                grads = ctx.source.pull_back(tensors, ctx.groups, c * ctx.scale, mean, *kept)
            else:
                grads = ctx.source.pull_back(tensors, ctx.groups, c, mean, *kept)
                grads = tuple(None if grad is None else grad.mul_(ctx.scale) for grad in grads)
        return None, None, None, *grads


def merge_ranks(
    counts: Tensor, mean: Tensor, m2: Tensor, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, means and M2 of all ranks' examples together (Chan's merge)."""
    all_counts = torch.stack(all_ranks(counts))  # [W, E]
    means, m2s = torch.stack(all_ranks(mean)), torch.stack(all_ranks(m2))  # [W, E, P]
    total = all_counts.sum(0)
    weights = (all_counts.to(mean.dtype) / total.clamp(min=1))[..., None]
    pooled = (weights * means).sum(0)
    m2 = m2s.sum(0)
    if centered:
        m2 = m2 + (all_counts.to(mean.dtype)[..., None] * (means - pooled).square()).sum(0)
    return total, pooled, m2


def variance_of(job: Job, entries: list[Entry]) -> Tensor:
    """Return v ``[E, P]`` from recorded entries, keeping the graph."""
    with outside_autocast(job):
        if world_size() > 1:
            # One node for all weights: ranks may know different weights by different roads.
            tensors = [t for entry in entries for t in entry.tensors]
            # With the weights, so that a rank without examples has a graph too.
            everything = (*job.weights.values(), *tensors)
            merged: Tensor = _RowsOverRanks.apply(job, entries, *everything)  # type: ignore[no-untyped-call]
            return merged
        parts: dict[str, Tensor] = {}
        for entry in entries:
            rows = rows_at_once(entry.source, entry.tensors, job.groups, job.form)
            parts.update(job.split(entry, rows))
        return job.assemble(parts, like_of(job))


class _RowsOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, entries: list[Entry], *everything: Tensor) -> Tensor:
        tensors = everything[len(job.weights) :]
        mean, m2 = moments_of(job, entries, job.groups)
        counts, mean, m2 = merge_ranks(job.groups.counts, mean, m2, job.form.centered)
        scale = job.form.scale(counts.to(m2.dtype))
        ctx.job, ctx.scale = job, 2 * scale * world_size()
        ctx.entries = [(entry.names, entry.source, len(entry.tensors)) for entry in entries]
        ctx.save_for_backward(mean, *tensors)
        return m2 * scale

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        mean, *saved = ctx.saved_tensors
        needed = iter(ctx.needs_input_grad[2 + len(ctx.job.weights) :])
        tensors = iter([t.detach().requires_grad_(next(needed)) for t in saved])
        columns, grads = ctx.job.columns(), []
        for names, source, count in ctx.entries:
            mine = [next(tensors) for _ in range(count)]
            own, held = (
                own_columns(names, columns, c * ctx.scale),
                own_columns(names, columns, mean),
            )
            with outside_autocast(ctx.job):
                grads += source.pull_back(
                    mine, ctx.job.groups, own, held if ctx.job.form.centered else None
                )
        return None, None, *[None] * len(ctx.job.weights), *grads


def own_columns(names: Sequence[str], columns: dict[str, slice], rows: Tensor) -> Tensor:
    """Return the columns of these weights."""
    return torch.cat([rows[:, columns[name]] for name in names], 1)


def moments_of(job: Job, entries: list[Entry], groups: Sorted) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 of all weights, ``[E, P]``, from recorded entries."""
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    with outside_autocast(job), torch.no_grad():
        for entry in entries:
            tensors = [t.detach() for t in entry.tensors]
            mean, m2 = entry.source.moments(tensors, groups, job.form.centered)
            means.update(job.split(entry, mean))
            squares.update(job.split(entry, m2))
        like = like_of(job)
        return job.assemble(means, like), job.assemble(squares, like)
