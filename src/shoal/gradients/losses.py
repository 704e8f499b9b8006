"""Losses per example, and their gradient r in the logits."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def individual_losses(logits: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return ℓ_i, ``[n]``: the given loss, else cross-entropy or, on one logit, binary."""
    if loss is not None:
        values = loss(logits, labels)
        if not isinstance(values, Tensor):
            raise TypeError(f"loss must return a tensor, got {type(values).__name__}")
        if values.shape != (len(logits),):
            raise ValueError(
                f"loss must return one value per example, [{len(logits)}], got shape "
                f"{list(values.shape)}; pass reduction='none'"
            )
        return values
    if logits.ndim == 1 or logits.shape[1] == 1:
        flat = logits.reshape(-1)
        return F.binary_cross_entropy_with_logits(
            flat, labels.reshape(-1).to(flat.dtype), reduction="none"
        )
    target = labels.to(logits.dtype) if labels.is_floating_point() else labels.long()
    return F.cross_entropy(logits, target, reduction="none")


def residuals(logits: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return r_i = ∂ℓ_i/∂logits, ``[n, C]``, as a differentiable function of the logits."""
    n = len(logits)
    if loss is not None:
        r: Tensor = torch.func.grad(lambda x: individual_losses(x, labels, loss).sum())(logits)
        return r.reshape(n, -1)
    if logits.ndim == 1 or logits.shape[1] == 1:
        flat = logits.reshape(n, 1)
        return torch.sigmoid(flat) - labels.reshape(n, 1).to(flat.dtype)
    # log_softmax, then exp: with softmax, Inductor's CPU gradients of r² come out wrong.
    log_p = F.log_softmax(logits, 1)
    if labels.is_floating_point():
        labels = labels.to(logits.dtype)
        return log_p.exp() * labels.sum(1, keepdim=True) - labels
    minus_one = torch.full((n, 1), -1.0, dtype=log_p.dtype, device=log_p.device)
    return log_p.exp().scatter_add(1, labels.long()[:, None], minus_one)
