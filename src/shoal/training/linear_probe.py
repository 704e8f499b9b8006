"""Linear probe: a head fitted to frozen features, with which a training can start (LP-FT).

A random head sends large gradients into pretrained features and distorts them in the first updates
(Kumar et al., 2022). The probe depends on data, split and network alone, so all draws of a trial
start from the same weights. Of all hyperparameters only URM's ``output`` is part of the network.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..gradients.precision import full_precision
from .evaluation import HeadPass

# Weights ρ of ½‖W‖², the strongest first; and the one that is used where nothing is held out to
# choose by.
RIDGES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
USUAL = 0.01
# L-BFGS: pairs that it remembers, largest entry of the gradient at its end, most steps and halvings
# of a step, and the share of the expected decrease that a step must reach.
REMEMBERED, TOLERANCE, MOST, HALVINGS, ENOUGH = 10, 1e-5, 1000, 20, 1e-4

# Returns a value and its gradient at a point.
Objective = Callable[[Tensor], tuple[float, Tensor]]


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """A fitted head ``[C, p]`` and ``[C]``, and how it does on what is held out.

    ``loss`` and ``accuracy`` are means over the training domains' held-out parts; NaN without any.
    """

    weight: Tensor
    bias: Tensor
    ridge: float
    loss: float
    accuracy: float


def check_probed(method: type[Algorithm]) -> None:
    """Raise if a linear head on the features alone does not classify for this method."""
    if method.extra_channels or method.predicts_batchwise:
        raise ValueError(
            f"a linear probe cannot start {method.__name__}: its classifier sees more than the "
            "features of an image, such as the mean of a batch; use --start network, or another "
            "method"
        )


def plain_head(algorithm: Algorithm) -> nn.Linear:
    """Return the linear head of a method's network; raise if it has none."""
    check_probed(type(algorithm))
    head = algorithm.model.classifier
    if not isinstance(head, nn.Linear) or head.bias is None:
        raise ValueError(
            "a linear probe needs a network whose classifier is one linear layer with a bias, got "
            f"{type(head).__name__}; use --start network, or another network"
        )
    return head


@torch.no_grad()
def fit_probe(
    trained: Sequence[HeadPass],
    held_out: Sequence[HeadPass],
    classes: int,
    balanced: bool = False,
) -> LinearProbe:
    """Return the head that minimises the mean of the domains' mean cross-entropies, plus a ridge.

    The features are centred and divided by one number, their deviation over all columns, so that a
    ridge means the same for every network. A scale for each column would fit as well, but with far
    larger weights for features that hardly vary, which training would upset. From the strongest
    ridge on, ever weaker ones are tried while the loss on what is held out falls.

    Args:
        trained, held_out: features and labels of the training domains, a pass for each domain.
        balanced: whether the classes of a domain weigh alike, as in balanced batches.
    """
    inputs = torch.cat([part.features for part in trained])
    labels = torch.cat([part.labels for part in trained])
    shares = torch.cat([_shares(part.labels, balanced) for part in trained]).to(inputs.dtype)
    shares /= len(trained)
    with full_precision():
        mean, scale = _centre(inputs, shares)
        point = inputs.new_zeros(classes * (inputs.shape[1] + 1))
        found: list[LinearProbe] = []
        for ridge in RIDGES if held_out else (USUAL,):
            point = minimise(head_objective(inputs, labels, shares, classes, ridge), point)
            found.append(_folded(point.view(classes, -1), mean, scale, ridge, held_out))
            if len(found) > 1 and not found[-1].loss < found[-2].loss:
                return found[-2]
    return found[-1]


def _shares(labels: Tensor, balanced: bool) -> Tensor:
    """Return the weight of every example in its domain's mean; they sum to 1."""
    if not balanced:
        return torch.full((len(labels),), 1 / len(labels), device=labels.device)
    counts = labels.bincount()
    return 1 / (counts[labels] * (counts > 0).sum())


