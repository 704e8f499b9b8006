"""ℓ_i and v_e of any weights: at once with the graph kept, or in two passes over chunks.

In two passes, chunks of examples are run and forgotten. The first merges the moments of their
gradients; the second runs each chunk again and sends the cotangents of losses and moments back
through it, with the global mean held fixed: the derivative of a variance in it vanishes.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..distributed import world_size
from .groups import Sorted
from .job import Job, like_of, outside_autocast
from .moments import Moments
from .recording import Entry
from .repeat import Modes, Randomness, autocast_now, first_order
from .variance import merge_ranks, moments_of, own_columns, variance_of


def losses_and_variance(job: Job) -> tuple[Tensor, Tensor]:
    """Return ℓ ``[n]`` and v ``[E, P]`` of a job, differentiable in weights and inputs."""
    if job.chunk_size is not None:
        wanted = wanted_of(job)
        losses, rows = _TwoPasses.apply(job, *wanted)  # type: ignore[no-untyped-call]
        return job.unsorted(losses), rows
    if not len(job.examples):
        return like_of(job), variance_of(job, [])
    losses, entries = job.record(None, create_graph=torch.is_grad_enabled())
    return job.unsorted(losses), variance_of(job, entries)


def wanted_of(job: Job) -> list[Tensor]:
    """Return what a job can be differentiated in: the model's weights, then inputs."""
    weights: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
    return weights + [t for t in job.examples.tensors if t.requires_grad]


@dataclass
class Kept:
    """What the first pass leaves for the second: how each chunk was run."""

    state: Randomness
    modes: Modes
    autocast: Any


def first_pass(job: Job) -> tuple[Tensor, Moments, Kept]:
    """Return ℓ_i, the moments of all chunks together, and how they were run."""
    size = sum(weight.numel() for weight in job.weights.values())
    total = Moments.zero(job.groups.num_domains, size, [like_of(job)])
    state = Randomness.now(job.device, job.model)
    kept = Kept(state, Modes.now(job.model), autocast_now(job.device))
    losses = [like_of(job)]
    for part in job.chunks():
        groups = job.groups.within(part)
        # All draw what the whole draws, and leave behind what it leaves.
        with state.restored() if part.start else nullcontext():
            found, entries = job.record(part, create_graph=False)
        losses.append(found.detach())
        mean, m2 = moments_of(job, entries, groups)
        for domain, n in enumerate(groups.sizes):
            total.add(domain, float(n), mean[domain], m2[domain], job.form.centered)
        del entries, found, mean, m2  # before the next chunk is run
    return torch.cat(losses), total, kept


def second_pass(
    job: Job, kept: Kept, wanted: list[Tensor], a: Tensor | None, c: Tensor | None, mean: Tensor
) -> list[Tensor]:
    """Return the gradients in ``wanted`` for cotangents a of ℓ ``[n]`` and c of ½ M2 ``[E, P]``."""
    inputs = [k for k, t in enumerate(job.examples.tensors) if t.requires_grad]
    weights = len(wanted) - len(inputs)
    sums = [torch.zeros_like(t) for t in wanted]
    for part in job.chunks():
        leaves = [t[part].detach().requires_grad_(t.requires_grad) for t in job.examples.tensors]
        with kept.state.restored(), kept.modes.restored(), kept.autocast():
            losses, entries = job.record(part, create_graph=True, leaves=leaves)
        outputs: list[Tensor] = []
        cotangents: list[Tensor] = []
        if c is not None:
            outputs, cotangents = _pulled_back(job, entries, job.groups.within(part), c, mean)
        if a is not None:
            outputs, cotangents = [*outputs, losses], [*cotangents, a[part].to(losses.dtype)]
        del losses, entries
        if not outputs:
            continue
        with kept.modes.restored():
            found = torch.autograd.grad(
                outputs,
                [*wanted[:weights], *(leaves[k] for k in inputs)],
                cotangents,
                allow_unused=True,
            )
        del outputs, cotangents  # and with them the graph of this chunk
        for k, g in enumerate(found):
            if g is not None:
                (sums[k] if k < weights else sums[k][part]).add_(g)
        del found, g  # before the next chunk is run
    return sums


class _TwoPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, *wanted: Tensor) -> tuple[Tensor, Tensor]:
        losses, total, ctx.kept = first_pass(job)
        counts, mean, m2 = job.groups.counts, total.mean, total.m2
        if world_size() > 1:
            counts, mean, m2 = merge_ranks(counts, mean, m2, job.form.centered)
        scale = job.form.scale(counts.to(m2.dtype))
        ctx.job, ctx.scale, ctx.wanted = job, 2 * scale * world_size(), len(wanted)
        ctx.set_materialize_grads(False)
        # Weights and inputs too: torch then notices when one was changed before the second pass.
        ctx.save_for_backward(mean, *wanted, *job.examples.tensors, job.examples.labels)
        return losses, m2.mul_(scale)

    @staticmethod
    @first_order
    def backward(ctx: Any, a: Tensor | None, c: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, *wanted = ctx.saved_tensors[: 1 + ctx.wanted]
        c = None if c is None else c * ctx.scale
        return None, *second_pass(ctx.job, ctx.kept, wanted, a, c, mean)


def _pulled_back(
    job: Job, entries: list[Entry], groups: Sorted, c: Tensor, mean: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that the chunk's gradients are made of, and their cotangents."""
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    columns = job.columns()
    with outside_autocast(job):
        for entry in entries:
            mine = own_columns(entry.names, columns, c)
            held = own_columns(entry.names, columns, mean) if job.form.centered else None
            leaves = [t.detach().requires_grad_(t.requires_grad) for t in entry.tensors]
            grads = entry.source.pull_back(leaves, groups, mine, held)
            for tensor, grad in zip(entry.tensors, grads, strict=True):
                if grad is not None and tensor.requires_grad:
                    outputs.append(tensor)
                    cotangents.append(grad)
    return outputs, cotangents
