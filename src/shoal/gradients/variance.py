"""v_e = Var(G_e), Eq. 2, from sources of individual gradients: at once, or in two passes.

At once, the graph of the forward and of its backward is kept, and each layer's share of the
statistic is one node. In two passes, chunks of examples are run and forgotten: the first pass
merges their moments, the second sends the cotangent of the statistic back through each chunk,
with the global mean held fixed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import all_ranks, world_size
from .capture import Entry, record
from .groups import Groups, Sorted
from .job import Form, Job, like_of, outside_autocast
from .repeat import Modes, Randomness, autocast_now, first_order
from .sources import Moments, Source


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
        mean, m2 = source.moments(tensors, groups, form.centered)
        scale = form.scale_of(groups, m2.dtype)
        ctx.scale = 2 * scale
        ctx.source, ctx.groups, ctx.centered = source, groups, form.centered
        ctx.save_for_backward(mean, *tensors)
        return m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        mean, *saved = ctx.saved_tensors
        mean = mean if ctx.centered else None
        tensors = [
            t.detach().requires_grad_(need)
            for t, need in zip(saved, ctx.needs_input_grad[3:], strict=True)
        ]
        with torch.autocast(c.device.type, enabled=False):
            if isinstance(ctx.scale, float):  # on what is smaller than c
                grads = ctx.source.pull_back(tensors, ctx.groups, c, mean)
                grads = tuple(None if grad is None else grad.mul_(ctx.scale) for grad in grads)
            else:
                grads = ctx.source.pull_back(tensors, ctx.groups, c * ctx.scale, mean)
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


def gradient_variance(job: Job) -> Tensor:
    """Return v ``[E, P]`` of a job, differentiable in the network's weights and inputs."""
    if job.chunk_size is None:
        empty = len(job.examples) == 0
        entries = [] if empty else job.entries(None, create_graph=torch.is_grad_enabled())
        return variance_of(job, entries)
    wanted: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
    wanted += [t for t in job.examples.tensors if t.requires_grad]
    rows: Tensor = _TwoPasses.apply(job, len(wanted), *wanted)  # type: ignore[no-untyped-call]
    return rows


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
        mean, m2 = chunk_moments(job, entries, job.groups)
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
            own, held = _own(names, columns, c * ctx.scale), _own(names, columns, mean)
            with outside_autocast(ctx.job):
                grads += source.pull_back(
                    mine, ctx.job.groups, own, held if ctx.job.form.centered else None
                )
        return None, None, *[None] * len(ctx.job.weights), *grads


def _own(names: Sequence[str], columns: dict[str, slice], rows: Tensor) -> Tensor:
    """Return the columns of these weights."""
    return torch.cat([rows[:, columns[name]] for name in names], 1)


class _TwoPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, _: int, *wanted: Tensor) -> Tensor:
        size = sum(weight.numel() for weight in job.weights.values())
        total = Moments.zero(job.groups.num_domains, size, [like_of(job)])
        ctx.states = []
        for part in job.chunks():
            ctx.states.append(Randomness.now(job.device))
            groups = job.groups.within(part)
            mean, m2 = chunk_moments(job, job.entries(part, create_graph=False), groups)
            for domain, n in enumerate(groups.sizes):
                total.add(domain, float(n), mean[domain], m2[domain], job.form.centered)
        counts, mean, m2 = job.groups.counts, total.mean, total.m2
        if world_size() > 1:
            counts, mean, m2 = merge_ranks(counts, mean, m2, job.form.centered)
        scale = job.form.scale(counts.to(m2.dtype))
        ctx.job, ctx.scale = job, 2 * scale * world_size()
        ctx.autocast, ctx.modes = autocast_now(job.device), Modes.now(job.model)
        ctx.wanted = len(wanted)
        # Weights and inputs too: torch then notices when one was changed before the second pass.
        ctx.save_for_backward(mean, *wanted, *job.examples.tensors, job.examples.labels)
        return m2 * scale

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        mean, *wanted = ctx.saved_tensors[: 1 + ctx.wanted]
        c = c * ctx.scale
        inputs = [k for k, t in enumerate(job.examples.tensors) if t.requires_grad]
        weights = len(wanted) - len(inputs)
        sums = [torch.zeros_like(t) for t in wanted]
        columns = job.columns()
        for part, state in zip(job.chunks(), ctx.states, strict=True):
            examples = job.examples.take(part)
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in examples.tensors]
            examples = examples.with_tensors(leaves, examples.labels)
            with state.restored(), ctx.modes.restored(), ctx.autocast():
                entries = record(job.model, job.weights, examples, job.loss, create_graph=True)
            groups = job.groups.within(part)
            outputs, cotangents = _pulled_back(job, entries, groups, c, mean, columns)
            if not outputs:
                continue
            with ctx.modes.restored():
                found = torch.autograd.grad(
                    outputs,
                    [*wanted[:weights], *(leaves[k] for k in inputs)],
                    cotangents,
                    allow_unused=True,
                )
            for k, g in enumerate(found):
                if g is not None:
                    (sums[k] if k < weights else sums[k][part]).add_(g)
        return None, None, *sums


def chunk_moments(job: Job, entries: list[Entry], groups: Sorted) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 (or Σ_i g_i²) of a chunk's gradients, ``[E, P]``, without a graph."""
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


def _pulled_back(
    job: Job,
    entries: list[Entry],
    groups: Sorted,
    c: Tensor,
    mean: Tensor,
    columns: dict[str, slice],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that the chunk's gradients are made of, and their cotangents."""
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    with outside_autocast(job):
        for entry in entries:
            mine = _own(entry.names, columns, c)
            held = _own(entry.names, columns, mean) if job.form.centered else None
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in entry.tensors]
            grads = entry.source.pull_back(leaves, groups, mine, held)
            for tensor, grad in zip(entry.tensors, grads, strict=True):
                if grad is not None and tensor.requires_grad:
                    outputs.append(tensor)
                    cotangents.append(grad)
    return outputs, cotangents
