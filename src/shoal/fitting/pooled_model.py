"""Pooled model: one logistic regression for all domains, and what each domain says against it.

For row i of domain e with standardised columns x_i, and an orthonormal basis Q [C, C − 1] of the
class contrasts,

    p_i = softmax(Q (s_e B_eᵀx_i + a_e)),   B_e = B + A δ_e [K, C − 1],

with free intercepts a_e in every domain (prevalence may differ), a given scale s_e of all effects
of a domain (labels may be noisier there), and own effects δ_e, Σ_e δ_e = 0, in few directions
A [K, q] of the columns. There is a ridge on B and δ, so a domain or a class that can be separated
does no harm. If the coefficients of domain e were B_e + Δ_e, the log-likelihood would be, to second
order,

    ℓ(Δ) ≈ Σ_e U_eᵀΔ_e − ½ Δ_eᵀI_eΔ_e,
    U_e = Σ_{i∈e} s_e x_i ⊗ Qᵀ(y_i − p_i),
    I_e = Σ_{i∈e} s_e² x_i x_iᵀ ⊗ Qᵀ(diag p_i − p_i p_iᵀ)Q,

with a_e eliminated from both.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

# The least ridge on the coefficients of standardised columns; scikit-learn's default, C = 1.
RIDGE = 1.0
# Fits, at most, to find the ridge, until it changes by less than this factor.
RIDGES, SIMILAR = 8, 1.2
# Newton steps at most, conjugate gradients for each, and the norm of the gradient, in units of its
# own error, at which they end. What is left of the gradient is a nuisance that the tests eliminate.
STEPS, PRODUCTS, GRADIENT = 50, 200, 1e-2
# Information of a row that counts as none.
TINY = 1e-12
# The share of the promised decrease that a step must bring.
ENOUGH = 1e-4


@dataclass(frozen=True)
class DomainRows:
    """Rows of several domains, sorted by domain.

    Args:
        x: standardised columns, float64 ``[n, K]``.
        labels: classes ``[n]``, from 0.
        sizes: the number of rows of each domain.
        num_classes: C.
    """

    x: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    num_classes: int

    @property
    def domains(self) -> Tensor:
        """The domain of every row ``[n]``."""
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))


@dataclass(frozen=True, kw_only=True)
class PooledModel:
    """The fitted model.

    Args:
        coefficients: B ``[K, C − 1]``.
        intercepts: a ``[E, C − 1]``.
        directions: A ``[K, q]``.
        own: δ ``[E, q, C − 1]``.
        log_scales: log s ``[E]``.
        ridge: λ of B.
    """

    coefficients: Tensor
    intercepts: Tensor
    directions: Tensor
    own: Tensor
    log_scales: Tensor
    ridge: float

    def domain_coefficients(self) -> Tensor:
        """Return B_e of every domain ``[E, K, C − 1]``."""
        return self.coefficients + self.directions @ self.own

    def probabilities(self, rows: DomainRows) -> Tensor:
        """Return p ``[n, C]``."""
        parts = zip(
            rows.x.split(rows.sizes),
            self.domain_coefficients() * self.log_scales.exp()[:, None, None],
            self.intercepts,
            strict=True,
        )
        scores = torch.cat([x @ effects + intercept for x, effects, intercept in parts])
        return (scores @ contrasts(rows.num_classes).T).softmax(1)


def contrasts(number: int) -> Tensor:
    """Return an orthonormal basis of the vectors that sum to zero, ``[number, number − 1]``."""
    found = torch.zeros(number, number - 1, dtype=torch.float64)
    for k in range(1, number):
        found[:k, k - 1] = -1
        found[k, k - 1] = k
        found[:, k - 1] /= math.sqrt(k * (k + 1))
    return found


def fit_first(rows: DomainRows) -> PooledModel:
    """Return the model without own effects and scales, with the ridge of the largest evidence.

    At its optimum λ is γ/‖B‖², where γ is the number of coefficients that the data determine
    (MacKay). With few rows for the number of columns a smaller ridge makes probabilities too
    extreme, and then tests find too much.
    """
    log_scales = torch.zeros(len(rows.sizes), dtype=torch.float64)
    directions = torch.zeros(rows.x.shape[1], 0, dtype=torch.float64)
    curvature = torch.linalg.eigvalsh(rows.x.T @ rows.x).clamp(min=0)
    model = fit_pooled(rows, log_scales, directions, RIDGE)
    for _ in range(RIDGES):
        ridge, p = model.ridge, model.probabilities(rows)
        weight = (1 - p.square().sum(1)).mean() / (rows.num_classes - 1)
        determined = (rows.num_classes - 1) * (
            weight * curvature / (weight * curvature + ridge)
        ).sum()
        best = float(determined / model.coefficients.square().sum().clamp(min=TINY))
        best = min(max(best, RIDGE), float(len(rows.x)))
        if max(best / ridge, ridge / best) < SIMILAR:
            break
        model = fit_pooled(rows, log_scales, directions, best, model)
    return model


def fit_pooled(
    rows: DomainRows,
    log_scales: Tensor,
    directions: Tensor,
    ridge: float,
    start: PooledModel | None = None,
) -> PooledModel:
    """Return the model with the smallest −ℓ + ½ λ‖B‖² + ½ RIDGE ‖δ‖², by Newton's method.

    Args:
        directions: A, where the domains have effects of their own.
        ridge: λ.
        start: the model to start from; its δ is not used.
    """
    design = _Design(rows, log_scales, directions, ridge)
    point = design.zero()
    if start is not None:
        point = (start.coefficients, start.intercepts, point[2])
    targets = one_hot(rows.labels, rows.num_classes).double()
    loss, p = design.loss(point, targets)
    roots = design.roots(p)
    for _ in range(STEPS):
        gradient = design.gradient(point, p - targets)
        if math.sqrt(_dot(gradient, design.precondition(gradient, roots))) < GRADIENT:
            break
        step = design.newton_step(gradient, p, roots)
        slope, share = _dot(gradient, step), 1.0
        while share > TINY:
            there = _add(point, step, -share)
            new_loss, new_p = design.loss(there, targets)
            if new_loss <= loss - ENOUGH * share * slope:
                break
            share /= 2
        else:
            break
        point, loss, p = there, new_loss, new_p
    b, a, own = point
    return PooledModel(
        coefficients=b,
        intercepts=a,
        directions=directions,
        own=torch.einsum("ek,kwc->ewc", contrasts(len(rows.sizes)), own),
        log_scales=log_scales,
        ridge=ridge,
    )


# B, a and δ in contrasts between domains [E − 1, q, C − 1], or directions in their space.
Point = tuple[Tensor, Tensor, Tensor]


class _Design:
    """The linear part of the model: scores from (B, a, δ), and its transpose."""

    def __init__(
        self, rows: DomainRows, log_scales: Tensor, directions: Tensor, ridge: float
    ) -> None:
        scale = log_scales.exp()[rows.domains, None]
        self.x, self.along = rows.x * scale, rows.x @ directions * scale
        self.rows, self.ridge = rows, ridge
        self.basis, self.between = contrasts(rows.num_classes), contrasts(len(rows.sizes))

    def zero(self) -> Point:
        width = self.basis.shape[1]
        own = (self.between.shape[1], self.along.shape[1], width)
        new = self.x.new_zeros
        return new(self.x.shape[1], width), new(len(self.between), width), new(own)

    def scores(self, point: Point) -> Tensor:
        """Return s_e B_eᵀx_i + a_e ``[n, C − 1]``."""
        b, a, own = point
        effects = torch.einsum("ek,kwc->ewc", self.between, own)
        parts = zip(self.along.split(self.rows.sizes), effects, a, strict=True)
        return self.x @ b + torch.cat([along @ one + shift for along, one, shift in parts])

    def transposed(self, residuals: Tensor) -> Point:
        """Return what residuals ``[n, C − 1]`` are in the space of the parameters."""
        parts = list(
            zip(self.along.split(self.rows.sizes), residuals.split(self.rows.sizes), strict=True)
        )
        own = torch.stack([along.T @ part for along, part in parts])
        own = torch.einsum("ek,ewc->kwc", self.between, own)
        return (residuals.T @ self.x).T, torch.stack([part.sum(0) for _, part in parts]), own

    def loss(self, point: Point, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the penalised −ℓ, and p ``[n, C]``."""
        logs = (self.scores(point) @ self.basis.T).log_softmax(1)
        penalty = self.ridge / 2 * point[0].square().sum() + RIDGE / 2 * point[2].square().sum()
        return penalty - (logs * targets).sum(), logs.exp()

    def gradient(self, point: Point, residuals: Tensor) -> Point:
        """Return the gradient, given p − y ``[n, C]``."""
        b, a, own = self.transposed(residuals @ self.basis)
        return b + self.ridge * point[0], a, own + RIDGE * point[2]

    def product(self, direction: Point, p: Tensor) -> Point:
        """Return the product of the Hessian and a direction."""
        moved = self.scores(direction) @ self.basis.T
        moved = p * (moved - (p * moved).sum(1, keepdim=True))
        return self.gradient(direction, moved)

    def roots(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Cholesky factors of the parts of the Hessian if all contrasts weigh the same."""
        weight = ((1 - p.square().sum(1)) / self.basis.shape[1]).clamp(min=TINY).sqrt()[:, None]
        sums = [part.square().sum() for part in weight.split(self.rows.sizes)]
        along = self.along * weight / math.sqrt(len(self.between))
        return _root(self.x * weight, self.ridge), torch.stack(sums), _root(along, RIDGE)

    def precondition(self, vector: Point, roots: tuple[Tensor, Tensor, Tensor]) -> Point:
        b, a, own = vector
        root, sums, own_root = roots
        spread = own.transpose(0, 1).flatten(1)
        spread = torch.cholesky_solve(spread, own_root).unflatten(1, own.shape[::2])
        return torch.cholesky_solve(b, root), a / sums[:, None], spread.transpose(0, 1)

    def newton_step(
        self, gradient: Point, p: Tensor, roots: tuple[Tensor, Tensor, Tensor]
    ) -> Point:
        """Return the Hessian's inverse times the gradient, by conjugate gradients."""
        found, rest = self.zero(), gradient
        clean = self.precondition(rest, roots)
        direction, size = clean, _dot(rest, clean)
        enough = size * min(0.1, math.sqrt(size))
        for _ in range(PRODUCTS):
            product = self.product(direction, p)
            length = size / _dot(direction, product)
            found = _add(found, direction, length)
            rest = _add(rest, product, -length)
            clean = self.precondition(rest, roots)
            before, size = size, _dot(rest, clean)
            if size < enough:
                break
            direction = _add(clean, direction, size / before)
        return found


def _dot(one: Point, other: Point) -> float:
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))


