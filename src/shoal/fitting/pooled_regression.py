"""Pooled regression: one logistic regression for all domains, and what each domain says against it.

For row i of domain e with standardised values x_i, and an orthonormal basis Q [C, C − 1] of the
class contrasts,

    p_i = softmax(Q (s_e B_eᵀx_i + a_e)),   B_e = B + δ_e.

The intercepts a_e are free, because prevalence may differ. So are the scales s_e of all effects of
a domain, with log s_e ~ N(0, SCALE²) and Σ_e log s_e = 0, because labels may be noisier there. δ_e
is zero but for few values. There is a ridge on s_e B and δ, so a domain or a class that can be
separated does no harm. To second order, the log-likelihood of changes Δ_e of B_e is

    Σ_e U_eᵀΔ_e − ½ Δ_eᵀI_eΔ_e,
    U_e = Σ_{i∈e} s_e x_i ⊗ Qᵀ(y_i − p_i),
    I_e = Σ_{i∈e} s_e² x_i x_iᵀ ⊗ Qᵀ(diag p_i − p_i p_iᵀ)Q.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

# The least ridge on the effects of standardised values (scikit-learn's default, C = 1), and the
# standard deviation of log s_e.
RIDGE, SCALE = 1.0, 0.5
# Fits at most to find the ridge, until its logarithm changes by less.
RIDGES, SIMILAR = 8, 0.2
# Steps of a fit at most, and the gradient at which it ends, in units of its own error.
STEPS, GRADIENT = 300, 1e-3
# Shares below this are rounding.
ROUNDING = 1e-8


class PooledRegression:
    """The regression, fitted to rows that are sorted by domain.

    Args:
        values: of every group of columns ``[n, q]``.
        targets: 1 at the class of each row ``[n, C]``.
        sizes: the number of rows of each domain.
    """

    def __init__(self, values: Sequence[Tensor], targets: Tensor, sizes: Sequence[int]) -> None:
        self.values, self.targets, self.sizes = list(values), targets, sizes
        self.basis = contrasts(targets.shape[1])  # Q
        self.x = torch.cat(self.values, 1)
        num_domains, columns, width = len(sizes), self.x.shape[1], self.basis.shape[1]
        self.shared = self.x.new_zeros(columns, width)  # B
        self.own = self.x.new_zeros(num_domains, columns, width)  # δ
        self.intercepts = self.x.new_zeros(num_domains, width)
        self.log_scales = self.x.new_zeros(num_domains)
        self.offset = self.x.new_zeros(len(self.x), width)
        self.ridge = RIDGE

    @property
    def places(self) -> list[slice]:
        """The places of every group among the values."""
        ends = list(accumulate(one.shape[1] for one in self.values))
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    def restrict(self, groups: Sequence[int]) -> None:
        """Keep these groups only; the effects of the others stay as they are."""
        kept = torch.zeros(len(self.shared), dtype=torch.bool)
        for k in groups:
            kept[self.places[k]] = True
        self.offset = self.x[:, ~kept] @ self.shared[~kept]
        self.x, self.shared, self.own = self.x[:, kept], self.shared[kept], self.own[:, kept]
        self.values = [self.values[k] for k in groups]

    def effects(self) -> Tensor:
        """Return B_e of all domains ``[E, K, C − 1]``."""
        return self.shared + self.own

    def squares(self) -> Tensor:
        """Return the mean of ‖s_e B‖²; with ‖B‖², large scales would get around the ridge."""
        return (2 * self.log_scales).exp().mean() * self.shared.square().sum()

    def log_probabilities(self) -> Tensor:
        """Return log p ``[n, C]``."""
        effects = self.effects() * self.log_scales.exp()[:, None, None]
        parts = zip(self.x.split(self.sizes), effects, self.intercepts, strict=True)
        logits = torch.cat([x @ effect + intercept for x, effect, intercept in parts])
        return ((logits + self.offset) @ self.basis.T).log_softmax(1)

    def fit(self, freed: Sequence[int] = ()) -> None:
        """Minimise −ℓ + ½ ridge mean_e ‖s_e B‖² + ½ RIDGE ‖δ‖² + ½ ‖log s‖² / SCALE².

        Args:
            freed: the groups with effects of their own in every domain.
        """
        own_places = [k for group in freed for k in range(len(self.x[0]))[self.places[group]]]
        # In these coordinates the Hessian is near the identity.
        weight = 1 / self.targets.shape[1]
        root = torch.linalg.cholesky(
            weight * self.x.T @ self.x + self.ridge * eye(len(self.shared))
        )
        units = (weight * torch.tensor(self.sizes, dtype=torch.float64) + RIDGE).sqrt()
        shared = root.T @ self.shared
        own = units[:, None, None] * self.own[:, own_places]
        intercepts, log_scales = units[:, None] * self.intercepts, units * self.log_scales
        parameters = [shared, own, intercepts, log_scales]
        optimiser = torch.optim.LBFGS(
            [each.requires_grad_() for each in parameters],
            max_iter=STEPS,
            tolerance_grad=GRADIENT,
            line_search_fn="strong_wolfe",
        )

        def update() -> None:
            self.shared = torch.linalg.solve_triangular(root.T, shared, upper=True)
            self.own = torch.zeros_like(self.own)
            self.own[:, own_places] = own / units[:, None, None]
            self.intercepts = intercepts / units[:, None]
            self.log_scales = log_scales / units
            self.log_scales = self.log_scales - self.log_scales.mean()  # B has the common scale

        def loss() -> Tensor:
            optimiser.zero_grad()
            update()
            penalty = self.ridge * self.squares() + RIDGE * self.own.square().sum()
            penalty = penalty + self.log_scales.square().sum() / SCALE**2
            found = penalty / 2 - (self.targets * self.log_probabilities()).sum()
            found.backward()
            return found

        optimiser.step(loss)
        with torch.no_grad():
            update()

    def fit_ridge(self) -> None:
        """Fit the model without own effects, with the ridge of the largest evidence.

        At its optimum the ridge is γ over the squares, where γ is the number of coefficients that
        the data determine (MacKay). With few rows for so many columns, a smaller one makes
        probabilities too extreme, and then tests find too much.
        """
        curvature = torch.linalg.eigvalsh(self.x.T @ self.x).clamp(min=0)
        for _ in range(RIDGES):
            self.fit()
            p = self.log_probabilities().exp()
            known = (1 - p.square().sum(1)).mean() / self.basis.shape[1] * curvature
            determined = self.basis.shape[1] * (known / (known + self.ridge)).sum()
            best = float(determined / self.squares().clamp(min=ROUNDING))
            before, self.ridge = self.ridge, min(max(best, RIDGE), float(len(self.x)))
            if abs(math.log(self.ridge / before)) < SIMILAR:
                break

    def differences(self) -> Tensor:
        """Return χ² of each value's scores as if it were the only one ``[K]``: a rough guide."""
        p = self.log_probabilities().exp()
        residuals = (self.targets - p) @ self.basis
        weights = p @ self.basis.square() - (p @ self.basis).square()
        scores, informations = [], []
        for x, residual, weight in zip(
            *(each.split(self.sizes) for each in (self.x, residuals, weights)), strict=True
        ):
            scores.append(x.T @ residual)
            informations.append(x.square().T @ weight - (x.T @ weight).square() / weight.sum(0))
        u, v = torch.stack(scores), torch.stack(informations)
        v = v.clamp(min=ROUNDING * float(v.max()))
        return ((u.square() / v).sum(0) - u.sum(0).square() / v.sum(0)).sum(1)

    def scores_and_informations(self) -> tuple[Tensor, Tensor]:
        """Return U ``[E, D]`` and I ``[E, D, D]`` without intercepts.

        D is (value, class contrast), and then the E − 1 contrasts between log s_e.
        """
        probabilities, between = self.log_probabilities().exp(), contrasts(len(self.sizes))
        residuals = (self.targets - probabilities) @ self.basis
        parts = [each.split(self.sizes) for each in (self.x, residuals, probabilities)]
        scores, informations = [], []
        for e, (x, residual, p) in enumerate(zip(*parts, strict=True)):
            design = torch.cat([x * self.log_scales[e].exp(), x.new_ones(len(x), 1)], 1)
            u, v = _score_and_information(design, residual, p, self.basis)
            effect = self.effects()[e].reshape(-1)
            size = len(effect)
            u, v = eliminate(u, v, slice(size, None))
            # Larger scales are larger effects, all in proportion.
            change = torch.cat([eye(size), effect[:, None] * between[e]], 1)
            u, v = change.T @ u[:size], change.T @ v[:size, :size] @ change
            v[size:, size:] += eye(len(between) - 1) / SCALE**2 / len(between)
            u[size:] -= between.T @ self.log_scales / SCALE**2 / len(between)
            scores.append(u)
            informations.append(v)
        return torch.stack(scores), torch.stack(informations)


