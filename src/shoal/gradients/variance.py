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
from .repeat import Randomness, autocast_now, first_order
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


def rows_at_once(
    source: Source, tensors: Sequence[Tensor], groups: Groups, form: Form, over_ranks: bool = False
) -> Tensor:
    """Return the variance rows of one source, ``[E, P]``, as one node of the graph."""
    if torch.compiler.is_compiling():  # the compiler finds the derivative of the products itself
        _, m2 = source.moments(tensors, groups, form.centered)
        return m2 * form.scale_of(groups, m2.dtype)
    rows: Tensor = _Rows.apply(source, groups, form, over_ranks, *tensors)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Source, groups: Groups, form: Form, over_ranks: bool, *tensors: Tensor
    ) -> Tensor:
        mean, m2 = source.moments(tensors, groups, form.centered)
        scale = form.scale_of(groups, m2.dtype)
        ctx.scale = 2 * scale
        if over_ranks and world_size() > 1:
            counts, mean, m2 = merge_ranks(groups.counts, mean, m2, form.centered)
            scale = form.scale(counts.to(m2.dtype))
            ctx.scale = 2 * scale * world_size()
        ctx.source, ctx.groups = source, groups
        ctx.mean = mean if form.centered else None
        ctx.save_for_backward(*tensors)
        return m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        tensors = [
            t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, ctx.needs_input_grad[4:], strict=True)
        ]
        with torch.autocast(c.device.type, enabled=False):
            if isinstance(ctx.scale, float):  # on what is smaller than c
                grads = ctx.source.pull_back(tensors, ctx.groups, c, ctx.mean)
                grads = tuple(None if grad is None else grad.mul_(ctx.scale) for grad in grads)
            else:
                grads = ctx.source.pull_back(tensors, ctx.groups, c * ctx.scale, ctx.mean)
        return None, None, None, None, *grads


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
        n, size = len(self.examples), self.chunk_size or len(self.examples)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def entries(self, part: slice | None, create_graph: bool) -> list[Entry]:
        examples = self.examples if part is None else self.examples.take(part)
        return record(self.model, self.weights, examples, self.loss, create_graph)


def gradient_variance(job: Job) -> Tensor:
    """Return v ``[E, P]`` of a job, differentiable in the network's weights and inputs."""
    if len(job.examples) == 0:
        return job.assemble({}, like_of(job))
    if job.chunk_size is None:
        return variance_of(job, job.entries(None, create_graph=torch.is_grad_enabled()))
    wanted: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
    wanted += [t for t in job.examples.tensors if t.requires_grad]
    rows: Tensor = _TwoPasses.apply(job, len(wanted), *wanted)  # type: ignore[no-untyped-call]
    return rows


def variance_of(job: Job, entries: list[Entry]) -> Tensor:
    """Return v ``[E, P]`` from recorded entries, keeping the graph."""
    with outside_autocast(job):
        parts: dict[str, Tensor] = {}
        for entry in entries:
            rows = rows_at_once(entry.source, entry.tensors, job.groups, job.form, True)
            parts.update(job.split(entry, rows))
        return job.assemble(parts, like_of(job))


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
        ctx.autocast = autocast_now(job.device)
        ctx.save_for_backward(mean)
        return m2 * scale

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        (mean,) = ctx.saved_tensors
        c = c * ctx.scale
        wanted: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
        weights = len(wanted)
        inputs = [k for k, t in enumerate(job.examples.tensors) if t.requires_grad]
        wanted += [job.examples.tensors[k] for k in inputs]
        sums = [torch.zeros_like(t) for t in wanted]
        columns = _columns(job)
        for part, state in zip(job.chunks(), ctx.states, strict=True):
            examples = job.examples.take(part)
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in examples.tensors]
            examples = examples.with_tensors(leaves, examples.labels)
            with state.restored(), ctx.autocast():
                entries = record(job.model, job.weights, examples, job.loss, create_graph=True)
            groups = job.groups.within(part)
            outputs, cotangents = _pulled_back(job, entries, groups, c, mean, columns)
            if not outputs:
                continue
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
            mine = torch.cat([c[:, columns[name]] for name in entry.names], 1)
            centre = torch.cat([mean[:, columns[name]] for name in entry.names], 1)
            held = centre if job.form.centered else None
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