def _add(one: Point, other: Point, share: float) -> Point:
    b, a, own = (x + share * y for x, y in zip(one, other, strict=True))
    return b, a, own


def _root(design: Tensor, ridge: float) -> Tensor:
    """Return L with LLᵀ = designᵀdesign + ridge."""
    diagonal = ridge * torch.eye(design.shape[1], dtype=torch.float64)
    root: Tensor = torch.linalg.cholesky(design.T @ design + diagonal)
    return root


def scores_and_informations(
    rows: DomainRows, model: PooledModel, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return U ``[E, D]`` and I ``[E, D, D]`` of some columns; D is (column, class contrast).

    Intercepts are eliminated: U_e loses I_xa I_aa⁻¹ U_a, and I_e loses I_xa I_aa⁻¹ I_ax.
    """
    basis = contrasts(rows.num_classes)
    contrast = basis.shape[1]
    size = len(columns) * contrast
    probabilities = model.probabilities(rows)
    residuals = (one_hot(rows.labels, rows.num_classes) - probabilities) @ basis
    scores = torch.empty(len(rows.sizes), size, dtype=torch.float64)
    informations = torch.empty(len(rows.sizes), size, size, dtype=torch.float64)
    parts = zip(
        rows.x.split(rows.sizes),
        probabilities.split(rows.sizes),
        residuals.split(rows.sizes),
        model.log_scales.exp(),
        strict=True,
    )
    for e, (x, p, residual, scale) in enumerate(parts):
        ones = torch.ones(len(x), 1, dtype=torch.float64)
        design = torch.cat([x[:, columns] * scale, ones], 1)
        weights = torch.einsum("nc,ca,cb->abn", p, basis, basis)
        weights = weights - torch.einsum("na,nb->abn", p @ basis, p @ basis)
        found = torch.empty(len(columns) + 1, contrast, len(columns) + 1, contrast).double()
        for a in range(contrast):
            for b in range(a + 1):
                found[:, a, :, b] = (design * weights[a, b, :, None]).T @ design
                found[:, b, :, a] = found[:, a, :, b]
        found = found.reshape(size + contrast, size + contrast)
        score = (design.T @ residual).reshape(-1)
        # Where the classes are all but separated, the intercepts have hardly any information.
        intercepts = found[size:, size:] + TINY * len(x) * torch.eye(contrast).double()
        share = torch.linalg.solve(intercepts, found[size:, :size]).T
        scores[e] = score[:size] - share @ score[size:]
        informations[e] = found[:size, :size] - share @ found[size:, :size]
    return scores, informations
