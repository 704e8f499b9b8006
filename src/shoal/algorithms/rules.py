"""What a step is by each rule: torch's fused one, and the first of all in closed form."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .optimisation import Optimisation

Tensors = tuple[Tensor, ...] | list[Tensor]  # what torch's functions of many tensors take
EPS = 1e-8  # torch's


def kept(optimisation: Optimisation) -> dict[str, str]:
    """Return what a rule keeps of each weight: our names, and torch's for the same."""
    if optimisation.rule == "sgd":
        return {"velocity": "momentum_buffer"} if optimisation.momentum > 0 else {}
    return {"count": "step", "mean": "exp_avg", "square": "exp_avg_sq"}


def fused(
    optimisation: Optimisation,
    weights: Sequence[nn.Parameter],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
) -> torch.optim.Optimizer:
    """Return torch's optimiser of this rule, one whose steps a tensor can switch off."""
    shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": True}
    if optimisation.rule == "sgd":
        return torch.optim.SGD(weights, momentum=optimisation.momentum, **shared)
    kind = torch.optim.AdamW if optimisation.rule == "adamw" else torch.optim.Adam
    return kind(weights, betas=betas, eps=EPS, capturable=True, **shared)


@torch.no_grad()
def clipped(grads: Tensors, norm: float) -> Tensors:
    """Return the gradients, all made smaller alike where their norm together is above ``norm``."""
    # In float64, where the square of no float32 overflows.
    norms = torch.stack(torch._foreach_norm(grads, 2, torch.float64))
    share = (norm / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1)
    # Not in place: two weights may have one and the same gradient tensor.
    return torch._foreach_mul(grads, share.to(grads[0].dtype))


@torch.no_grad()
def first_step(
    optimisation: Optimisation,
    weights: Tensors,
    grads: Tensors,
    lr: float | Tensor,
    weight_decay: float,
) -> list[Tensor]:
    """Return the weights after the first step of an optimiser made anew; they stay as they are.

    By Adam that is lr · ĝ / (|ĝ| + ε) less, ĝ the gradient with its L2; by SGD lr · ĝ.
    """
    if optimisation.rule == "adamw":
        weights = torch._foreach_mul(weights, 1 - lr * weight_decay)
    else:
        grads = torch._foreach_add(grads, weights, alpha=weight_decay)
    sizes = None if optimisation.rule == "sgd" else torch._foreach_abs(grads)
    if isinstance(lr, Tensor):
        grads, lr = torch._foreach_mul(grads, lr), 1.0
    if sizes is None:
        return list(torch._foreach_add(weights, grads, alpha=-lr))
    torch._foreach_add_(sizes, EPS)
    return list(torch._foreach_addcdiv(weights, grads, sizes, value=-lr))
