"""Statistics of features and logits: moments of the features, slopes of the risks."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_features, check_labels, check_logits, check_sizes
from ..gradients.groups import Sorted
from ..gradients.losses import residuals
from ..gradients.precision import precise


def feature_moments(features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return (μ_e/√d, Cov_e/d), mean and covariance of each domain's features, ``[E, d + d²]``.

    So scaled, a squared distance of rows is the mean square over the d entries of μ plus that
    over the d² of Cov. The covariance has 1/(n − 1); a domain with one example has zeros.

    Args:
        features: ``[n, d]``, sorted by domain.
        sizes: n_e of each domain.
    """
    check_features(features)
    check_sizes(sizes, len(features))
    with torch.autocast(features.device.type, enabled=False):
        z = precise(features)
        d, groups = z.shape[1], Sorted(tuple(sizes), z.device)
        mean = groups.mean(z)
        # Scaled before the product: [n, d] is small where [E, d, d] is large.
        scales = groups.vector([(max(n - 1, 1) * d) ** -0.5 for n in sizes], z.dtype)
        centred = groups.centre(z, mean) * groups.expand(scales)[:, None]
        covariance = groups.outer(centred, centred)
        return torch.cat([mean * d**-0.5, covariance.flatten(1)], 1)


def scale_slopes(logits: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return d/ds R_e(s · logits) at s = 1 on each domain's even and odd examples, ``[E, 2]``.

    In closed form: the half's mean of Σ_c l_c (p_c − y_c); zero where a half is empty.

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
        # Two columns, even and odd; a domain with an odd number of examples ends in a zero.
        # Compiled without asking, so that one graph serves even and odd numbers.
        if torch.compiler.is_compiling() or evens != odds:
            parts = slopes.split(tuple(sizes))
            slopes = torch.cat([F.pad(part, (0, len(part) % 2)) for part in parts])
        halves = Sorted(tuple(evens), slopes.device)
        counts = [halves.vector([max(k, 1) for k in half], slopes.dtype) for half in (evens, odds)]
        return halves.total(slopes.view(-1, 2)) / torch.stack(counts, 1)
