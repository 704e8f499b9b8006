"""Means: g_e, the mean gradient of each domain, by autograd, at once or in chunks."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..distributed import sum_over_ranks
from ..replay import Modes, Randomness, autocast_now, first_order, part_of_batch
from .double_backward import twice_differentiable
from .job import Job
from .precision import dense, precise


def gradient_mean(job: Job) -> Tensor:
    """Return g ``[E, P]`` of a job, differentiable in the network's weights and inputs."""
    counts = sum_over_ranks(job.groups.counts).to(job.dtype)
    scale = torch.where(counts >= 2, 1 / counts.clamp(min=1), 0.0)[:, None]
    if job.chunk_size is None:
        create_graph = torch.is_grad_enabled()
        rows = [job.zeros(job.size) for _ in job.groups.sizes]
        for domain, part in job.groups.chunks(max(job.groups.sizes, default=1) or 1):
            rows[domain] = _gradient(job, part, create_graph)
        # Empty slices of the weights, so a rank without examples has a graph too.
        total = torch.stack(rows) + sum(w.flatten()[:0].sum() for w in job.weights.values())
    else:
        total = _MeanInTwoPasses.apply(job, *job.differentiable_tensors())  # type: ignore[no-untyped-call]
    return sum_over_ranks(total) * scale


def _gradient(
    job: Job, part: slice, create_graph: bool, leaves: list[Tensor] | None = None
) -> Tensor:
    """Return Σ_{i ∈ part} g_i, ``[P]``."""
    examples = job.examples.take(part)
    if leaves is not None:
        examples = examples.with_tensors(leaves, examples.labels)
    with torch.enable_grad():
        with twice_differentiable(job.model):
            total = examples.losses(job.model, job.loss).sum()
        found = torch.autograd.grad(
            total, list(job.weights.values()), create_graph=create_graph, allow_unused=True
        )
        pieces = [
            precise(torch.zeros_like(weight) if g is None else dense(g)).flatten()
            for g, weight in zip(found, job.weights.values(), strict=True)
        ]
        return torch.cat(pieces)


def _masks_of_domain(job: Job, domain: int, part: slice) -> AbstractContextManager[None]:
    """Return the context in which a chunk draws the dropout masks of its domain's whole pass."""
    start = sum(job.groups.sizes[:domain])
    return part_of_batch(part.start - start, part.stop - start, job.groups.sizes[domain])


class _MeanInTwoPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, *wanted: Tensor) -> Tensor:
        total = job.zeros(job.groups.num_domains, job.size)
        states: dict[int, Randomness] = {}
        ctx.job, ctx.autocast, ctx.states = job, autocast_now(job.device), states
        ctx.modes, ctx.wanted = Modes.now(job.model), len(wanted)
        # Torch then notices if a weight or an input is changed before the second pass.
        ctx.save_for_backward(*wanted, *job.examples.tensors, job.examples.labels)
        for domain, part in job.groups.chunks(job.chunk_size or 1):
            first = domain not in states
            if first:
                states[domain] = Randomness.now(job.device, job.model)
            # Every chunk draws from the state of its domain, and only the first advances it.
            state = nullcontext() if first else states[domain].restored()
            with state, _masks_of_domain(job, domain, part):
                total[domain] += _gradient(job, part, create_graph=False)
        return total

    @staticmethod
    @first_order
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        wanted = ctx.saved_tensors[: ctx.wanted]
        inputs = [k for k, t in enumerate(job.examples.tensors) if t.requires_grad]
        weights = wanted[: len(wanted) - len(inputs)]
        sums = [torch.zeros_like(t) for t in wanted]
        chunks = job.groups.chunks(job.chunk_size or 1)
        for domain, part in chunks:
            state, masks = ctx.states[domain], _masks_of_domain(job, domain, part)
            leaves = [
                t[part].detach().requires_grad_(t.requires_grad) for t in job.examples.tensors
            ]
            with state.restored(), ctx.modes.restored(), ctx.autocast(), masks:
                total = _gradient(job, part, create_graph=True, leaves=leaves)
            if not total.requires_grad:
                continue
            with ctx.modes.restored():
                found = torch.autograd.grad(
                    total, [*weights, *(leaves[k] for k in inputs)], c[domain], allow_unused=True
                )
            for k, g in enumerate(found):
                if g is not None:
                    (sums[k] if k < len(weights) else sums[k][part]).add_(g)
        return None, *sums
