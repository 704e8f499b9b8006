"""Second derivatives of single weights by ``torch.func``: exact for any network, and slow.

And which weights need it: those in which the logits are not piecewise linear.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..gradients.anywhere import Functional
from ..gradients.elementary import twice_differentiable
from ..gradients.inputs import Examples
from ..gradients.job import Job, like_of
from ..gradients.losses import individual_losses
from ..gradients.precision import precise

# Examples that are looked at for curvature, and weights that are differentiated together.
LOOKED_AT, TOGETHER = 8, 64


def curved_weights(job: Job) -> list[str]:
    """Return the weights whose tensor, varied alone, moves the logits not piecewise linearly.

    On some examples of all domains: the gradient of a random combination of their logits in a
    tensor, along a random direction, must have a gradient in that tensor of exactly zero.
    """
    n = len(job.examples)
    some = torch.arange(0, n, max(n // LOOKED_AT, 1))
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
    rows = like_of(job).new_zeros(job.groups.num_domains, len(flat))

    def total(values: Tensor, examples: Examples) -> Tensor:
        """Return Σ_i ℓ_i as a function of the chosen weights, in one vector."""
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
