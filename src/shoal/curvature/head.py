"""Diagonals of a linear classifier in closed form: matrix products of features and residuals.

The logits are linear in its weights, so that Hessian, Gauss-Newton and Fisher matrix are one:
Diag(H_e) = E[p_c (1 − p_c) z_k²].
"""

import torch
from torch import Tensor

from ..checks import check_domains, check_features, check_labels, check_logits
from ..gradients.groups import Sorted, host_order
from ..gradients.losses import individual_losses, residuals
from ..gradients.precision import full_precision, precise
from ..gradients.sources import LinearOnVectors
from .diagonals import Diagonals, from_moments
from .logits import check_targets, curvature


@torch.no_grad()
@full_precision()
def head_diagonals(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    bias: bool = True,
    num_domains: int | None = None,
) -> Diagonals:
    """Return every diagonal of a dense linear classifier; P is its weight, then its bias.

    Args:
        features: z, the classifier's input, ``[n, p]``.
        logits: ``[n, C]``, or ``[n]`` / ``[n, 1]`` for a binary loss.
        labels: class indices ``[n]``, soft targets ``[n, C]``, or 0/1 for a binary loss.
        domains: integer ids ``[n]``, in any order.
        bias: whether P holds the bias ``[C]`` after the weight ``[C, p]``.
        num_domains: E; by default the largest id + 1.
    """
    z, logits, labels, groups = sorted_head(features, logits, labels, domains, num_domains)
    source = LinearOnVectors(logits[0].numel(), z.shape[1], bias)
    mean, m2 = source.moments((z, residuals(logits, labels, None)), groups, True)
    hessian = _curvature(z, logits, groups, bias)
    losses = individual_losses(logits, labels, None)
    return from_moments(groups, losses, mean, m2, hessian, hessian)


@torch.no_grad()
@full_precision()
def head_hessian_diagonal(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    bias: bool = True,
    num_domains: int | None = None,
) -> Tensor:
    """Return Diag(H_e) of each domain's mean risk in a linear classifier, ``[E, P]``.

    Labels only matter in that soft targets must sum to 1; arguments as in ``head_diagonals``.
    """
    z, logits, _, groups = sorted_head(features, logits, labels, domains, num_domains)
    present = (groups.counts >= 2)[:, None]
    return _curvature(z, logits, groups, bias).where(present, z.new_zeros(()))


def sorted_head(
    features: Tensor, logits: Tensor, labels: Tensor, domains: Tensor, num_domains: int | None
) -> tuple[Tensor, Tensor, Tensor, Sorted]:
    """Return features, logits and labels sorted by domain, and their groups, after checks."""
    check_features(features)
    check_logits(logits, len(features))
    check_labels(logits, labels)
    check_targets(labels, logits)
    check_domains(domains, len(features), num_domains)
    z, logits = precise(features), precise(logits)
    order, sizes = host_order(domains, num_domains or int(domains.max()) + 1)
    if order is not None:
        z, logits = z[order.to(z.device)], logits[order.to(z.device)]
        labels = labels[order.to(labels.device)]
    return z, logits, labels, Sorted(sizes, z.device)


def _curvature(z: Tensor, logits: Tensor, groups: Sorted, bias: bool) -> Tensor:
    """Return each domain's mean of p(1 − p) ⊗ z², then of p(1 − p), ``[E, P]``."""
    h = curvature(logits)
    counts = groups.counts.to(z.dtype).clamp(min=1)[:, None, None]
    weight = (groups.outer(h, z.square()) / counts).flatten(1)
    return torch.cat([weight, groups.mean(h)], 1) if bias else weight
