"""What a step is by each rule: torch's fused kernels, and the first of all in closed form."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .optimisation import Optimisation

Tensors = tuple[Tensor, ...] | list[Tensor]  # what torch's functions of many tensors take
EPS = 1e-8  # torch's


def kept(optimisation: Optimisation) -> tuple[str, ...]:
    """Return the names of what a rule keeps of each weight."""
    if optimisation.rule == "sgd":
        return ("velocity",) if optimisation.momentum > 0 else ()
    return "count", "mean", "square"


@torch.no_grad()
def fused_step(
    optimisation: Optimisation,
    weights: Tensors,
    grads: Tensors,
    state: Mapping[str, Tensors],
    lr: float | Tensor,
    weight_decay: float,
    betas: tuple[float, float],
    stop: Tensor,
) -> None:
    """Make one step in place, by torch's kernel for many weights at once.

    Not by ``torch.optim``, which loads the compiler: more than a second of every process.

    Args:
        state: what ``kept`` names, of each weight; zeros before the first step.
        stop: a float scalar on the device; where it is 1, neither weights nor state change.
    """
    shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "maximize": False}
    shared |= {"grad_scale": None, "found_inf": stop}
    for places in _alike(weights):
        mine, slopes = [weights[k] for k in places], [grads[k] for k in places]
        has = {name: [values[k] for k in places] for name, values in state.items()}
        if optimisation.rule == "sgd":
            shared |= {"momentum": optimisation.momentum, "dampening": 0.0, "nesterov": False}
            velocities = has.get("velocity", [])
            torch._fused_sgd_(mine, slopes, velocities, is_first_step=False, **shared)
        else:
            step: Any = torch._fused_adamw_ if optimisation.rule == "adamw" else torch._fused_adam_
            shared |= {"beta1": betas[0], "beta2": betas[1], "eps": EPS, "amsgrad": False}
            torch._foreach_add_(has["count"], 1)
            step(mine, slopes, has["mean"], has["square"], [], has["count"], **shared)
            torch._foreach_sub_(has["count"], [stop] * len(places))


def _alike(tensors: Tensors) -> Iterable[list[int]]:
    """Return the places of the tensors of each kind of numbers, which one kernel takes."""
    found: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(place)
    return found.values()


@torch.no_grad()
def clipped(grads: Tensors, norm: float) -> Tensors:
    """Return the gradients, all made smaller alike where their norm together is above ``norm``."""
    # In float64, where the square of no float32 overflows.
    norms = torch.stack(torch._foreach_norm(grads, 2, torch.float64))
    share = (norm / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1)
    found = list(grads)  # not in place: two weights may have one and the same gradient tensor
    for places in _alike(grads):
        mine = torch._foreach_mul([grads[k] for k in places], share.to(grads[places[0]].dtype))
        for place, grad in zip(places, mine, strict=True):
            found[place] = grad
    return found


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
