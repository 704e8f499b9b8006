"""v_e = Var(G_e), Eq. 2, from sources of individual gradients: at once, or in two passes.

At once, the graph of the forward and of its backward is kept, and each layer's share of the
statistic is one node. In two passes, chunks of examples are run and forgotten: the first pass
merges their moments, the second sends the cotangent of the statistic back through each chunk,
with the global mean held fixed.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..distributed import all_ranks, world_size
from .capture import Entry, record
from .groups import Groups, Sorted
from .inputs import Examples
from .losses import Loss
from .repeat import Modes, Randomness, autocast_now, first_order
from .sources import Moments, Source


@dataclass(frozen=True)
class Form:
    """Which second moment: centred or not, 1/(n−1) or 1/n."""

    centered: bool = True
    unbiased: bool = True

    def scale(self, counts: Tensor) -> Tensor:
        """Return what Σ_i is multiplied by, ``[E, 1]``; 0 for a domain that is absent (n < 2)."""
        divisor = counts - 1 if self.centered and self.unbiased else counts
        return torch.where(counts >= 2, 1 / divisor.clamp(min=1), 0.0)[:, None]

    def scale_of(self, groups: Groups, dtype: torch.dtype) -> Tensor | float:
        """Return the scale of groups; one number where the host knows that all are alike."""
        if isinstance(groups, Sorted) and len(set(groups.sizes)) == 1:
            return float(self.scale(torch.tensor(groups.sizes[:1], dtype=torch.float64)))
        return self.scale(groups.counts.to(dtype))


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


@dataclass
class Job:
    """A statistic to be taken: the network, its chosen weights, and examples sorted by domain."""

    model: nn.Module
    weights: dict[str, Tensor]
    examples: Examples
    groups: Sorted
    loss: Loss | None
    form: Form
    chunk_size: int | None = None

    @property
    def device(self) -> torch.device:
        return next(iter(self.weights.values())).device

    def assemble(self, parts: dict[str, Tensor], like: Tensor) -> Tensor:
        """Return the columns of all weights in order; a weight that is never used has zeros."""
        columns = []
        for name, weight in self.weights.items():
            if name in parts:
                columns.append(parts[name])
            else:
                columns.append(like.new_zeros(self.groups.num_domains, weight.numel()))
        return torch.cat(columns, 1)

    def split(self, entry: Entry, rows: Tensor) -> dict[str, Tensor]:
        sizes = [self.weights[name].numel() for name in entry.names]
        return dict(zip(entry.names, rows.split(sizes, 1), strict=True))

    def chunks(self) -> list[slice]:
        n = len(self.examples)
        size = self.chunk_size or max(n, 1)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def entries(self, part: slice | None, create_graph: bool) -> list[Entry]:
        examples = self.examples if part is None else self.examples.take(part)
        return record(self.model, self.weights, examples, self.loss, create_graph)


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
        mean, m2 = _chunk_moments(job, entries, job.groups)
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
        columns, grads = _columns(ctx.job), []
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
            mean, m2 = _chunk_moments(job, job.entries(part, create_graph=False), groups)
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
        columns = _columns(job)
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


def _chunk_moments(job: Job, entries: list[Entry], groups: Sorted) -> tuple[Tensor, Tensor]:
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


def _columns(job: Job) -> dict[str, slice]:
    columns, start = {}, 0
    for name, weight in job.weights.items():
        columns[name] = slice(start, start + weight.numel())
        start += weight.numel()
    return columns


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


def like_of(job: Job) -> Tensor:
    """Return an empty tensor of the statistic's dtype and device."""
    weight = next(iter(job.weights.values()))
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.empty(0, dtype=dtype, device=weight.device)


def outside_autocast(job: Job) -> AbstractContextManager[None]:
    """Statistics are float32 under any autocast."""
    return torch.autocast(job.device.type, enabled=False)
