"""Diagonals in any weights of any network: Gauss-Newton, one by one, or by BackPACK.

Gauss-Newton takes one forward and K + 1 backwards of each chunk. Its diagonal is E[Σ_k (Jᵀa_k)²]
over the roots a_k of ∂²ℓ/∂logits²: moments of gradients, which ``shoal.gradients`` computes without
forming them. It equals the Fisher diagonal. In weights in which the logits are piecewise linear, as
in a ReLU network, it equals the Hessian's.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..catalogue import HESSIAN_METHODS
from ..checks import check_labels, check_logits
from ..choices import choose
from ..gradients.collect import collect_recorded
from ..gradients.double_backward import twice_differentiable
from ..gradients.examples import Examples, Inputs, individual_losses
from ..gradients.job import Job
from ..gradients.materialised import Moments
from ..gradients.parameters import Parameters, select_weights
from ..gradients.precision import full_precision, precise
from ..gradients.recording import Recording, WeightGradients
from ..gradients.sources import Form
from ..gradients.variance import moments_of
from ..gradients.vmap import Functional
from .diagonals import (
    Diagonals,
    along,
    check_targets,
    from_moments,
    logit_roots,
    logit_units,
)

DIRECTIONS = {"fisher": logit_roots, "tangent": logit_units}
# "auto" takes at most this many second derivatives of single weights, each a pass over the data.
MOST_SINGLE = 20_000
# Examples on which weights are tested for curvature, and weights differentiated together.
TESTED, TOGETHER = 8, 64


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
        method: how the Hessian is computed, as in ``hessian_diagonal``.
        chunk_size: examples that run together; None for all.
    """
    job = _prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    total, fisher, losses = _moments(job, gradients=True)
    hessian = _hessian(job, fisher, method)
    return from_moments(job.groups, losses, total.mean, total.m2, fisher=fisher, hessian=hessian)


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
        method: "auto" is exact: Gauss-Newton in weights in which the logits are piecewise linear,
            one second derivative after the other in the rest, which raises if they are too many.
            "gauss-newton" everywhere, "func" for one after the other, or "backpack" (an extra).
        others: as in ``network_diagonals``.
    """
    job = _prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    wanted = choose("method", method, HESSIAN_METHODS) in ("auto", "gauss-newton")
    fisher = _moments(job, gradients=False)[1] if wanted else None
    present = (job.groups.counts >= 2)[:, None]
    hessian = _hessian(job, fisher, method)
    return hessian.where(present, hessian.new_zeros(()))


def _prepare(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    *,
    parameters: Parameters,
    num_domains: int | None,
    chunk_size: int | None,
) -> Job:
    """Return the job of a diagonal; raise if there are no examples."""
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(centered=True),
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    if len(job.examples) == 0:
        raise ValueError("curvature needs examples, got none")
    return job


def record_forward(job: Job, part: slice) -> tuple[Recording, Examples, Tensor]:
    """Run the forward of a chunk; return its recorded layers, its examples and its logits."""
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
) -> Iterator[list[WeightGradients]]:
    """Yield the gradients' entries for each direction of the logits, one root after the other."""
    directions = DIRECTIONS[kind]
    with torch.enable_grad():
        for k in range(directions(logits.detach()[:1]).shape[1]):

            def loss(logits: Tensor, labels: Tensor, k: int = k) -> Tensor:
                return along(logits, directions(logits)[:, k])

            losses = loss(logits, examples.labels)
            yield collect_recorded(recording, job.model, examples, losses, loss, create_graph=False)


@full_precision()
def _moments(job: Job, gradients: bool) -> tuple[Moments, Tensor, Tensor]:
    """Return the moments of the gradients, if wanted, Diag(F_e) / n_e and the losses ``[n]``."""
    total = Moments.zero(job.groups.num_domains, job.size, [job.zeros(0)])
    fisher, losses = torch.zeros_like(total.m2), []
    uncentred = replace(job, form=Form(centered=False))
    for part in job.chunks():
        groups = job.groups.within(part)
        recording, examples, logits = record_forward(job, part)
        with torch.enable_grad():
            values = individual_losses(logits, examples.labels, None)
        losses.append(values.detach())
        if gradients:
            entries = collect_recorded(
                recording, job.model, examples, values, loss=None, create_graph=False
            )
            mean, m2 = moments_of(job, entries, groups)
            for domain, n in enumerate(groups.sizes):
                total.add(domain, float(n), mean[domain], m2[domain], True)
        for entries in root_entries(job, recording, examples, logits):
            fisher += moments_of(uncentred, entries, groups)[1]
    counts = job.groups.counts.to(fisher.dtype).clamp(min=1)[:, None]
    return total, fisher / counts, torch.cat(losses)


def _hessian(job: Job, fisher: Tensor | None, method: str) -> Tensor:
    choose("method", method, HESSIAN_METHODS)
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
    if many > MOST_SINGLE:
        raise ValueError(
            f"the logits are not piecewise linear in {', '.join(curved[:3])}"
            f"{' …' if len(curved) > 3 else ''}: the exact Hessian diagonal would take {many:,} "
            "second derivatives, one after the other; choose gauss-newton for the Hessian, which "
            "ignores the network's own curvature, backpack, or func, which takes long"
        )
    columns, hessian = job.columns(), fisher.clone()
    found = one_by_one(job, curved)
    sizes = [job.weights[name].numel() for name in curved]
    for name, rows in zip(curved, found.split(sizes, 1), strict=True):
        hessian[:, columns[name]] = rows
    return hessian


