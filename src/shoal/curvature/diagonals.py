"""Diagonals of the paper's chain H ≈ F ≈ F̃ ∝ C, and those of a linear head in closed form."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_domains, check_features, check_labels, check_logits, values_visible
from ..gradients.domains import SortedDomains, host_order
from ..gradients.examples import individual_losses, residuals
from ..gradients.precision import full_precision, precise
from ..gradients.sources import LinearOnVectors


@dataclass(frozen=True, kw_only=True)
class Diagonals:
    """One row per domain, in the order of P; a domain with fewer than two examples has zeros.

    Args:
        sizes: n_e.
        risks: R_e, ``[E]``.
        mean: g_e, ``[E, P]``.
        variance: Var(G_e) = Diag(C_e) with 1/(n − 1), Eq. 2.
        empirical: Diag(F̃_e) / n_e, the uncentred variance.
        fisher: Diag(F_e) / n_e, with labels drawn from the model; equal to Gauss-Newton's.
        hessian: Diag(H_e) of the mean risk.
    """

    sizes: tuple[int, ...]
    risks: Tensor
    mean: Tensor
    variance: Tensor
    empirical: Tensor
    fisher: Tensor
    hessian: Tensor


def from_moments(
    groups: SortedDomains,
    losses: Tensor,
    mean: Tensor,
    m2: Tensor,
    *,
    fisher: Tensor,
    hessian: Tensor,
) -> Diagonals:
    """Return the diagonals from losses ``[n]``, ḡ and M2 = Σ_i (g_i − ḡ)², ``[E, P]``."""
    counts = groups.counts.to(m2.dtype)[:, None]
    present = counts >= 2
    zero = m2.new_zeros(())
    variance = m2 / (counts - 1).clamp(min=1)
    # E[g²] = M2 / n + ḡ² has no negative terms, so nothing cancels.
    empirical = m2 / counts.clamp(min=1) + mean.square()
    return Diagonals(
        sizes=groups.sizes,
        risks=groups.mean(losses[:, None]).where(present, zero)[:, 0],
        mean=mean.where(present, zero),
        variance=variance.where(present, zero),
        empirical=empirical.where(present, zero),
        fisher=fisher.where(present, zero),
        hessian=hessian.where(present, zero),
    )


def logit_curvature(logits: Tensor) -> Tensor:
    """Return the diagonal of Λ_i = ∂²ℓ_i/∂logits², ``[n, C]``: p(1 − p)."""
    if _binary(logits):
        flat = logits.reshape(-1, 1)
        return torch.sigmoid(flat) * torch.sigmoid(-flat)
    log_p = F.log_softmax(logits, 1)
    return log_p.exp() * -torch.expm1(log_p)


def logit_roots(logits: Tensor) -> Tensor:
    """Return a, ``[n, K, C]``, with Λ_i = Σ_k a_ik a_ikᵀ; two classes or one logit have K = 1."""
    if _binary(logits):
        return logit_curvature(logits).sqrt()[:, None]
    log_p = F.log_softmax(logits, 1)
    if logits.shape[1] == 2:
        root = (log_p.sum(1, keepdim=True) / 2).exp()
        return torch.cat([root, -root], 1)[:, None]
    away = torch.diag_embed(torch.ones_like(log_p)) - log_p.exp()[:, None]
    return (log_p / 2).exp()[:, :, None] * away


def logit_units(logits: Tensor) -> Tensor:
    """Return the directions of single logits, ``[n, C, C]``: the roots of the tangent kernel."""
    flat = logits.reshape(len(logits), -1)
    return torch.diag_embed(torch.ones_like(flat))


def along(logits: Tensor, directions: Tensor) -> Tensor:
    """Return ⟨directions_i, logits_i⟩, ``[n]``, a loss whose gradient r is ``directions``."""
    return (logits.reshape(len(logits), -1) * directions.detach()).sum(1)


def check_targets(labels: Tensor, logits: Tensor) -> None:
    """Raise unless soft targets sum to 1: for others ∂²ℓ/∂logits² is a different matrix."""
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
    z, logits, labels, groups = sort_head(features, logits, labels, domains, num_domains)
    source = LinearOnVectors(logits[0].numel(), z.shape[1], bias)
    mean, m2 = source.moments((z, residuals(logits, labels, None)), groups, True)
    losses = individual_losses(logits, labels, None)
    # In a linear classifier the Fisher matrix is the Hessian.
    hessian = _curvature(z, logits, groups, bias)
    return from_moments(groups, losses, mean, m2, fisher=hessian, hessian=hessian)


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

    Labels do not matter, except that soft targets must sum to 1. Arguments as in
    ``head_diagonals``.
    """
    z, logits, _, groups = sort_head(features, logits, labels, domains, num_domains)
    present = (groups.counts >= 2)[:, None]
    return _curvature(z, logits, groups, bias).where(present, z.new_zeros(()))


def sort_head(
    features: Tensor, logits: Tensor, labels: Tensor, domains: Tensor, num_domains: int | None
) -> tuple[Tensor, Tensor, Tensor, SortedDomains]:
    """Return features, logits and labels, checked and sorted by domain, and their groups."""
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
    return z, logits, labels, SortedDomains(sizes, z.device)


def _curvature(z: Tensor, logits: Tensor, groups: SortedDomains, bias: bool) -> Tensor:
    """Return each domain's mean of p(1 − p) ⊗ z², then of p(1 − p), ``[E, P]``."""
    h = logit_curvature(logits)
    counts = groups.counts.to(z.dtype).clamp(min=1)[:, None, None]
    weight = (groups.outer(h, z.square()) / counts).flatten(1)
    return torch.cat([weight, groups.mean(h)], 1) if bias else weight