def _centre(inputs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Scale columns to mean 0 and a mean variance of 1, in place; return means and the scale."""
    mean = shares @ inputs
    inputs -= mean
    variance = (shares @ inputs.square()).mean()
    vary = variance > 1e-12 * mean.square().mean()  # by more than rounding
    scale = torch.where(vary, variance.rsqrt(), 0.0)
    inputs *= scale
    return mean, scale


def _folded(
    head: Tensor, mean: Tensor, scale: Tensor, ridge: float, held_out: Sequence[HeadPass]
) -> LinearProbe:
    """Return the head for features as they are, with its loss and accuracy on what is held out."""
    weight = head[:, :-1].double() * scale.double()
    bias = head[:, -1].double() - weight @ mean.double()
    weight, bias = weight.to(head.dtype), bias.to(head.dtype)
    losses, accuracies = [], []
    for part in held_out:
        logits = torch.addmm(bias, part.features, weight.T).double()
        losses.append(nn.functional.cross_entropy(logits, part.labels))
        accuracies.append((logits.argmax(1) == part.labels).double().mean())
    return LinearProbe(
        weight=weight,
        bias=bias,
        ridge=ridge,
        loss=float(torch.stack(losses).mean()) if losses else math.nan,
        accuracy=float(torch.stack(accuracies).mean()) if accuracies else math.nan,
    )


def head_objective(
    inputs: Tensor, labels: Tensor, shares: Tensor, classes: int, ridge: float
) -> Objective:
    """Return Σ_i share_i · cross-entropy_i + ρ/2 ‖W‖² of a head ``[C, p + 1]``, bias last.

    The bias is not penalised. The gradient is (p_i − y_i) share_i ⊗ (x_i, 1), summed, plus ρ W.
    """
    rows = torch.arange(len(labels), device=labels.device)

    def objective(point: Tensor) -> tuple[float, Tensor]:
        head = point.view(classes, -1)
        weight, bias = head[:, :-1], head[:, -1]
        logs = torch.addmm(bias, inputs, weight.T).log_softmax(1)
        risk = -(logs[rows, labels].double() @ shares.double())
        residuals = logs.exp_()
        residuals[rows, labels] -= 1
        residuals *= shares[:, None]
        gradient = torch.empty_like(head)
        gradient[:, :-1] = torch.addmm(ridge * weight, residuals.T, inputs)
        gradient[:, -1] = residuals.sum(0)
        return float(risk + ridge / 2 * weight.double().square().sum()), gradient.flatten()

    return objective


def minimise(objective: Objective, point: Tensor) -> Tensor:
    """Return the minimum of a smooth convex function near to ``point``, by L-BFGS.

    Steps are halved until they decrease the value. It ends when the gradient is small, or when
    rounding hides any further decrease. Ours, because those of ``torch.optim`` import the compiler.
    """
    value, gradient = objective(point)
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=REMEMBERED)
    for _ in range(MOST):
        if float(gradient.abs().max()) <= TOLERANCE:
            break
        direction = _direction(gradient, pairs)
        slope = float(direction @ gradient)
        size = 1.0 if pairs else min(1.0, 1 / float(gradient.abs().sum()))
        for _ in range(HALVINGS):
            moved = point + size * direction
            lower, turned = objective(moved)
            if lower <= value + ENOUGH * size * slope:
                break
            size /= 2
        if value - lower <= torch.finfo(point.dtype).eps * abs(value):
            break
        step, change = moved - point, turned - gradient
        if float(step @ change) > 0:
            pairs.append((step, change))
        point, value, gradient = moved, lower, turned
    return point


def _direction(gradient: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return −H⁻¹ g, with H⁻¹ estimated from the last steps (two-loop recursion)."""
    direction = -gradient
    shares = []
    for step, change in reversed(pairs):
        share = step.dot(direction) / step.dot(change)
        direction = direction - share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        direction = direction * (step.dot(change) / change.dot(change))
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        again = change.dot(direction) / step.dot(change)
        direction = direction + (share - again) * step
    return direction