def curved_weights(job: Job) -> list[str]:
    """Return the weights in which the logits are not piecewise linear, each tensor varied alone.

    Tested on a few examples of all domains: take the gradient in a tensor of a random combination
    of their logits, along a random direction; its own gradient in that tensor must be exactly zero.
    """
    n = len(job.examples)
    some = torch.arange(0, n, max(n // TESTED, 1))
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        with twice_differentiable(job.model):
            logits = job.examples.take(some).run(job.model)
        random = torch.rand(logits.shape, generator=generator).to(logits) + 0.5
        first = torch.autograd.grad(
            (random * logits).sum(),
            list(job.weights.values()),
            create_graph=True,
            allow_unused=True,
        )
        curved = []
        for (name, weight), g in zip(job.weights.items(), first, strict=True):
            if g is None or not g.requires_grad:
                continue
            direction = torch.randn(g.shape, generator=generator).to(g)
            (second,) = torch.autograd.grad(
                (g * direction).sum(), weight, retain_graph=True, allow_unused=True
            )
            if second is not None and bool((second != 0).any()):
                curved.append(name)
    return curved


def one_by_one(job: Job, names: Sequence[str]) -> Tensor:
    """Return ∂²R_e/∂w² of every weight w of ``names``, ``[E, Σ sizes]``."""
    chosen = [job.weights[name].detach() for name in names]
    sizes = [weight.numel() for weight in chosen]
    flat = torch.cat([weight.flatten() for weight in chosen])
    rows = job.zeros(job.groups.num_domains, len(flat))

    def total(values: Tensor, examples: Examples) -> Tensor:
        """Return Σ_i ℓ_i as a function of the chosen weights, given as one vector."""
        pieces = zip(names, values.split(sizes), chosen, strict=True)
        mine = {name: piece.reshape(weight.shape) for name, piece, weight in pieces}
        logits = precise(examples.run(Functional(job.model, mine)))
        return individual_losses(logits, examples.labels, None).sum()

    for domain, part in job.groups.chunks(job.chunk_size or max(job.groups.sizes)):
        gradient = torch.func.grad(partial(total, examples=job.examples.take(part)))
        with twice_differentiable(job.model, vmapped=True):
            rows[domain] += _diagonal(gradient, flat)
    return rows / job.groups.counts.to(rows.dtype).clamp(min=1)[:, None]


def _diagonal(gradient: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return ∂g_k/∂w_k at ``at``, ``[P]``."""

    def second(k: Tensor) -> Tensor:
        axis = (torch.arange(len(at), device=at.device) == k).to(at.dtype)
        moved: Tensor = torch.func.jvp(gradient, (at,), (axis,))[1]
        return (moved * axis).sum()

    numbers = torch.arange(len(at), device=at.device)
    found: Tensor = torch.func.vmap(second, chunk_size=TOGETHER)(numbers)
    return found


def backpack_diagonal(job: Job) -> Tensor:
    """Return Diag(H_e), ``[E, P]``, of cross-entropy on two logits or more."""
    backpack = _import_backpack()
    model = deepcopy(job.model)
    copies = select_weights(model, "all")
    chosen = [weight for name, weight in copies.items() if name in job.weights]
    # BackPACK does not see that our container is a chain.
    named = [getattr(model, name, None) for name in ("features", "classifier")]
    parts = [part for part in named if isinstance(part, nn.Module)]
    chain = nn.Sequential(*parts) if len(parts) == 2 else model
    extended = backpack.extend(chain)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    rows = job.zeros(job.groups.num_domains, sum(w.numel() for w in chosen))
    for domain, part in job.groups.chunks(job.chunk_size or max(job.groups.sizes)):
        examples = _with_input_gradients(job.examples.take(part))
        if examples.labels.is_floating_point():
            raise ValueError("BackPACK takes class indices, got soft targets or 0/1 of one logit")
        for weight in chosen:
            weight.grad = None
        with torch.enable_grad(), backpack.backpack(backpack.extensions.DiagHessian()):
            loss(examples.run(extended), examples.labels).backward()
        rows[domain] += torch.cat([weight.diag_h.flatten() for weight in chosen])  # type: ignore[attr-defined]
    return rows / job.groups.counts.to(rows.dtype).clamp(min=1)[:, None]


def _with_input_gradients(examples: Examples) -> Examples:
    """Return examples whose inputs have gradients; without, torch warns about BackPACK's hooks."""
    tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in examples.tensors]
    return examples.with_tensors(tensors, examples.labels)


def _import_backpack() -> Any:
    try:
        import backpack
        import backpack.extensions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "method='backpack' needs BackPACK, which is not installed: pip install "
            "'shoal[vision]', which brings torchvision and the torch that it fits; to keep your "
            "torch: pip install --no-deps backpack-for-pytorch einops unfoldNd",
            name="backpack",
        ) from error
    return backpack
