"""Heterogeneity: score tests of column × domain at the pooled model, and effects by domain.

The scores U_e and informations I_e of the pooled model (``pooled_model``) say what domain e would
gain from deviations Δ_e. What all domains share, and what all columns of a domain share, is no
instability of a column:

    Δ_e = ΔB + t_e B_e,   ΔB with the model's ridge, log s_e + t_e ~ N(0, SCALE²), Σ_e t_e = 0.

Column j adds its own δ_e, with Σ_e δ_e = 0 because its pooled effect ΔB_j is free. With X the
information between δ and these nuisances, M that of the nuisances and S that of δ, the efficient
score of δ and its information are

    U* = U_δ − XᵀM⁻¹U_nuisances,   V = S − XᵀM⁻¹X,

where the pooled effect of column j itself has no ridge. If the effects are equal, U*ᵀV⁻¹U* is χ²
with (E − 1)(C − 1) degrees of freedom; for a category, times its number of values − 1.

One unstable column disturbs the tests of all others: it moves ΔB and, if it is strong, the scales.
So the columns are tested in Holm's order, one at a time: the most significant one gets an effect of
its own in every domain, as a further nuisance, and the others are tested again. When no other one
is significant, the model is fitted again with these effects, then with the scales that it finds,
and the others are tested again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .column_groups import ColumnGroup
from .pooled_model import (
    RIDGE,
    DomainRows,
    PooledModel,
    contrasts,
    fit_first,
    fit_pooled,
    scores_and_informations,
)

# The probability that any group is significant if all effects are equal.
SIGNIFICANCE = 0.05
# The standard deviation of log s_e, and its limit: more is not a matter of noisy labels.
SCALE, MOST_SCALE = 0.5, 1.0
# Fits, at most, until no log s_e moves by more than SETTLED.
FITS, SETTLED = 6, 0.05
# Numbers in the informations of all domains, at most. If there are more, only the most suspicious
# groups are tested.
MOST_NUMBERS = 2**23
# An information is rounding below this share of its largest possible value.
ROUNDING = 1e-8


@dataclass(frozen=True)
class DomainEffects:
    """The effects of a group in every domain.

    Args:
        values: ``[E, m]``; m is (direction, class contrast).
        covariance: ``[E, m, E, m]``.
        metric: ``[m, m]``; the squared size of an effect β is βᵀ metric β. With two classes and one
            direction the size is the log-odds for one standard deviation.
    """

    values: Tensor
    covariance: Tensor
    metric: Tensor


def find_heterogeneity(
    rows: DomainRows, groups: Sequence[ColumnGroup]
) -> tuple["HeterogeneityTests", list[float]]:
    """Return the tests at the last fit, and the p-values of their groups after Holm."""
    model = fit_first(rows)
    groups = _most_suspicious(rows, model, groups)
    freed, p_values = list[int](), [1.0] * len(groups)
    for _ in range(FITS):
        tests = HeterogeneityTests(rows, model, groups, freed)
        new = tests.step_down(p_values)
        scales = (model.log_scales + tests.scale_changes()).clamp(-MOST_SCALE, MOST_SCALE)
        if not new and (scales - model.log_scales).abs().max() < SETTLED:
            break
        freed += new
        # Until the unstable columns have effects of their own, they look like scales.
        log_scales = model.log_scales if new else scales
        columns = len(model.coefficients)
        directions = [model.directions[:, :0], *(groups[k].embedded(columns) for k in freed)]
        model = fit_pooled(rows, log_scales, torch.cat(directions, 1), model.ridge, model)
    return tests, p_values


def _most_suspicious(
    rows: DomainRows, model: PooledModel, groups: Sequence[ColumnGroup]
) -> list[ColumnGroup]:
    """Return as many groups as ``MOST_NUMBERS`` allows, those whose own scores differ most.

    The coefficients of the others stay as they are fitted, which makes the tests conservative.
    """
    most = math.isqrt(MOST_NUMBERS // len(rows.sizes)) // (rows.num_classes - 1)
    if sum(len(group.positions) for group in groups) <= most:
        return list(groups)
    basis, p = contrasts(rows.num_classes), model.probabilities(rows)
    residuals = (one_hot(rows.labels, rows.num_classes) - p) @ basis
    weights = p @ basis.square() - (p @ basis).square()
    scores, informations = [], []
    for x, residual, weight in zip(
        *(each.split(rows.sizes) for each in (rows.x, residuals, weights)), strict=True
    ):
        scores.append(x.T @ residual)
        informations.append(x.square().T @ weight - (x.T @ weight).square() / weight.sum(0))
    u, v = torch.stack(scores), torch.stack(informations).clamp(min=ROUNDING)
    differ = ((u.square() / v).sum(0) - u.sum(0).square() / v.sum(0)).amax(1)
    chosen, used = [], 0
    for group in sorted(groups, key=lambda group: -float(differ[group.positions].max())):
        used += len(group.positions)
        if used > most:
            break
        chosen.append(group)
    return sorted(chosen, key=lambda group: int(group.positions[0]))


class HeterogeneityTests:
    """The tests of all groups at one fit, by elimination of the nuisances.

    The nuisances are ΔB [D], t in contrasts between domains [E − 1], and the δ of the groups in
    ``freed``. With M = LLᵀ their information, ``solved`` is L⁻¹U_nuisances ``[N]`` and
    ``eliminated`` is L⁻¹X ``[N, E, P]`` for all groups; P is (group, direction, class contrast). The
    E are the contrasts between domains, which are δ, and the sum of all domains, the group's pooled
    effect.

    Args:
        freed: the groups that have effects of their own in the model, in its order.
    """

    def __init__(
        self,
        rows: DomainRows,
        model: PooledModel,
        groups: Sequence[ColumnGroup],
        freed: Sequence[int],
    ) -> None:
        self.model, self.groups = model, groups
        self.between = contrasts(len(rows.sizes))  # [E, E − 1]
        ones = torch.ones(len(self.between), 1, dtype=torch.float64)
        self.basis = torch.cat([self.between, ones / math.sqrt(len(ones))], 1)  # [E, E]
        positions = torch.cat([group.positions for group in groups])
        scores, informations = scores_and_informations(rows, model, positions)
        each = torch.eye(rows.num_classes - 1, dtype=torch.float64)
        directions = [torch.kron(group.directions, each) for group in groups]
        self.places = _ranges([one.shape[1] for one in directions])
        parts = list(zip(_ranges([len(one) for one in directions]), directions, strict=True))
        along = torch.cat([informations[:, :, k] @ one for k, one in parts], 2)  # [E, D, P]
        self.own = torch.cat([one.T @ along[:, k] for k, one in parts], 1)  # [E, P, P]

        self._eliminate(scores, informations, along, positions)
        loadings = torch.block_diag(*(torch.kron(group.loadings, each) for group in groups))
        self.pooled = loadings.T @ model.coefficients[positions].reshape(-1)
        padding = loadings.new_zeros(self.between.shape[1], loadings.shape[1])
        self.pooled_rows = _solve(self.factor, torch.cat([loadings, padding]))  # [N, P]

        u = torch.cat([scores[:, k] @ one for k, one in parts], 1)
        u = self.basis.T @ u - torch.einsum("n,nkp->kp", self.solved, self.eliminated)
        self.scores = [u[:, place].reshape(-1) for place in self.places]
        self.limits = [self._information(place, place).diagonal() for place in self.places]
        self.informations = []
        for place in self.places:
            mine = _flat(self.eliminated, place)
            self.informations.append(self._information(place, place) - mine.T @ mine)
        # Of each group with effects of its own: L⁻¹X of its δ when it was freed, and the root of V.
        self.freed = dict[int, tuple[Tensor, Tensor]]()
        own = model.own.split([groups[k].directions.shape[1] for k in freed], 1)
        self.own_effects = {k: one.flatten(1) for k, one in zip(freed, own, strict=True)}
        for k, effects in self.own_effects.items():
            self.scores[k] = self.scores[k] - RIDGE * (self.basis.T @ effects).reshape(-1)
            self.free(k)

    def _eliminate(
        self, scores: Tensor, informations: Tensor, along: Tensor, positions: Tensor
    ) -> None:
        """Factor the information of ΔB and t, and eliminate both from all δ."""
        h, model = self.between, self.model
        shared = model.coefficients[positions].reshape(-1)
        effects = model.domain_coefficients()[:, positions].flatten(1)  # [E, D]
        ridge = model.ridge * torch.eye(len(shared), dtype=torch.float64)
        prior = SCALE**-2 * torch.eye(h.shape[1], dtype=torch.float64)
        scaled = torch.einsum("edf,ef->ed", informations, effects)
        scales = torch.einsum("ej,ed,ed,ek->jk", h, scaled, effects, h) + prior
        sides = scaled.T @ h
        upper = torch.cat([informations.sum(0) + ridge, sides], 1)
        self.factor = torch.linalg.cholesky(torch.cat([upper, torch.cat([sides.T, scales], 1)]))
        of_shared = scores.sum(0) - model.ridge * shared
        of_scales = h.T @ ((scores * effects).sum(1) - SCALE**-2 * model.log_scales)
        self.solved = _solve(self.factor, torch.cat([of_shared, of_scales]))
        with_shared = torch.einsum("ek,edp->dkp", self.basis, along)
        with_scales = torch.einsum("ej,ek,ep->jkp", h, self.basis, (effects[:, None] @ along)[:, 0])
        self.eliminated = _solve(self.factor, torch.cat([with_shared, with_scales]))
        of_domains = torch.cat([h.new_zeros(len(shared), len(h)), h.T])
        self.scale_rows = _solve(self.factor, of_domains)  # L⁻¹ of t_e, [N, E]

    def _information(self, place: range, others: range) -> Tensor:
        """Return the information between two places."""
        own = self.own[:, place.start : place.stop, others.start : others.stop]
        found = torch.einsum("ek,epq,el->kplq", self.basis, own, self.basis)
        return found.reshape(len(self.basis) * len(place), -1)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return U*ᵀV⁻¹U* of every group, and its degrees of freedom: the rank of V."""
        statistic, freedom = torch.zeros(2, len(self.groups), dtype=torch.float64)
        sizes = torch.tensor([len(place) for place in self.places])
        for size in sizes.unique():
            mine = (sizes == size).nonzero()[:, 0]
            # In units of S, whose diagonal is the most that V's can be.
            units = torch.stack([self.limits[k] for k in mine]).clamp(min=ROUNDING).rsqrt()
            v = torch.stack([self.informations[k] for k in mine])
            u, v = _eliminate_last(
                torch.stack([self.scores[k] for k in mine]) * units,
                v * units[:, :, None] * units[:, None],
                int(size),
            )
            values, vectors = torch.linalg.eigh(v)
            squares = torch.einsum("gij,gi->gj", vectors, u).square()
            informed = values > ROUNDING
            statistic[mine] = torch.where(informed, squares / values, 0).sum(1)
            freedom[mine] = informed.sum(1).double()
        return statistic, freedom

    def step_down(self, p_values: list[float]) -> list[int]:
        """Free the significant groups, the most significant first, and return them.

        Args:
            p_values: of all groups after Holm. Those of groups that were not freed are replaced.
        """
        found = list[int]()
        lowest = max((p_values[k] for k in self.freed), default=0.0)
        left = [k for k in range(len(self.groups)) if k not in self.freed]
        while left:
            statistic, freedom = (each[left] for each in self.statistics())
            p = torch.special.gammaincc(freedom.clamp(min=1) / 2, statistic / 2)
            adjusted = (len(left) * p).clamp(min=lowest, max=1.0)
            best = int(_as_normal(statistic, freedom).argmax())
            for k, value in zip(left, adjusted.tolist(), strict=True):
                p_values[k] = value
            lowest = float(adjusted[best])
            if lowest > SIGNIFICANCE:
                break
            found.append(left.pop(best))
            self.free(found[-1])
        return found

    def free(self, k: int) -> None:
        """Give a group its own effects in every domain, a nuisance in the tests of the others."""
        mine, root, score = self._own_part(k)
        cross = self._information(self.places[k], range(self.own.shape[1]))
        cross = cross[: len(root)].unflatten(1, self.eliminated.shape[1:])
        rows = _solve(root, cross - torch.einsum("nr,nkp->rkp", mine, self.eliminated))
        solved = _solve(root, score)
        self.freed[k] = mine, root
        self.eliminated = torch.cat([self.eliminated, rows])
        self.solved = torch.cat([self.solved, solved])
        for other, place in enumerate(self.places):
            flat = _flat(rows, place)
            self.scores[other] = self.scores[other] - flat.T @ solved
            self.informations[other] = self.informations[other] - flat.T @ flat

    def _own_part(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return L⁻¹X of a group's δ, the root of V with the ridge on δ, and U*."""
        mine = _flat(self.eliminated[:, :-1], self.places[k])
        size = mine.shape[1]
        v = self.informations[k][:size, :size] + RIDGE * torch.eye(size, dtype=torch.float64)
        return mine, torch.linalg.cholesky(v), self.scores[k][:size]

    def scale_changes(self) -> Tensor:
        """Return the estimates of t ``[E]``."""
        return self._forward(self.scale_rows, {}).T @ self.solved

    def effects(self, k: int, *, scaled: bool) -> DomainEffects:
        """Return the effects of a group after one Newton step, with an own value in every domain.

        Args:
            scaled: multiplied by the domain's scale, as a model of the domain alone would have
                them; otherwise as if all scales were 1.
        """
        place, num_domains = self.places[k], len(self.between)
        fitted = self.pooled[place.start : place.stop].expand(num_domains, -1)
        if k in self.own_effects:
            fitted = fitted + self.own_effects[k]
        start = self.pooled_rows[:, None, place.start : place.stop].expand(-1, num_domains, -1)
        if scaled:
            start = start + self.scale_rows[:, :, None] * fitted
        own = torch.kron(self.between.T.contiguous(), torch.eye(len(place), dtype=torch.float64))
        forward, solved = self._forward(start.flatten(1), {k: own}), self.solved
        if k not in self.freed:
            mine, root, score = self._own_part(k)
            forward = torch.cat([forward, _solve(root, own - mine.T @ forward)])
            solved = torch.cat([solved, _solve(root, score)])
        shape = (num_domains, len(place))
        values = fitted + (forward.T @ solved).reshape(shape)
        covariance = (forward.T @ forward).reshape(*shape, *shape)
        if scaled:
            scales = self.model.log_scales.exp()
            values = values * scales[:, None]
            covariance = covariance * scales[:, None, None, None] * scales[:, None]
        metric = self.own[:, place.start : place.stop, place.start : place.stop].sum(0)
        metric = metric * 2 * self.groups[k].directions.shape[1] / metric.trace()
        return DomainEffects(values, covariance, metric)

    def informed(self, k: int) -> Tensor:
        """Return the domains in which a group varies ``[E]``."""
        place = self.places[k]
        own = self.own[:, place.start : place.stop, place.start : place.stop]
        sizes = own.diagonal(dim1=1, dim2=2).sum(1)
        return sizes > ROUNDING * sizes.max()

    def _forward(self, start: Tensor, own: Mapping[int, Tensor]) -> Tensor:
        """Return L⁻¹f of functions f of the nuisances ``[N, f]``.

        Args:
            start: L⁻¹f of the nuisances ΔB and t.
            own: the parts of f in the δ of groups.
        """
        found = start
        for k, (rows, root) in self.freed.items():
            right = -rows.T @ found
            found = torch.cat([found, _solve(root, right + own[k] if k in own else right)])
        return found


def _eliminate_last(u: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return scores and informations ``[G, …]`` without their last ``size`` entries.

    Those have information from the ridge alone, and none if a column tells nothing.
    """
    u, last = u[:, :-size], u[:, -size:]
    corner = v[:, -size:, -size:] + ROUNDING * torch.eye(size, dtype=torch.float64)
    share = torch.linalg.solve(corner, v[:, -size:, :-size])
    score = u - torch.einsum("gpk,gp->gk", share, last)
    return score, v[:, :-size, :-size] - v[:, :-size, -size:] @ share


def _ranges(sizes: Sequence[int]) -> list[range]:
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _flat(rows: Tensor, place: range) -> Tensor:
    return rows[:, :, place.start : place.stop].flatten(1)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Return L⁻¹ right, for any shape of the right-hand sides."""
    flat = right.reshape(len(right), -1)
    found: Tensor = torch.linalg.solve_triangular(factor, flat, upper=False)
    return found.reshape(right.shape)


def _as_normal(statistic: Tensor, freedom: Tensor) -> Tensor:
    """Return χ² as a standard normal value (Wilson and Hilferty); it orders p-values that are 0."""
    part = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - 1 + part) / part.sqrt()
    return torch.where(freedom > 0, normal, -torch.inf)
