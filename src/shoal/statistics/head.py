"""Statistics of a linear head: gradient variance and mean, feature moments, slopes of logits."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import (
    check_domains,
    check_features,
    check_labels,
    check_logits,
    check_one_each,
    check_sizes,
)
from ..distributed import gather_rows, world_size
from ..gradients.domains import DomainGroups, MaskedDomains, SortedDomains, host_order
from ..gradients.examples import Loss, residuals
from ..gradients.precision import precise
from ..gradients.sources import Form, LinearOnVectors
from ..gradients.variance import rows_at_once
from ..transforms import batched


def head_variance(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    centered: bool = True,
    unbiased: bool = True,
    bias: bool = True,
    loss: Loss | None = None,
    num_domains: int | None = None,
) -> Tensor:
    """Return v_e = Var(G_e), Eq. 2, of the gradients in a dense linear classifier, ``[E, P]``.

    The gradient of example i is r_i ⊗ z_i with r = ∂ℓ/∂logits, so the classifier itself is not
    needed and no per-example gradient is formed. A domain with fewer than two examples is absent
    and has a row of zeros. In a process group every rank must call, and gets the rows of the whole
    batch.

    Args:
        features: z, the classifier's input, ``[n, p]``.
        logits: ``[n, C]``, or ``[n]`` / ``[n, 1]`` for a binary loss.
        labels: class indices ``[n]``, soft targets ``[n, C]``, or 0/1 for a binary loss.
        domains: integer ids ``[n]``, in any order. On the CPU they are fastest, even for features
            on a GPU: the domain sizes are then known and no product is repeated per domain.
        centered: False for E[g²], the diagonal of the empirical Fisher matrix over n.
        unbiased: 1/(n−1); False for the released code's 1/n. Uncentred it is always 1/n.
        bias: whether P holds the bias ``[C]`` after the weight ``[C, p]``.
        loss: any function of (logits, labels) with one value per example.
        num_domains: E; by default the largest id + 1, which waits for the device if ``domains`` is
            on a GPU.

    Example:
        >>> features, labels = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> logits, domains = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
        >>> v = shoal.head_variance(features, logits, labels, domains)
        >>> v.shape  # two domains; 2 × 4 weights, then 2 biases
        torch.Size([2, 10])
        >>> shoal.spread(v)  # Fishr's penalty, Eq. 3
        tensor(0.0312)
    """
    rows, _ = head_rows(
        features,
        logits,
        labels,
        domains,
        form=Form(centered, unbiased),
        bias=bias,
        loss=loss,
        num_domains=num_domains,
    )
    return rows


def head_rows(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    form: Form,
    bias: bool,
    loss: Loss | None,
    num_domains: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the rows of ``head_variance`` and which domains are present, bool ``[E]``.

    The second is None if the host knows that all are.
    """
    check_features(features)
    check_logits(logits, len(features))
    if loss is None:
        check_labels(logits, labels)
    else:
        check_one_each(labels, len(features))
    check_domains(domains, len(features), num_domains)
    if world_size() > 1:
        features, logits, labels, domains = gather_rows(features, logits, labels, domains)
    with torch.autocast(features.device.type, enabled=False):
        z, logits = precise(features), precise(logits)
        if z.dtype != logits.dtype:
            z, logits = z.double(), logits.double()
        groups, order = _groups(domains, num_domains, z.device)
        r = residuals(logits, labels, loss)
        if order is not None:
            z, r = z.index_select(0, order), r.index_select(0, order)
        source = LinearOnVectors(r.shape[1], z.shape[1], bias)
        rows = rows_at_once(source, (z, r), groups, form)
        if isinstance(groups, SortedDomains) and min(groups.sizes) >= 2:
            return rows, None
        return rows, groups.counts >= 2


