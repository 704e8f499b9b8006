"""What the spectra of domains say: how fast each is learned, and whether in the same directions."""

from itertools import combinations

import torch
from torch import Tensor

from ..checks import check_domains, check_features
from ..gradients.groups import host_order
from .roots import Roots

Pair = tuple[int, int]
# What 2/λ is no number for.
TINY = 1e-300


def spectra(roots: Roots, top: int = 5) -> list[dict[str, object]]:
    """Return each domain's largest eigenvalues, the first's share of the trace, the step limit.

    That is 2/λ; None where nothing is curved, as in a domain without examples.
    """
    found = []
    for domain in range(len(roots.sizes)):
        values = torch.linalg.eigvalsh(roots.block(domain, domain)).flip(0).clamp(min=0)
        found.append(_spectrum(values, float(values.sum()), top))
    return found


@torch.no_grad()
def head_tangent_spectra(
    features: Tensor, classes: int, domains: Tensor, *, bias: bool = True, top: int = 5
) -> list[dict[str, object]]:
    """Return the same of the tangent kernel K_e / n_e of a linear classifier.

    The kernel is z̄z̄ᵀ for each of C logits apart, so that every eigenvalue comes C times; the
    largest different ones are given.
    """
    check_features(features)
    check_domains(domains, len(features), None)
    order, sizes = host_order(domains, int(domains.max()) + 1)
    z = features.double()
    z = torch.cat([z, z.new_ones(len(z), 1)], 1) if bias else z
    z = z if order is None else z[order.to(z.device)]
    found = []
    for rows in z.split(sizes):
        smaller = rows @ rows.mT if len(rows) < rows.shape[1] else rows.mT @ rows
        values = torch.linalg.eigvalsh(smaller / max(len(rows), 1)).flip(0).clamp(min=0)
        found.append(_spectrum(values, classes * float(values.sum()), top))
    return found


def _spectrum(values: Tensor, trace: float, top: int) -> dict[str, object]:
    values = values if len(values) else values.new_zeros(top)  # a domain without examples
    largest = float(values[0])
    return {
        "largest": values[:top].tolist(),
        "trace": trace,
        "share": largest / trace if trace > 0 else 0.0,
        "step_limit": 2 / largest if largest > TINY else None,
    }


def alignment(roots: Roots, top: int = 5) -> dict[Pair, dict[str, float]]:
    """Return how the top eigenvectors of F_A and F_B lie to each other, for domains A < B.

    ``first`` is |cos| of the first ones; ``subspace`` is ‖V_AᵀV_B‖² / k of the first k = ``top``
    (fewer where one has fewer): 1 where they span the same directions, 0 where none is shared.
    """
    vectors = []
    for domain in range(len(roots.sizes)):
        values, rows = roots.eigen(domain)
        kept = int((values[:top] > 1e-12 * values[:1]).sum()) if len(values) else 0
        vectors.append(rows[:, :kept] / values[:kept].sqrt())  # V_e = S_eᵀ times these
    found = {}
    for a, b in combinations(range(len(roots.sizes)), 2):
        angles = vectors[a].mT @ roots.block(a, b) @ vectors[b]
        k = max(min(angles.shape), 1)
        shared = float(angles[:k, :k].square().sum()) / k
        first = float(angles[0, 0].abs()) if angles.numel() else 0.0
        found[a, b] = {"first": first, "subspace": shared}
    return found


def dominance(roots: Roots) -> list[dict[str, float | None]]:
    """Return how much of each F_e its diagonal is.

    ``energy`` is ‖Diag(F_e)‖² / ‖F_e‖²; ``rows`` the share of rows whose diagonal entry is at
    least the sum of the others' sizes, None where the matrix was not formed.
    """
    found: list[dict[str, float | None]] = []
    for domain, diagonal in enumerate(roots.diagonal):
        whole = float(roots.block(domain, domain).square().sum())
        energy = float(diagonal.square().sum()) / whole if whole > 0 else 0.0
        rows = None
        if roots.matrices is not None:
            sizes = roots.matrices[domain].abs()
            rows = float((2 * sizes.diagonal() >= sizes.sum(1)).double().mean())
        found.append({"energy": energy, "rows": rows})
    return found
