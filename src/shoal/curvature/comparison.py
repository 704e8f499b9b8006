"""Comparisons: links of the chain H ≈ F ≈ F̃ ∝ C, distances of domains, spectra, alignment."""

from itertools import combinations

import torch
from torch import Tensor

from ..checks import check_domains, check_features
from ..gradients.domains import host_order
from ..penalties import spread
from .diagonals import Diagonals
from .roots import Roots

KINDS = ("hessian", "fisher", "empirical", "variance")
LINKS = (
    ("hessian", "fisher"),
    ("fisher", "empirical"),
    ("empirical", "variance"),
    ("hessian", "variance"),
)
# 2/λ is infinite for an eigenvalue below this.
TINY = 1e-300

Pair = tuple[int, int]


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, in float64; 0 if one is zero."""
    a, b = a.double(), b.double()
    scale = a.norm() * b.norm()
    return float(a @ b / scale) if scale > 0 else 0.0


def chain(diagonals: Diagonals, domain: int) -> dict[str, float]:
    """Return the links of H ≈ F ≈ F̃ ∝ C in one domain.

    ``cosine:a:b``, ``norm:a`` and ``trace:a`` of every diagonal; ``gradient`` is ‖g_e‖² / Tr(C_e),
    the share that centring removes: near 0 at convergence.
    """
    rows = {kind: getattr(diagonals, kind)[domain].double() for kind in KINDS}
    found = {f"cosine:{a}:{b}": cosine(rows[a], rows[b]) for a, b in LINKS}
    found |= {f"norm:{kind}": float(row.norm()) for kind, row in rows.items()}
    found |= {f"trace:{kind}": float(row.sum()) for kind, row in rows.items()}
    mean = diagonals.mean[domain].double()
    found["norm:mean"] = float(mean.norm())
    trace = found["trace:variance"]
    found["gradient"] = float(mean.square().sum()) / trace if trace > 0 else 0.0
    return found


def pairs(diagonals: Diagonals) -> dict[Pair, dict[str, float]]:
    """Return the squared distances, cosines and gaps of squared norms of domains A < B.

    ``risk`` is |R_A − R_B|²; ``variance`` and ``hessian`` are ‖v_A − v_B‖² and
    ‖Diag(H_A − H_B)‖², as in the paper's table of invariance; the other diagonals likewise.
    """
    found = {}
    for a, b in combinations(range(len(diagonals.sizes)), 2):
        risks = diagonals.risks.double()
        one = {"risk": float((risks[a] - risks[b]).square())}
        for kind in (*KINDS, "mean"):
            x, y = (getattr(diagonals, kind)[e].double() for e in (a, b))
            one[kind] = float((x - y).square().sum())
            one[f"cosine:{kind}"] = cosine(x, y)
            one[f"norms:{kind}"] = float((x.square().sum() - y.square().sum()).square())
        found[a, b] = one
    return found


def gaps(diagonals: Diagonals) -> dict[str, float]:
    """Return the spread over domains of risks, variances and Hessian diagonals.

    Also ``cosine``, the mean over domains of cos(Diag(H_e), Var(G_e)). The spread of two domains
    is a quarter of their squared distance.
    """
    present = torch.tensor([n >= 2 for n in diagonals.sizes])

    def of(rows: Tensor) -> float:
        return float(spread(rows.double(), present.to(rows.device)))

    cosines = [
        cosine(h, v)
        for h, v, n in zip(diagonals.hessian, diagonals.variance, diagonals.sizes, strict=True)
        if n >= 2
    ]
    return {
        "risk": of(diagonals.risks),
        "variance": of(diagonals.variance),
        "hessian": of(diagonals.hessian),
        "cosine": sum(cosines) / max(len(cosines), 1),
    }


def spectra(roots: Roots, top: int = 5) -> list[dict[str, object]]:
    """Return each domain's largest eigenvalues, the first's share of the trace, the step limit.

    The step limit is 2/λ; None if nothing is curved, as in a domain without examples.
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
    """Return the spectra of the tangent kernel K_e / n_e of a linear classifier.

    The kernel is z̄z̄ᵀ for each of the C logits separately, so every eigenvalue comes C times; the
    largest distinct ones are returned.
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
    """Return the alignment of the top eigenvectors of F_A and F_B, for domains A < B.

    ``first`` is |cos| of the first ones; ``subspace`` is ‖V_AᵀV_B‖² / k of the first k = ``top``
    (fewer if one has fewer): 1 if they span the same directions, 0 if they share none.
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
    """Return how far the diagonal dominates each F_e.

    ``energy`` is ‖Diag(F_e)‖² / ‖F_e‖²; ``rows`` is the share of rows whose diagonal entry is at
    least the sum of the others' absolute values, None if the matrix was not formed.
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