def _score_and_information(
    design: Tensor, residuals: Tensor, p: Tensor, basis: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ_i x_i ⊗ Qᵀ(y_i − p_i) and Σ_i x_i x_iᵀ ⊗ Qᵀ(diag p_i − p_i p_iᵀ)Q."""
    columns, width = design.shape[1], basis.shape[1]
    projected = p @ basis
    found = design.new_empty(columns, width, columns, width)
    for a in range(width):
        for b in range(a + 1):
            weight = p @ (basis[:, a] * basis[:, b]) - projected[:, a] * projected[:, b]
            found[:, a, :, b] = (design * weight[:, None]).T @ design
            found[:, b, :, a] = found[:, a, :, b]
    return (design.T @ residuals).reshape(-1), found.reshape(columns * width, -1)


def eliminate(score: Tensor, information: Tensor, place: slice) -> tuple[Tensor, Tensor]:
    """Return scores ``[…, D]`` and informations ``[…, D, D]`` with parameters eliminated."""
    size = information[..., place, place].shape[-1]
    corner = information[..., place, place] + tiny(information) * eye(size)
    share = torch.linalg.solve(corner, information[..., place, :]).mT
    score = score - (share @ score[..., place, None])[..., 0]
    information = information - share @ information[..., place, :]
    score[..., place], information[..., place], information[..., place, :] = 0, 0, 0
    return score, information


def tiny(information: Tensor) -> Tensor:
    """Return information that counts as none, beside the mean of a diagonal."""
    return ROUNDING * information.diagonal(dim1=-2, dim2=-1).mean().clamp(min=ROUNDING)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def import_optimiser() -> None:
    """Import what torch's optimisers import at their first step, so that no test is charged for it.

    That takes seconds, and how long a test takes decides how many there are time for.
    """
    torch.compiler.disable(lambda: None)


def contrasts(number: int) -> Tensor:
    """Return an orthonormal basis of the vectors that sum to zero, ``[number, number − 1]``."""
    found = torch.zeros(number, number - 1, dtype=torch.float64)
    for k in range(1, number):
        found[:k, k - 1] = -1 / math.sqrt(k * (k + 1))
        found[k, k - 1] = k / math.sqrt(k * (k + 1))
    return found
