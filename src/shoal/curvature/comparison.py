"""What diagonals say: the links of the chain H ≈ F ≈ F̃ ∝ C, and how far domains are apart."""

from itertools import combinations

import torch
from torch import Tensor

from ..penalties import spread
from .diagonals import Diagonals

KINDS = ("hessian", "fisher", "empirical", "variance")
LINKS = (
    ("hessian", "fisher"),
    ("fisher", "empirical"),
    ("empirical", "variance"),
    ("hessian", "variance"),
)


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, in float64; 0 where one is zero."""
    a, b = a.double(), b.double()
    scale = a.norm() * b.norm()
    return float(a @ b / scale) if scale > 0 else 0.0


def chain(diagonals: Diagonals, domain: int) -> dict[str, float]:
    """Return what one domain says of H ≈ F ≈ F̃ ∝ C.

    ``cosine:a:b``, ``norm:a`` and ``trace:a`` of every diagonal; ``gradient`` is ‖g_e‖² / Tr(C_e),
    which is what centring takes away: near 0 at convergence.
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


def pairs(diagonals: Diagonals) -> dict[tuple[int, int], dict[str, float]]:
    """Return for domains A < B the squared distances, cosines and gaps of squared norms.

    ``risk`` is |R_A − R_B|²; ``variance`` and ``hessian`` are ‖v_A − v_B‖² and
    ‖Diag(H_A − H_B)‖², as in the paper's table of invariance; so are the other diagonals.
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

    And ``cosine``, the mean over domains of cos(Diag(H_e), Var(G_e)). Two domains have a quarter
    of their squared distance.
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
