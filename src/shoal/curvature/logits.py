"""The second derivative Λ_i = ∂²ℓ_i/∂logits², and its roots: what Fisher matrices are made of.

For cross-entropy Λ = diag(p) − ppᵀ = Σ_c a_c a_cᵀ with a_c = √p_c (e_c − p), whatever the label;
for one logit Λ = σ(1 − σ). A gradient in the direction a_c of the logits is a row of the root of
the Fisher matrix. Letters: n examples, K roots, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import values_visible


def curvature(logits: Tensor) -> Tensor:
    """Return the diagonal of Λ_i, ``[n, C]``: p(1 − p)."""
    if _binary(logits):
        flat = logits.reshape(-1, 1)
        return torch.sigmoid(flat) * torch.sigmoid(-flat)
    log_p = F.log_softmax(logits, 1)
    return log_p.exp() * -torch.expm1(log_p)


def roots(logits: Tensor) -> Tensor:
    """Return a, ``[n, K, C]``, with Λ_i = Σ_k a_ik a_ikᵀ; two classes or one logit have K = 1."""
    if _binary(logits):
        return curvature(logits).sqrt()[:, None]
    log_p = F.log_softmax(logits, 1)
    if logits.shape[1] == 2:
        root = (log_p.sum(1, keepdim=True) / 2).exp()
        return torch.cat([root, -root], 1)[:, None]
    away = torch.diag_embed(torch.ones_like(log_p)) - log_p.exp()[:, None]
    return (log_p / 2).exp()[:, :, None] * away


def units(logits: Tensor) -> Tensor:
    """Return the directions of single logits, ``[n, C, C]``: the roots of the tangent kernel."""
    flat = logits.reshape(len(logits), -1)
    return torch.diag_embed(torch.ones_like(flat))


def along(logits: Tensor, directions: Tensor) -> Tensor:
    """Return ⟨directions_i, logits_i⟩, ``[n]``, a loss whose gradient r is ``directions``."""
    return (logits.reshape(len(logits), -1) * directions.detach()).sum(1)


def check_targets(labels: Tensor, logits: Tensor) -> None:
    """Raise unless soft targets are distributions: else ∂²ℓ/∂logits² is another matrix."""
    soft = labels.is_floating_point() and not _binary(logits)
    if soft and values_visible(labels):
        total = labels.sum(1)
        if not torch.allclose(total, torch.ones_like(total), atol=1e-4):
            raise ValueError(
                "soft targets must sum to 1 for every example, "
                f"got sums from {float(total.min()):.4g} to {float(total.max()):.4g}"
            )


def _binary(logits: Tensor) -> bool:
    return logits.ndim == 1 or logits.shape[1] == 1
