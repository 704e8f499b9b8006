"""Unstable columns: the columns of a table whose effect on the class differs between domains.

All domains share one regression (``pooled_regression``). A column is tested where it has no effects
of its own, so no model is fitted to a domain. From the scores and informations of all domains, the
intercepts, the scales and the effects of other columns are eliminated. What is left are scores
u ``[E m]`` of the column's own effects, and their information V ``[E m, E m]``. If all domains
have the same effect,

    u*ᵀV*⁻¹u*,   u*, V* without the effect that all domains share,

is χ² with (E − 1) m degrees of freedom. m is C − 1, and for a category times its values − 1.

One unstable column disturbs the tests of the others. So columns are tested in Holm's order: the
most significant one gets effects of its own, which are eliminated too, and the others are tested
again. When no other one is significant, the regression is fitted again with all these effects, and
the rest are tested again.

With many rows, differences that matter to nobody are significant. So a column is flagged only if
its effects also differ by much: their standard deviation is above a quarter of their mean, or
their sign changes. Where own effects separate the classes, the data do not say how large they are,
and the column is not flagged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .pooled_regression import RIDGE, ROUNDING, PooledRegression, contrasts, eliminate, eye, tiny

# Rows of every class that a domain needs to take part, and rows in which a column must differ from
# its median.
EVENTS = 10
# Columns that correlate more than this within the domains count as one.
CORRELATION = 0.9
# The probability that any column is significant if no effect differs.
SIGNIFICANCE = 0.05
# Effects differ by much if their standard deviation over the domains is above this share of their
# mean. It must also be above LITTLE, in log-odds for one standard deviation of the column.
SPREAD, LITTLE = 0.25, 0.1
# A sign changes if an effect is so many standard errors on the other side of zero.
ERRORS = 2.0
# Rows of all domains at most; of more, each domain's part is sampled.
MOST_ROWS = 100_000
# Positions of all columns at most: every pair of them is compared.
MOST_POSITIONS = 5_000
# Numbers in the informations of all domains at most; of more, only the most suspicious columns are
# tested.
MOST_NUMBERS = 2**23
# Values count up to so many standard deviations from the median, robustly from the quartiles: a
# few extreme rows would decide a test alone.
EXTREME, NORMAL_QUARTILES = 5.0, 1.349
# Fits at most.
FITS = 5
# Halvings of the interval in which the spread is looked for.
BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class GroupEffects:
    """The effects of columns that count as one by domain, and whether they are stable.

    Args:
        names: of the columns.
        p: the p-value of equal effects in all domains, after Holm.
        effects: by domain in which the columns vary, for one standard deviation of the first one,
            without the domain's scale. With two classes they are log-odds of the second class;
            with more, or for a category, sizes along the mean effect.
        errors: the standard errors of the effects.
        mean: of the effects.
        spread: the standard deviation of the effects, without what chance explains.
        turns: whether the effect has the other sign in some domain.
        flagged: whether the columns are unstable: significantly, and by much.
    """

    names: tuple[str, ...]
    p: float
    effects: Mapping[int, float]
    errors: Mapping[int, float]
    mean: float
    spread: float
    turns: bool
    flagged: bool


@dataclass(frozen=True, kw_only=True)
class ColumnStability:
    """The stability of the columns of a table.

    Args:
        groups: the columns that were tested, in the order of the table.
        scales: the common scale of all effects, by domain that took part.
        absent: the other domains, and why they took no part.
        note: why nothing was tested; empty if something was.
    """

    groups: tuple[GroupEffects, ...] = ()
    scales: Mapping[int, float] = field(default_factory=dict)
    absent: Mapping[int, str] = field(default_factory=dict)
    note: str = ""

    @property
    def flagged(self) -> tuple[str, ...]:
        """The names of the unstable columns."""
        return tuple(name for group in self.groups if group.flagged for name in group.names)

    def remaining(self, columns: Mapping[str, Sequence[int]]) -> list[int]:
        """Return the positions of all columns but the unstable ones, in their order."""
        flagged = set(self.flagged)
        return [k for name, places in columns.items() if name not in flagged for k in places]


def unstable_columns(
    vectors: Tensor, labels: Tensor, domains: Tensor, columns: Mapping[str, Sequence[int]]
) -> ColumnStability:
    """Return the stability of every column; a note says why if nothing can be tested.

    Args:
        vectors: encoded rows ``[n, d]``; a missing number is NaN.
        labels: classes ``[n]``, from 0.
        domains: the domain of every row ``[n]``, from 0.
        columns: the positions of every column in a vector.
    """
    if not len(vectors) == len(labels) == len(domains):
        raise ValueError(
            "vectors, labels and domains must have one entry for every row, got "
            f"{len(vectors)}, {len(labels)} and {len(domains)}"
        )
    labels, domains = labels.long(), domains.long()
    taking, classes, absent, note = _taking_part(labels, domains)
    if not note and vectors.shape[1] > MOST_POSITIONS:
        note = f"there are more than {MOST_POSITIONS:,} columns and values of categories"
    if note:
        return ColumnStability(absent=absent, note=note)
    counted = torch.isin(labels, torch.tensor(classes))
    most = MOST_ROWS // len(taking)
    parts = [_some(((domains == e) & counted).nonzero()[:, 0], most) for e in taking]
    rows, sizes = torch.cat(parts), [len(part) for part in parts]
    groups = _group_columns(_standardise(vectors[rows], sizes, columns))
    if not groups:
        return ColumnStability(absent=absent, note="no column varies within the domains")
    numbers = torch.searchsorted(torch.tensor(classes), labels[rows])
    targets = one_hot(numbers, len(classes)).double()
    model = PooledRegression(list(groups.values()), targets, sizes)
    model.fit_ridge()
    tested = _most_suspicious(model)
    if not tested:
        note = "there are too many domains and classes, or too many values of a category"
        return ColumnStability(absent=absent, note=note)
    model.restrict(tested)
    p_values, freed = _step_down(model)
    effects = _own_effects(model, freed)
    names = list(groups)
    return ColumnStability(
        groups=tuple(
            _judge(names[k], p, taking, one)
            for k, p, one in zip(tested, p_values, effects, strict=True)
        ),
        scales=dict(zip(taking, model.log_scales.exp().tolist(), strict=True)),
        absent=absent,
    )


def _taking_part(
    labels: Tensor, domains: Tensor
) -> tuple[list[int], list[int], dict[int, str], str]:
    """Return the domains with ``EVENTS`` rows of every class, the classes, and who is absent.

    A class that half of the domains lack would keep these out, so its rows take no part instead.
    """
    if not len(labels):
        return [], [], {}, "there are no rows"
    counts = torch.zeros(int(domains.max()) + 1, int(labels.max()) + 1, dtype=torch.long)
    counts.index_put_((domains, labels), torch.ones_like(labels), accumulate=True)
    present, enough = counts.sum(1) > 0, counts >= EVENTS
    counted = 2 * enough[present].sum(0) > present.sum()
    chosen = present & enough[:, counted].all(1)
    classes, taking = _places(counted), _places(chosen)
    absent = dict.fromkeys(_places(present & ~chosen), f"fewer than {EVENTS} rows of a class")
    note = ""
    if len(classes) < 2:
        note = f"fewer than two classes have {EVENTS} rows in more than half of the domains"
    elif len(taking) < 2:
        note = f"fewer than two domains have {EVENTS} rows of every class"
    return taking, classes, absent, note


def _places(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found


def _some(rows: Tensor, most: int) -> Tensor:
    """Return so many of the rows, drawn at random but always the same."""
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:most]]


def _standardise(
    values: Tensor, sizes: Sequence[int], columns: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return uncorrelated values of unit variance for every column that varies ``[n, q]``.

    Means and variances are those within the domains. A missing number is its domain's mean. The
    values of a category, of which one follows from the others, become one fewer.
    """
    values = values.double().masked_fill(values.isinf(), torch.nan)
    others = torch.where(values == values.nanmedian(0).values, torch.nan, values)
    varies = (~others.isnan()).sum(0) >= EVENTS
    width = _quartile_range(values)
    # If most rows have one value, the others say what is extreme.
    width = torch.where(width > 0, width, _quartile_range(others))
    limits = torch.where(width > 0, EXTREME / NORMAL_QUARTILES * width, torch.inf)
    for mine in values.split(sizes):  # views
        mine -= mine.nanmedian(0).values
        mine.clamp_(-limits, limits)
        mine -= mine.nanmean(0)
    values.nan_to_num_(0.0)
    found = {
        name: _whiten(values[:, [k for k in positions if varies[k]]])
        for name, positions in columns.items()
    }
    return {name: whitened for name, whitened in found.items() if whitened.shape[1]}


