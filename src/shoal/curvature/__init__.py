"""Curvature of the domains' risks: for analysis only, never part of a training step.

Every diagonal has one row per domain, ``[E, P]``, in float64 for float64 inputs and otherwise in
float32. It is a mean over the domain's n_e examples: the Hessian of the mean risk, F_e / n_e,
F̃_e / n_e.

Diagonals:

- ``head_diagonals(features, logits, labels, domains)``: risks, g_e, Var(G_e), Diag(F̃_e),
  Diag(F_e) and Diag(H_e) of a linear classifier in closed form, as ``Diagonals``
- ``network_diagonals(model, inputs, labels, domains, parameters)``: the same in any weights
- ``head_hessian_diagonal``, ``hessian_diagonal``: Diag(H_e) alone, with the same arguments

Comparisons:

- ``chain(diagonals, domain)``: the links H ≈ F ≈ F̃ ∝ C of a domain: cosines, norms, traces, mean
- ``pairs(diagonals)``: squared distances, cosines and norms between domains
- ``gaps(diagonals)``: the spread of risks, variances and Hessian diagonals over domains

Matrices, by their Gram matrices:

- ``head_roots``, ``network_roots``, ``of_matrices``: the roots of F_e = S_eᵀS_e, as ``Roots``
- ``spectra``, ``head_tangent_spectra``: top eigenvalues, of F_e or of the tangent kernel
- ``alignment``: of the top eigenvectors of F_A and F_B;  ``dominance``: of the diagonal in F_e
- ``inconsistency(roots, risks, epsilon)``, ``diagonal_inconsistency(hessian, risks, epsilon)``:
  Proposition 1 for every pair of domains, as ``Scores``
"""

from .comparison import alignment, chain, dominance, gaps, head_tangent_spectra, pairs, spectra
from .diagonals import Diagonals, head_diagonals, head_hessian_diagonal
from .inconsistency import PairScore, Scores, diagonal_inconsistency, inconsistency
from .network import hessian_diagonal, network_diagonals
from .roots import Roots, head_roots, network_roots, of_matrices

__all__ = [
    "Diagonals",
    "PairScore",
    "Roots",
    "Scores",
    "alignment",
    "chain",
    "diagonal_inconsistency",
    "dominance",
    "gaps",
    "head_diagonals",
    "head_hessian_diagonal",
    "head_roots",
    "head_tangent_spectra",
    "hessian_diagonal",
    "inconsistency",
    "network_diagonals",
    "network_roots",
    "of_matrices",
    "pairs",
    "spectra",
]
