"""Loss landscapes around trained weights, fig:fig_consistenty, with Proposition 1 taken apart.

The paper draws two domains' risks around inconsistent weights. Here they are measured, in a plane
of the classifier's weights ω through the trained ones: the two directions in which the domains'
mean risk is most curved. ε-level sets are N_A^ε, the weights that a path joins to θ* on which R_A
stays within ε of R_A(θ*).
"""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..curvature import inconsistency, of_matrices
from .colored_mnist import Setup, Training
from .restarts import Folder, Progress, device_name
from .trained import SHOWN, head_inputs, trained

DOMAINS = ("90%", "80%")
POINTS = 61
# How often an axis grows by half, for level sets that reach further than those of a bowl.
WIDENINGS = 5


def run(
    epsilon: float, setup: Setup, device: torch.device, folder: Folder, progress: Progress
) -> dict[str, Any]:
    """Return the landscape around ERM's and around Fishr's weights."""
    found = {}
    for name in SHOWN:
        training = trained(name, setup, device, folder, progress)
        found[name] = landscape(training, epsilon) | {"accuracies": training.accuracies()}
    return {
        "setup": asdict(setup),
        "device": device_name(device),
        "epsilon": epsilon,
        "methods": found,
    }


def landscape(training: Training, epsilon: float) -> dict[str, Any]:
    """Return risks on a grid, level sets, and the terms of the inconsistency in the plane."""
    z, logits, labels = head_inputs(training)
    hessians = head_hessians(z, logits)
    plane = plane_of(hessians)
    within = plane.mT @ hessians @ plane
    # Twice as far as the level sets of a bowl reach, to begin with.
    reach = 2.0 * (2 * epsilon / torch.diagonal(within, dim1=1, dim2=2).amin(0)).sqrt()
    for widening in range(WIDENINGS + 1):
        ticks = [torch.linspace(-float(r), float(r), POINTS) for r in reach]
        risks = risks_on(z @ plane, logits, labels, ticks)
        sets = torch.stack([level_set(mine, epsilon) for mine in risks])
        cut = cut_at(sets)
        if widening == WIDENINGS or not cut.any():
            break
        reach = reach * torch.where(cut.any(0), 1.5, 1.0).to(reach)
    centre = risks[:, POINTS // 2, POINTS // 2]
    scores = inconsistency(of_matrices(within), centre, epsilon)
    pairs = {}
    for a, b in ((0, 1), (1, 0)):
        score = scores.pairs[a, b]
        measured = (risks[b] - centre[a]).abs()[sets[a]].max()
        pairs[f"{DOMAINS[a]}, {DOMAINS[b]}"] = {
            "R": score.risk,
            "H": score.curvature,
            "proposition": score.inconsistency,
            "measured": float(measured),
        }
    return {
        "domains": DOMAINS,
        "axes": [tick.tolist() for tick in ticks],
        "risks": [[[round(v, 5) for v in row] for row in mine] for mine in risks.tolist()],
        "curvatures": within.tolist(),
        "cut": cut.any(1).tolist(),
        "pairs": pairs,
    }


def head_hessians(z: Tensor, logits: Tensor) -> Tensor:
    """Return H_e of the domains' mean risks in ω, ``[2, P, P]``: E[σ(1 − σ) z zᵀ]."""
    h = torch.sigmoid(logits) * torch.sigmoid(-logits)
    return (z * h[..., None]).mT @ z / z.shape[1]


def plane_of(hessians: Tensor) -> Tensor:
    """Return the two directions ``[P, 2]`` in which the domains' mean risk is most curved.

    Their largest entries are positive, so that a picture is not turned on another machine.
    """
    plane: Tensor = torch.linalg.eigh(hessians.mean(0))[1][:, [-1, -2]]
    largest = plane.gather(0, plane.abs().argmax(0, keepdim=True))
    return plane * largest.sign()


def risks_on(steps: Tensor, logits: Tensor, labels: Tensor, ticks: list[Tensor]) -> Tensor:
    """Return R_e on the grid, ``[2, x, y]``: logits are linear in ω.

    Args:
        steps: how much a logit grows along either direction, ``[2, n, 2]``.
    """
    x, y = (tick.to(logits) for tick in ticks)
    rows = []
    for a in x:
        moved = (logits + a * steps[..., 0])[..., None] + steps[..., 1:] * y
        targets = labels[..., None].expand_as(moved)
        losses = F.binary_cross_entropy_with_logits(moved, targets, reduction="none")
        rows.append(losses.mean(1))
    return torch.stack(rows, 1).cpu()


def level_set(risks: Tensor, epsilon: float) -> Tensor:
    """Return which points of the grid are joined to its centre where |R − R(centre)| ≤ ε."""
    centre = tuple(size // 2 for size in risks.shape)
    inside = (risks - risks[centre]).abs() <= epsilon
    found = torch.zeros_like(inside)
    found[centre] = True
    while True:
        grown = F.max_pool2d(found[None].double(), 3, 1, 1)[0].bool() & inside
        if torch.equal(grown, found):
            return found
        found = grown


def cut_at(sets: Tensor) -> Tensor:
    """Return which sets reach an end of which axis, ``[sets, 2]``."""
    return torch.stack([sets[:, [0, -1]].any((1, 2)), sets[:, :, [0, -1]].any((1, 2))], 1)