def _quartile_range(values: Tensor) -> Tensor:
    """Return the distance of the quartiles of each column, without missing values."""
    ordered = values.sort(0).values  # NaN last
    last = (~values.isnan()).sum(0, keepdim=True).clamp(min=1) - 1
    low, high = (ordered.gather(0, last * k // 4)[0] for k in (1, 3))
    return (high - low).nan_to_num(0.0)


def _whiten(values: Tensor, most: int | None = None) -> Tensor:
    """Return the principal components with unit variance, the largest ``most`` of them.

    The first column has a positive part in each.
    """
    deviation = values.square().mean(0).sqrt()
    values = values[:, deviation > 0] / deviation[deviation > 0]
    if values.shape[1] < 2:
        return values
    variances, directions = torch.linalg.eigh(values.T @ values / len(values))
    kept = (variances > ROUNDING * len(variances)).nonzero()[:, 0].flip(0)[:most]
    signs = torch.where(directions[0, kept] < 0, -1.0, 1.0)
    whitened: Tensor = values @ (directions[:, kept] * signs / variances[kept].sqrt())
    return whitened


def _group_columns(values: Mapping[str, Tensor]) -> dict[tuple[str, ...], Tensor]:
    """Return the values of every group of correlated columns ``[n, q]``, by its names.

    Again and again, the column with the most neighbours and those neighbours become a group. So all
    columns of a group correlate with one of them, and a chain of neighbours is no group. Its value
    is the principal component of its columns. If columns have several positions, the mean of the
    squared canonical correlations counts, and there are as many components.
    """
    if not values:
        return {}
    names, x = list(values), torch.cat(list(values.values()), 1)
    widths = torch.tensor([one.shape[1] for one in values.values()])
    owner = torch.arange(len(names)).repeat_interleave(widths)
    squares = (x.T @ x / len(x)).square()
    rows = squares.new_zeros(len(names), len(owner)).index_add_(0, owner, squares)
    shared = squares.new_zeros(len(names), len(names)).index_add_(1, owner, rows)
    near = shared > CORRELATION**2 * torch.minimum(widths[:, None], widths)
    groups, counts = list[list[int]](), near.sum(1)
    while counts.max() > 1:
        members = _places(near[counts.argmax()])
        counts -= near[:, members].sum(1)
        near[members], near[:, members], counts[members] = False, False, 0
        groups.append(members)
    groups += [[k] for k in _places(counts > 0)]
    found = dict[tuple[str, ...], Tensor]()
    for group in sorted(groups):
        whole = torch.cat([values[names[k]] for k in group], 1)
        found[tuple(names[k] for k in group)] = (
            whole if len(group) == 1 else _whiten(whole, int(widths[group].max()))
        )
    return found


def _most_suspicious(model: PooledRegression) -> list[int]:
    """Return as many groups as ``MOST_NUMBERS`` allows, those whose own scores differ most."""
    num_domains, width = model.intercepts.shape
    most = math.isqrt(MOST_NUMBERS // num_domains) // width
    differ = model.differences()
    suspicion = [float(differ[place].max()) for place in model.places]
    chosen = list[int]()
    for k in sorted(range(len(suspicion)), key=lambda k: -suspicion[k]):
        if model.values[k].shape[1] <= most:
            chosen.append(k)
            most -= model.values[k].shape[1]
    return sorted(chosen)


class DomainScores:
    """Scores and informations of all domains, with what groups of columns say alone.

    Args:
        scores: U ``[E, D]``.
        informations: I ``[E, D, D]``.
    """

    def __init__(self, scores: Tensor, informations: Tensor) -> None:
        self.scores, self.informations = scores, informations
        total = informations.sum(0)
        self.inverse = torch.linalg.inv(total + tiny(total) * eye(len(total)))

    def without(self, place: slice) -> "DomainScores":
        """Return those that are left if the effects at a place are free in every domain."""
        return DomainScores(*eliminate(self.scores, self.informations, place))

    def own(self, place: slice) -> tuple[Tensor, Tensor]:
        """Return u ``[E m]`` and V ``[E m, E m]`` of own effects, if all others are shared."""
        cross = self.informations[:, :, place].permute(1, 0, 2).flatten(1).clone()  # [D, E m]
        shared = self.scores.sum(0)
        cross[place], shared[place] = 0, 0
        # With H the inverse, that without the place g is H_rr − H_rg H_gg⁻¹ H_gr.
        solved = self.inverse @ torch.cat([cross, shared[:, None]], 1)
        corner = torch.linalg.solve(self.inverse[place, place], solved[place])
        solved = solved - self.inverse[:, place] @ corner
        v = torch.block_diag(*self.informations[:, place, place]) - cross.T @ solved[:, :-1]
        return self.scores[:, place].reshape(-1) - cross.T @ solved[:, -1], (v + v.T) / 2

    def heterogeneity(self, place: slice) -> tuple[float, int]:
        """Return χ² of equal effects in all domains, and its degrees of freedom: the rank of V*."""
        u, v = self.own(place)
        units = v.diagonal().clamp(min=tiny(v)).rsqrt()
        same = eye(len(u) // len(self.scores)).repeat(len(self.scores), 1)
        along = v @ same
        share = along @ torch.linalg.pinv(same.T @ along, hermitian=True)
        u = (u - share @ (same.T @ u)) * units
        values, directions = torch.linalg.eigh((v - share @ along.T) * units[:, None] * units)
        informed = values > math.sqrt(ROUNDING)
        squares = (directions.T @ u).square()[informed] / values[informed]
        return float(squares.sum()), int(informed.sum())


def _step_down(model: PooledRegression) -> tuple[list[float], list[int]]:
    """Return the p-values of all groups after Holm, and the significant groups.

    The regression is left with own effects of these.
    """
    places = _flat_places(model)
    p_values, freed, lowest = [1.0] * len(places), list[int](), 0.0
    for _ in range(FITS):
        model.fit(freed)
        tests = DomainScores(*model.scores_and_informations())
        for k in freed:
            tests = tests.without(places[k])
        left, before = [k for k in range(len(places)) if k not in freed], len(freed)
        while left:
            statistic, freedom = torch.tensor(
                [tests.heterogeneity(places[k]) for k in left], dtype=torch.float64
            ).T
            p = torch.special.gammaincc(freedom.clamp(min=1) / 2, statistic / 2)
            adjusted: list[float] = (len(left) * p).clamp(min=lowest, max=1.0).tolist()
            for k, value in zip(left, adjusted, strict=True):
                p_values[k] = value
            best = int(_as_normal(statistic, freedom).argmax())
            if adjusted[best] > SIGNIFICANCE:
                break
            lowest = adjusted[best]
            freed.append(left.pop(best))
            tests = tests.without(places[freed[-1]])
        if len(freed) == before:
            break
    return p_values, freed


def _flat_places(model: PooledRegression) -> list[slice]:
    """Return the places of every group among (value, class contrast)."""
    width = model.basis.shape[1]
    return [slice(place.start * width, place.stop * width) for place in model.places]


def _as_normal(statistic: Tensor, freedom: Tensor) -> Tensor:
    """Return χ² as a standard normal value (Wilson and Hilferty); it orders p-values that are 0."""
    part = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - 1 + part) / part.sqrt()
    return torch.where(freedom > 0, normal, -torch.inf)


@dataclass(frozen=True)
class OwnEffects:
    """The effects of a group by domain, after one Newton step with own effects.

    Args:
        values: ``[E, m]``.
        covariance: ``[E, m, E, m]``.
        informed: the domains in which the columns vary.
    """

    values: Tensor
    covariance: Tensor
    informed: list[int]


def _own_effects(model: PooledRegression, freed: Sequence[int]) -> list[OwnEffects]:
    """Return the effects of every group, if the ``freed`` ones have own effects too."""
    whole, places, found = DomainScores(*model.scores_and_informations()), _flat_places(model), []
    num_domains = len(model.sizes)
    for k, place in enumerate(places):
        tests = whole
        for other in freed:
            tests = tests if other == k else tests.without(places[other])
        u, v = tests.own(place)
        fitted, own = (each[:, model.places[k]].flatten(1) for each in (model.effects(), model.own))
        covariance = torch.linalg.inv(v + RIDGE * eye(len(v)))
        values = fitted + (covariance @ (u - RIDGE * own.flatten())).reshape(fitted.shape)
        known = v.diagonal().reshape(fitted.shape).sum(1)
        informed = _places(known > ROUNDING * known.max())
        # The coefficients of two classes are b and −b: their norm is √2 b, the log-odds are 2 b.
        shape = (num_domains, fitted.shape[1]) * 2
        found.append(OwnEffects(math.sqrt(2) * values, 2 * covariance.reshape(shape), informed))
    return found


def _judge(
    names: tuple[str, ...], p: float, domains: Sequence[int], own: OwnEffects
) -> GroupEffects:
    """Return the judgement of a group; ``domains`` are the numbers of those that took part."""
    effects = own.values[own.informed]
    covariance = own.covariance[own.informed][:, :, own.informed]
    spread = _spread(effects, covariance)
    blocks = torch.einsum("epeq->epq", covariance)
    weights = 1 / (spread**2 + torch.einsum("epp->e", blocks))
    mean = weights @ effects / weights.sum()
    size = mean.norm().clamp(min=ROUNDING)
    direction = mean / size
    along, errors = (
        effects @ direction,
        torch.einsum("p,epq,q->e", direction, blocks, direction).sqrt(),
    )
    turns = bool((along < -ERRORS * errors).any())
    much = spread > LITTLE and (turns or spread > SPREAD * float(size))
    # With one position and two classes an effect has a sign of its own.
    sign = -1 if len(direction) == 1 and direction[0] < 0 else 1
    numbers = [domains[e] for e in own.informed]
    return GroupEffects(
        names=names,
        p=p,
        effects=dict(zip(numbers, (sign * along).tolist(), strict=True)),
        errors=dict(zip(numbers, errors.tolist(), strict=True)),
        mean=sign * float(size),
        spread=spread,
        turns=turns,
        flagged=p <= SIGNIFICANCE and much,
    )


def _spread(effects: Tensor, covariance: Tensor) -> float:
    """Return τ, the standard deviation of the effects ``[E, m]`` without what chance explains.

    It is Paule and Mandel's: if effects have the covariance τ²/m beside their errors, Cochran's Q
    is as large as its degrees of freedom. With equal errors and m = 1, τ² is the variance of the
    effects, with E − 1 in the denominator, minus the squared error.
    """
    num_domains, width = effects.shape
    between = torch.kron(contrasts(num_domains).T.contiguous(), math.sqrt(width) * eye(width))
    covariance = covariance.reshape(num_domains * width, -1)
    errors, directions = torch.linalg.eigh(between @ covariance @ between.T)
    squares = (directions.T @ (between @ effects.flatten())).square()
    low, high = 0.0, float(squares.sum())
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if (squares / (errors.clamp(min=ROUNDING**2) + middle)).sum() > len(squares):
            low = middle
        else:
            high = middle
    return math.sqrt(low)