@torch.no_grad()
def head_gradients(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    c: Tensor,
    *,
    form: Form,
    bias: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the risk and of Σ_e ⟨c_e, v_e⟩ in the classifier, both ``[P]``.

    In closed form, so that a compiled step can have them: autograd would differentiate twice. The
    features are held fixed, and the loss is the cross-entropy, binary on one logit.

    Args:
        c: one row per domain, ``[E, P]``.
        form, bias: of v_e, the rows of ``head_variance``.
    """
    if world_size() > 1:
        features, logits, labels, domains = gather_rows(features, logits, labels, domains)
    with torch.autocast(features.device.type, enabled=False):
        z, logits = precise(features), precise(logits)
        groups, order = _groups(domains, len(c), z.device)
        r = residuals(logits, labels, None)
        slopes = _residual_slopes(logits, labels)
        if order is not None:
            z, r = z.index_select(0, order), r.index_select(0, order)
            slopes = [slope.index_select(0, order) for slope in slopes]
        source = LinearOnVectors(r.shape[1], z.shape[1], bias)
        mean, _ = source.moments((z, r), groups, form.centered)
        scaled = 2 * c * form.scale(groups.counts.to(z.dtype))
        _, s = source.pull_back((z, r), groups, scaled, mean if form.centered else None)
        mass, p = slopes
        s = mass * p * (s - (p * s).sum(1, keepdim=True)) if p.shape[1] > 1 else mass * s
        return _head_gradient(r, z, bias) / len(z), _head_gradient(s, z, bias)


def _residual_slopes(logits: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the mass of each example's labels and p, or p (1 − p) and p on one logit.

    ∂r/∂logits is mass · (diag(p) − p pᵀ), or that product.
    """
    if logits.ndim == 1 or logits.shape[1] == 1:
        p = torch.sigmoid(logits.reshape(-1, 1))
        return [p * (1 - p), p]
    p = F.softmax(logits, 1)
    if labels.is_floating_point():
        return [labels.to(p.dtype).sum(1, keepdim=True), p]
    return [torch.ones_like(p[:, :1]), p]


def _head_gradient(r: Tensor, z: Tensor, bias: bool) -> Tensor:
    """Return Σ_i r_i ⊗ z_i, then Σ_i r_i for a bias, ``[P]``."""
    weight = (r.mT @ z).flatten()
    return torch.cat([weight, r.sum(0)]) if bias else weight


def head_mean(
    features: Tensor, logits: Tensor, labels: Tensor, domains: Tensor, E: int, bias: bool = True
) -> Tensor:
    """Return g_e, the mean gradient of each of E domains in a linear classifier, ``[E, P]``.

    One matrix product: g_e = E[r ⊗ z], weight then bias.
    """
    with torch.autocast(features.device.type, enabled=False):
        z, logits = precise(features), precise(logits)
        groups, order = _groups(domains, E, z.device)
        r = residuals(logits, labels, None)
        if order is not None:
            z, r = z.index_select(0, order), r.index_select(0, order)
        counts = groups.counts.to(z.dtype).clamp(min=1)[:, None, None]
        weight = (groups.outer(r, z) / counts).flatten(1)
        return torch.cat([weight, groups.mean(r)], 1) if bias else weight


def _groups(
    domains: Tensor, num_domains: int | None, device: torch.device
) -> tuple[DomainGroups, Tensor | None]:
    """Return the cheapest groups without a device sync, and the order that sorts the examples."""
    differ = batched(domains)
    on_host = domains.device.type == "cpu" and not torch.compiler.is_compiling() and not differ
    if differ and num_domains is None:
        raise ValueError("num_domains must be given if torch.func.vmap maps over the domains")
    if num_domains is not None and not on_host:
        return MaskedDomains.of(domains.to(device).long(), num_domains), None
    total = num_domains if num_domains is not None else int(domains.max()) + 1
    order, sizes = host_order(domains, total)
    return SortedDomains(sizes, device), None if order is None else order.to(device)


def feature_moments(features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return (μ_e/√d, Cov_e/d), mean and covariance of each domain's features, ``[E, d + d²]``.

    With this scale, a squared distance of rows is the mean square over the d entries of μ plus that
    over the d² of Cov. The covariance has 1/(n − 1); that of one example is zero.

    Args:
        features: ``[n, d]``, sorted by domain.
        sizes: n_e of each domain.
    """
    check_features(features)
    check_sizes(sizes, len(features))
    with torch.autocast(features.device.type, enabled=False):
        z, groups = precise(features), SortedDomains(tuple(sizes), features.device)
        scales = [(max(n - 1, 1) * z.shape[1]) ** -0.5 for n in sizes]
        return _moments(z, groups, groups.vector(scales, z.dtype))


def group_moments(features: Tensor, domains: Tensor, num_domains: int) -> Tensor:
    """Return the rows of ``feature_moments`` for domains that only the device knows.

    Args:
        features: ``[n, d]``.
        domains: integer ids ``[n]``, in any order; a domain without examples has zeros.
    """
    check_features(features)
    check_domains(domains, len(features), num_domains)
    with torch.autocast(features.device.type, enabled=False):
        z, groups = precise(features), MaskedDomains.of(domains, num_domains)
        scales = ((groups.counts - 1).clamp(min=1) * z.shape[1]).to(z.dtype).rsqrt()
        return _moments(z, groups, scales)


def _moments(z: Tensor, groups: DomainGroups, scales: Tensor) -> Tensor:
    mean = groups.mean(z)
    # Scaled before the product: [n, d] is small, [E, d, d] is large.
    centred = groups.centre(z, mean) * groups.expand(scales)[:, None]
    covariance = groups.outer(centred, centred)
    return torch.cat([mean * z.shape[1] ** -0.5, covariance.flatten(1)], 1)


def feature_variance(features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the variance of each feature in each domain, ``[E, d]``, with 1/(n − 1).

    That of one example is zero.

    Args:
        features: ``[n, d]``, sorted by domain.
        sizes: n_e of each domain.
    """
    check_features(features)
    check_sizes(sizes, len(features))
    with torch.autocast(features.device.type, enabled=False):
        z, groups = precise(features), SortedDomains(tuple(sizes), features.device)
        squares = groups.total(groups.centre(z, groups.mean(z)).square())
        return squares / groups.vector([float(max(n - 1, 1)) for n in sizes], z.dtype)[:, None]


def scale_slopes(logits: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return d/ds R_e(s · logits) at s = 1 on each domain's even and odd examples, ``[E, 2]``.

    In closed form: the half's mean of Σ_c l_c (p_c − y_c); zero if a half is empty.

    Args:
        logits: l, ``[n, C]``, or ``[n]`` / ``[n, 1]`` for a binary loss, sorted by domain.
        labels: class indices ``[n]``, soft targets ``[n, C]``, or 0/1 for a binary loss.
        sizes: n_e of each domain.
    """
    check_logits(logits, len(logits))
    check_labels(logits, labels)
    check_sizes(sizes, len(logits))
    with torch.autocast(logits.device.type, enabled=False):
        logits = precise(logits)
        slopes = (logits.reshape(len(logits), -1) * residuals(logits, labels, None)).sum(1)
        evens, odds = [(n + 1) // 2 for n in sizes], [n // 2 for n in sizes]
        # Two columns, even and odd; a domain with an odd number of examples is padded with a zero.
        # Compiled code always pads, so that one graph serves even and odd numbers.
        if torch.compiler.is_compiling() or evens != odds:
            parts = slopes.split(tuple(sizes))
            slopes = torch.cat([F.pad(part, (0, len(part) % 2)) for part in parts])
        halves = SortedDomains(tuple(evens), slopes.device)
        counts = [halves.vector([max(k, 1) for k in half], slopes.dtype) for half in (evens, odds)]
        return halves.total(slopes.view(-1, 2)) / torch.stack(counts, 1)
