"""Variances: v_e = Var(G_e), Eq. 2, in one pass, over ranks, or in two passes over chunks.

In one pass the graph of the forward is kept, and each layer's rows are one node of it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import all_ranks, world_size
from ..replay import Modes, Randomness, autocast_now, first_order
from ..transforms import transformed
from .domains import DomainGroups, SortedDomains
from .job import Job
from .materialised import MaterialisedGradients, Moments
from .recording import WeightGradients
from .sources import Form, GradientSource


def losses_and_rows(job: Job) -> tuple[Tensor, Tensor]:
    """Return ℓ ``[n]`` and v ``[E, P]`` of a job, differentiable in weights and inputs."""
    if job.chunk_size is not None:
        wanted = job.differentiable_tensors()
        losses, rows = _VarianceInTwoPasses.apply(job, *wanted)  # type: ignore[no-untyped-call]
        return job.unsort(losses), rows
    if not len(job.examples):
        return job.zeros(0), variance_of(job, [])
    losses, entries = job.record(None, create_graph=torch.is_grad_enabled())
    return job.unsort(losses), variance_of(job, entries)


def variance_of(job: Job, entries: list[WeightGradients]) -> Tensor:
    """Return v ``[E, P]`` from recorded entries, keeping the graph."""
    with job.outside_autocast():
        if world_size() > 1:
            # One node for all weights: ranks can get the same weight from different sources.
            tensors = [t for entry in entries for t in entry.tensors]
            # With the weights, so a rank without examples has a graph too.
            everything = (*job.weights.values(), *tensors)
            merged: Tensor = _RowsOverRanks.apply(job, entries, *everything)  # type: ignore[no-untyped-call]
            return merged
        parts: dict[str, Tensor] = {}
        for entry in entries:
            rows = rows_at_once(entry.source, entry.tensors, job.groups, job.form)
            parts.update(job.split(entry, rows))
        return job.assemble(parts)


def rows_at_once(
    source: GradientSource, tensors: Sequence[Tensor], groups: DomainGroups, form: Form
) -> Tensor:
    """Return the variance rows of one source, ``[E, P]``, as one node of the graph."""
    if torch.compiler.is_compiling() or transformed():  # they differentiate the products
        _, m2 = source.moments(tensors, groups, form.centered)
        return m2 * form.scale_of(groups, m2.dtype)
    rows: Tensor = _Rows.apply(source, groups, form, *tensors)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: GradientSource, groups: DomainGroups, form: Form, *tensors: Tensor
    ) -> Tensor:
        cache: tuple[Tensor, ...] = ()
        if isinstance(source, MaterialisedGradients) and isinstance(groups, SortedDomains):
            cached = source.cached(tensors, groups)
            cache = () if cached is None else (cached,)
        mean, m2 = source.moments(tensors, groups, form.centered, *cache)
        scale = form.scale_of(groups, m2.dtype)
        ctx.scale = 2 * scale
        ctx.source, ctx.groups, ctx.centered = source, groups, form.centered
        ctx.tensors = len(tensors)
        ctx.save_for_backward(mean, *tensors, *cache)
        return m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        mean, saved = ctx.saved_tensors[0], ctx.saved_tensors[1 : 1 + ctx.tensors]
        cache = ctx.saved_tensors[1 + ctx.tensors :]
        mean = mean if ctx.centered else None
        tensors = [
            t.detach().requires_grad_(need)
            for t, need in zip(saved, ctx.needs_input_grad[3:], strict=True)
        ]
        smaller = c.numel() <= sum(t.numel() for t in tensors if t.requires_grad)
        with torch.autocast(c.device.type, enabled=False):
            if smaller or not isinstance(ctx.scale, float):
                grads = ctx.source.pull_back(tensors, ctx.groups, c * ctx.scale, mean, *cache)
            else:
                grads = ctx.source.pull_back(tensors, ctx.groups, c, mean, *cache)
                grads = tuple(None if grad is None else grad.mul_(ctx.scale) for grad in grads)
        return None, None, None, *grads


class _RowsOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, entries: list[WeightGradients], *everything: Tensor) -> Tensor:
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
            own = columns_of(names, columns, c * ctx.scale)
            held = columns_of(names, columns, mean) if ctx.job.form.centered else None
            with ctx.job.outside_autocast():
                grads += source.pull_back(mine, ctx.job.groups, own, held)
        return None, None, *[None] * len(ctx.job.weights), *grads


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


class _VarianceInTwoPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, *wanted: Tensor) -> tuple[Tensor, Tensor]:
        losses, total, ctx.state = first_pass(job)
        counts, mean, m2 = job.groups.counts, total.mean, total.m2
        if world_size() > 1:
            counts, mean, m2 = merge_ranks(counts, mean, m2, job.form.centered)
        scale = job.form.scale(counts.to(m2.dtype))
        ctx.job, ctx.scale, ctx.wanted = job, 2 * scale * world_size(), len(wanted)
        ctx.set_materialize_grads(False)
        # Weights and inputs too: torch then notices if one is changed before the second pass.
        ctx.save_for_backward(mean, *wanted, *job.examples.tensors, job.examples.labels)
        return losses, m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, a: Tensor | None, c: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, *wanted = ctx.saved_tensors[: 1 + ctx.wanted]
        c = None if c is None else c * ctx.scale
        return None, *second_pass(ctx.job, ctx.state, wanted, a, c, mean)


@dataclass
class PassState:
    """The state of the first pass, which the second restores: randomness, modes and autocast."""

    randomness: Randomness
    modes: Modes
    autocast: Any


def first_pass(job: Job) -> tuple[Tensor, Moments, PassState]:
    """Return ℓ_i, the moments of all chunks together, and the state in which they ran."""
    losses = [job.zeros(0)]
    total = Moments.zero(job.groups.num_domains, job.size, losses)
    randomness = Randomness.now(job.device, job.model)
    state = PassState(randomness, Modes.now(job.model), autocast_now(job.device))
    for part in job.chunks():
        groups = job.groups.within(part)
        # Every chunk draws from the state of the whole batch, and only the first advances it.
        with randomness.restored() if part.start else nullcontext():
            found, entries = job.record(part, create_graph=False)
        losses.append(found.detach())
        mean, m2 = moments_of(job, entries, groups)
        for domain, n in enumerate(groups.sizes):
            total.add(domain, float(n), mean[domain], m2[domain], job.form.centered)
        del entries, found, mean, m2  # before the next chunk runs
    return torch.cat(losses), total, state


def second_pass(
    job: Job,
    state: PassState,
    wanted: list[Tensor],
    a: Tensor | None,
    c: Tensor | None,
    mean: Tensor,
) -> list[Tensor]:
    """Return the gradients in ``wanted`` for cotangents a of ℓ ``[n]`` and c of ½ M2 ``[E, P]``."""
    inputs = [k for k, t in enumerate(job.examples.tensors) if t.requires_grad]
    weights = len(wanted) - len(inputs)
    sums = [torch.zeros_like(t) for t in wanted]
    for part in job.chunks():
        leaves = [t[part].detach().requires_grad_(t.requires_grad) for t in job.examples.tensors]
        with state.randomness.restored(), state.modes.restored(), state.autocast():
            losses, entries = job.record(part, create_graph=True, leaves=leaves)
        outputs: list[Tensor] = []
        cotangents: list[Tensor] = []
        if c is not None:
            outputs, cotangents = _cotangents(job, entries, job.groups.within(part), c, mean)
        if a is not None:
            outputs, cotangents = [*outputs, losses], [*cotangents, a[part].to(losses.dtype)]
        del losses, entries
        if not outputs:
            continue
        with state.modes.restored():
            found = torch.autograd.grad(
                outputs,
                [*wanted[:weights], *(leaves[k] for k in inputs)],
                cotangents,
                allow_unused=True,
            )
        del outputs, cotangents  # frees the graph of this chunk
        for k, g in enumerate(found):
            if g is not None:
                (sums[k] if k < weights else sums[k][part]).add_(g)
        del found, g  # before the next chunk runs
    return sums


def _cotangents(
    job: Job, entries: list[WeightGradients], groups: SortedDomains, c: Tensor, mean: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that the chunk's gradients are computed from, and their cotangents."""
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    columns = job.columns()
    with job.outside_autocast():
        for entry in entries:
            mine = columns_of(entry.names, columns, c)
            held = columns_of(entry.names, columns, mean) if job.form.centered else None
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in entry.tensors]
            grads = entry.source.pull_back(leaves, groups, mine, held)
            for tensor, grad in zip(entry.tensors, grads, strict=True):
                if grad is not None and tensor.requires_grad:
                    outputs.append(tensor)
                    cotangents.append(grad)
    return outputs, cotangents


def moments_of(
    job: Job, entries: list[WeightGradients], groups: SortedDomains
) -> tuple[Tensor, Tensor]:
    """Return ḡ and M2 of all weights, ``[E, P]``, from recorded entries."""
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    with job.outside_autocast(), torch.no_grad():
        for entry in entries:
            tensors = [t.detach() for t in entry.tensors]
            mean, m2 = entry.source.moments(tensors, groups, job.form.centered)
            means.update(job.split(entry, mean))
            squares.update(job.split(entry, m2))
        return job.assemble(means), job.assemble(squares)


def columns_of(names: Sequence[str], columns: dict[str, slice], rows: Tensor) -> Tensor:
    """Return the rows' columns of these weights."""
    return torch.cat([rows[:, columns[name]] for name in names], 1)
