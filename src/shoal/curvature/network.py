"""Diagonals in any weights of any network, from one forward and K + 1 backwards of each chunk.

The Gauss-Newton diagonal is E[Σ_k (Jᵀa_k)²] over the roots a_k of ∂²ℓ/∂logits²: moments of
gradients, which ``shoal.gradients`` takes without forming them. It is the Fisher diagonal, and in
weights that the logits are piecewise linear in, as in a ReLU network, it is the Hessian's.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..checks import check_labels, check_logits, choose
from ..gradients.asked import job_of
from ..gradients.capture import finish
from ..gradients.inputs import Examples, Inputs
from ..gradients.job import Form, Job, like_of
from ..gradients.losses import individual_losses
from ..gradients.moments import Moments
from ..gradients.precision import full_precision, precise
from ..gradients.recording import Entry, Recording
from ..gradients.selection import Parameters
from ..gradients.variance import moments_of
from .backpack import backpack_diagonal
from .diagonals import Diagonals, from_moments
from .logits import along, check_targets, roots, units
from .one_by_one import curved_weights, one_by_one

METHODS = ("auto", "gauss-newton", "func", "backpack")
# Second derivatives of single weights, each a pass over the data: no more than this unasked.
FEW = 20_000
DIRECTIONS = {"fisher": roots, "tangent": units}


def network_diagonals(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    method: str = "auto",
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Diagonals:
    """Return every diagonal in any weights of a network, in its current mode.

    Args:
        model, inputs, labels, domains, parameters: as in ``shoal.gradient_variance``; the loss is
            cross-entropy, or binary on one logit.
        method: of the Hessian, as in ``hessian_diagonal``.
        chunk_size: examples that are run together; None for all.
    """
    job = _job(model, inputs, labels, domains, parameters, num_domains, chunk_size)
    total, fisher, losses = _moments(job, gradients=True)
    hessian = _hessian(job, fisher, method)
    return from_moments(job.groups, losses, total.mean, total.m2, fisher, hessian)


def hessian_diagonal(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    method: str = "auto",
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Return Diag(H_e) of each domain's mean risk, ``[E, P]``.

    Args:
        method: "auto" is exact: Gauss-Newton in the weights that the logits are piecewise linear
            in, one second derivative after the other in the rest, refused where they are many.
            "gauss-newton" everywhere, "func" for one after the other, or "backpack" (an extra).
        others: as in ``network_diagonals``.
    """
    job = _job(model, inputs, labels, domains, parameters, num_domains, chunk_size)
    wanted = choose("method", method, METHODS) in ("auto", "gauss-newton")
    fisher = _moments(job, gradients=False)[1] if wanted else None
    present = (job.groups.counts >= 2)[:, None]
    hessian = _hessian(job, fisher, method)
    return hessian.where(present, hessian.new_zeros(()))


def _job(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters,
    num_domains: int | None,
    chunk_size: int | None,
) -> Job:
    form = Form(centered=True)
    job = job_of(model, inputs, labels, domains, parameters, form, None, num_domains, chunk_size)
    if len(job.examples) == 0:
        raise ValueError("curvature needs examples, got none")
    return job


def recorded(job: Job, part: slice) -> tuple[Recording, Examples, Tensor]:
    """Return the recorded forward of a chunk: its layers, its examples and its logits."""
    examples = job.examples.take(part)
    recording = Recording(job.weights)
    with torch.enable_grad(), recording.on(job.model):
        logits = precise(examples.run(job.model))
    check_logits(logits, len(examples))
    check_labels(logits, examples.labels)
    check_targets(examples.labels, logits)
    return recording, examples, logits


def root_entries(
    job: Job, recording: Recording, examples: Examples, logits: Tensor, kind: str = "fisher"
) -> Iterator[list[Entry]]:
    """Yield the entries of the gradients in each direction of the logits, root after root."""
    directions = DIRECTIONS[kind]
    with torch.enable_grad():
        for k in range(directions(logits.detach()[:1]).shape[1]):

            def loss(logits: Tensor, labels: Tensor, k: int = k) -> Tensor:
                return along(logits, directions(logits)[:, k])

            losses = loss(logits, examples.labels)
            yield finish(recording, job.model, examples, losses, loss, create_graph=False)


@full_precision()
def _moments(job: Job, gradients: bool) -> tuple[Moments, Tensor, Tensor]:
    """Return the moments of the gradients where wanted, Diag(F_e) / n_e and the losses ``[n]``."""
    like, size = like_of(job), sum(weight.numel() for weight in job.weights.values())
    total = Moments.zero(job.groups.num_domains, size, [like])
    fisher, losses = torch.zeros_like(total.m2), []
    uncentred = replace(job, form=Form(centered=False))
    for part in job.chunks():
        groups = job.groups.within(part)
        recording, examples, logits = recorded(job, part)
        with torch.enable_grad():
            values = individual_losses(logits, examples.labels, None)
        losses.append(values.detach())
        if gradients:
            entries = finish(recording, job.model, examples, values, None, create_graph=False)
            mean, m2 = moments_of(job, entries, groups)
            for domain, n in enumerate(groups.sizes):
                total.add(domain, float(n), mean[domain], m2[domain], True)
        for entries in root_entries(job, recording, examples, logits):
            fisher += moments_of(uncentred, entries, groups)[1]
    counts = job.groups.counts.to(fisher.dtype).clamp(min=1)[:, None]
    return total, fisher / counts, torch.cat(losses)


def _hessian(job: Job, fisher: Tensor | None, method: str) -> Tensor:
    choose("method", method, METHODS)
    if method == "backpack":
        return backpack_diagonal(job)
    if method == "func" or fisher is None:
        return one_by_one(job, list(job.weights))
    if method == "gauss-newton":
        return fisher
    curved = curved_weights(job)
    if not curved:
        return fisher
    many = sum(job.weights[name].numel() for name in curved)
    if many > FEW:
        raise ValueError(
            f"the logits are not piecewise linear in {', '.join(curved[:3])}"
            f"{' …' if len(curved) > 3 else ''}: the exact Hessian diagonal would take {many:,} "
            "second derivatives, one after the other; choose gauss-newton for the Hessian, which "
            "leaves the network's own curvature out, backpack, or func with patience"
        )
    columns, hessian = job.columns(), fisher.clone()
    found = one_by_one(job, curved)
    sizes = [job.weights[name].numel() for name in curved]
    for name, rows in zip(curved, found.split(sizes, 1), strict=True):
        hessian[:, columns[name]] = rows
    return hessian
