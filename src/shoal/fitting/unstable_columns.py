"""Unstable columns: the columns of a table whose effect on the class differs between domains.

All domains share one logistic regression with a ridge. For row i of domain e

    p_i = softmax(Q (s_e B_eᵀx_i + a_e)),   B_e = B + δ_e,

where Q [C, C − 1] is an orthonormal basis of the class contrasts. The intercepts a_e are free,
because prevalence may differ. So is the scale s_e of all effects of a domain, with log s_e ~ N(0,
SCALE²), because labels may be noisier there. δ_e is zero but for columns that are found unstable.

A column is tested where it has no effects δ_e of its own, so a domain or a class that can be
separated does no harm. To second order the log-likelihood of changes Δ_e of B_e is Σ_e U_eᵀΔ_e −
½ Δ_eᵀI_eΔ_e, with the scores U_e = Σ_i s_e x_i ⊗ Qᵀ(y_i − p_i) and their information I_e. From
both, the intercepts, the scales and the effects of the other columns are eliminated. What is left
are the column's own effects β ``[E, m]`` after one Newton step, with information V ``[Em, Em]``.
If all domains have the same effect,

    Σ_ef (β_e − β̄)ᵀ V_ef (β_f − β̄),   β̄ the mean that V gives,

is χ² with (E − 1) m degrees of freedom. m is C − 1, and for a category times its values − 1.

One unstable column disturbs the tests of the others. So columns are tested in Holm's order: the
most significant one gets effects of its own, the others are tested again, and when none is left
the model is fitted again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

# Rows of every class that a domain needs to take part, and rows in which a column must differ from
# its most frequent value.
EVENTS = 10
# Columns that correlate more than this within the domains count as one.
CORRELATION = 0.9
# The probability that any column is significant if no effect differs.
SIGNIFICANCE = 0.05
# Effects differ by much if their standard deviation over the domains is above this share of their
# mean. It must also be above LITTLE, in log-odds for one standard deviation of the column: with
# many rows differences are significant that matter to nobody.
SPREAD, LITTLE = 0.25, 0.1
# A sign changes if an effect is so many standard errors on the other side of zero.
ERRORS = 2.0
# More rows than this are sampled, so that the time does not grow beyond it.
MOST_ROWS = 100_000
# Numbers in the informations of all domains, at most; beyond that only the most suspicious columns
# are tested.
MOST_NUMBERS = 2**23
# Values count up to so many standard deviations from the median, robustly from the quartiles: a
# few extreme rows would decide a test alone.
EXTREME, NORMAL_QUARTILES = 5.0, 1.349
# The ridge on the effects of standardised columns (scikit-learn's default, C = 1), and the standard
# deviation of log s_e.
RIDGE, SCALE = 1.0, 0.5
# Fits at most to find the ridge, until its logarithm changes by less.
RIDGES, SIMILAR = 8, 0.2
# Fits at most, and the steps of each.
FITS, STEPS = 5, 300
# Shares below this are rounding.
ROUNDING = 1e-8


@dataclass(frozen=True, kw_only=True)
class GroupEffects:
    """The effects of a group of columns by domain, and whether they are stable.

    Args:
        names: of the columns that count as one.
        p: the p-value of equal effects in all domains, after Holm.
        effects, errors: of the domains that took part, with standard errors, for one standard
            deviation of the first column and as if no domain had noisier labels. With two classes
            and one position they are log-odds of the second class, otherwise sizes along the mean
            effect.
        mean: of the effects.
        spread: the standard deviation of the effects, without what chance explains.
        turns: whether the effect has the other sign in some domain.
        flagged: whether the columns are unstable: significantly, and by much.
    """

    names: tuple[str, ...]
    p: float
    effects: tuple[float, ...]
    errors: tuple[float, ...]
    mean: float
    spread: float
    turns: bool
    flagged: bool


@dataclass(frozen=True, kw_only=True)
class ColumnStability:
    """The stability of the columns of a table.

    Args:
        groups: those that were tested, in the order of the table.
        domains: the numbers of those that took part.
        scales: the common scale of all effects in each of these.
        absent: the other domains, and why they took no part.
        note: why nothing was tested; empty if something was.
    """

    groups: tuple[GroupEffects, ...]
    domains: tuple[int, ...]
    scales: tuple[float, ...]
    absent: Mapping[int, str]
    note: str = ""

    @property
    def flagged(self) -> tuple[str, ...]:
        """The names of the unstable columns."""
        return tuple(name for group in self.groups if group.flagged for name in group.names)

    def remaining(self, columns: Mapping[str, Sequence[int]]) -> list[int]:
        """Return the positions of all columns but the unstable ones."""
        return sorted(k for name in columns if name not in self.flagged for k in columns[name])


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
    if len(labels) > MOST_ROWS:
        some = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
        vectors, labels, domains = vectors[some], labels[some], domains[some]
    taking, classes, absent, note = _taking_part(labels, domains)
    if note:
        return ColumnStability(groups=(), domains=(), scales=(), absent=absent, note=note)
    inside = torch.isin(domains, torch.tensor(taking)) & torch.isin(labels, torch.tensor(classes))
    rows = inside.nonzero()[:, 0]
    rows = rows[domains[rows].argsort(stable=True)]
    sizes = [int((domains[rows] == e).sum()) for e in taking]
    names, x, places = _group_columns(_standardise(vectors[rows], sizes, columns))
    if not names:
        note = "no column varies within the domains"
        return ColumnStability(groups=(), domains=(), scales=(), absent=absent, note=note)
    numbers = torch.searchsorted(torch.tensor(classes), labels[rows])
    model = _PooledModel(x, one_hot(numbers, len(classes)).double(), sizes)
    p_values, found = _step_down(model, places)
    return ColumnStability(
        groups=tuple(_judge(names[k], p_values[k], *found[k]) for k in sorted(found)),
        domains=tuple(taking),
        scales=tuple(model.log_scales.exp().tolist()),
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
    classes: list[int] = counted.nonzero()[:, 0].tolist()
    taking: list[int] = chosen.nonzero()[:, 0].tolist()
    why = f"fewer than {EVENTS} rows of a class"
    absent = dict.fromkeys((present & ~chosen).nonzero()[:, 0].tolist(), why)
    if len(classes) < 2:
        note = f"fewer than two classes have {EVENTS} rows in more than half of the domains"
        return taking, classes, absent, note
    lacking = f"fewer than two domains have {EVENTS} rows of every class"
    return taking, classes, absent, lacking if len(taking) < 2 else ""


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
    return values @ (directions[:, kept] * signs / variances[kept].sqrt())


def _group_columns(
    values: Mapping[str, Tensor],
) -> tuple[list[tuple[str, ...]], Tensor, list[slice]]:
    """Return groups of correlated columns, a value for each group, and its places.

    Again and again, the column with the most neighbours and those neighbours become a group. So all
    columns of a group correlate with one of them, and a chain of neighbours is no group. Its value
    is the principal component of its columns. For columns with several positions, the mean of the
    squared canonical correlations counts.
    """
    if not values:
        return [], torch.empty(0, 0), []
    widths = torch.tensor([one.shape[1] for one in values.values()])
    owner = torch.arange(len(values)).repeat_interleave(widths)
    x = torch.cat(list(values.values()), 1)
    of_column = one_hot(owner, len(values)).double()
    shared = of_column.T @ (x.T @ x / len(x)).square() @ of_column
    near = shared > CORRELATION**2 * torch.minimum(widths[:, None], widths)
    groups = list[list[int]]()
    while near.any():
        members: list[int] = near[near.sum(1).argmax()].nonzero()[:, 0].tolist()
        near[members] = False
        near[:, members] = False
        groups.append(members)
    groups.sort()
    names = list(values)
    whitened = [
        _whiten(torch.cat([values[names[k]] for k in group], 1), int(widths[group].max()))
        for group in groups
    ]
    ends = torch.tensor([one.shape[1] for one in whitened]).cumsum(0).tolist()
    places = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    return [tuple(names[k] for k in group) for group in groups], torch.cat(whitened, 1), places


class _PooledModel:
    """The logistic regression that all domains share, fitted to standardised rows.

    Args:
        x: values ``[n, K]``, sorted by domain.
        targets: 1 at the class of each row ``[n, C]``.
        sizes: the number of rows of each domain.
    """

    def __init__(self, x: Tensor, targets: Tensor, sizes: Sequence[int]) -> None:
        self.x, self.targets, self.sizes = x, targets, sizes
        self.basis = _contrasts(targets.shape[1])
        contrasts = self.basis.shape[1]
        self.shared = x.new_zeros(x.shape[1], contrasts)  # B
        self.own = x.new_zeros(len(sizes), x.shape[1], contrasts)  # δ
        self.intercepts = x.new_zeros(len(sizes), contrasts)
        self.log_scales = x.new_zeros(len(sizes))
        self.ridge = RIDGE

    def effects(self) -> Tensor:
        """Return B_e of all domains ``[E, K, C − 1]``."""
        return self.shared + self.own

    def fit(self, freed: Tensor, *, scaled: bool) -> None:
        """Minimise −ℓ + ½ RIDGE (‖B‖² + ‖δ‖²) + ½ ‖log s‖² / SCALE².

        Args:
            freed: which values have effects of their own in every domain ``[K]``.
            scaled: whether the scales are fitted too; otherwise they stay as they are.
        """
        # In these coordinates the Hessian is near the identity.
        weight = 1 / self.targets.shape[1]
        root = torch.linalg.cholesky(
            weight * self.x.T @ self.x + self.ridge * _eye(self.x.shape[1])
        )
        units = (weight * torch.tensor(self.sizes, dtype=torch.float64) + RIDGE).sqrt()
        shared = root.T @ self.shared
        own = units[:, None, None] * self.own[:, freed]
        intercepts = units[:, None] * self.intercepts
        log_scales = self.log_scales.clone()
        parameters = [shared, own, intercepts, *[log_scales] * scaled]
        for each in parameters:
            each.requires_grad_()
        optimiser = torch.optim.LBFGS(
            parameters, max_iter=STEPS, tolerance_grad=1e-3, line_search_fn="strong_wolfe"
        )

        def update() -> None:
            self.shared = torch.linalg.solve_triangular(root.T, shared, upper=True)
            self.own = self.own.new_zeros(self.own.shape)
            self.own[:, freed] = own / units[:, None, None]
            self.intercepts = intercepts / units[:, None]
            self.log_scales = log_scales - log_scales.mean()  # B has the common scale

        def loss() -> Tensor:
            optimiser.zero_grad()
            update()
            penalty = self.ridge * self.shared.square().sum() + RIDGE * self.own.square().sum()
            penalty = penalty + self.log_scales.square().sum() / SCALE**2
            found = penalty / 2 - (self.targets * self.log_probabilities()).sum()
            found.backward()
            return found

        optimiser.step(loss)
        with torch.no_grad():
            update()

    def fit_ridge(self) -> None:
        """Fit the model without own effects and scales, with the ridge of the largest evidence.

        At its optimum the ridge is γ/‖B‖², where γ is the number of coefficients that the data
        determine (MacKay). With few rows for so many columns, a smaller one makes probabilities
        too extreme, and then tests find too much.
        """
        curvature = torch.linalg.eigvalsh(self.x.T @ self.x).clamp(min=0)
        none = torch.zeros(self.x.shape[1], dtype=torch.bool)
        for _ in range(RIDGES):
            self.fit(none, scaled=False)
            p = self.log_probabilities().exp()
            known = (1 - p.square().sum(1)).mean() / self.basis.shape[1] * curvature
            determined = self.basis.shape[1] * (known / (known + self.ridge)).sum()
            best = float(determined / self.shared.square().sum().clamp(min=ROUNDING))
            before, self.ridge = self.ridge, min(max(best, RIDGE), float(len(self.x)))
            if abs(math.log(self.ridge / before)) < SIMILAR:
                break

    def log_probabilities(self) -> Tensor:
        """Return log p ``[n, C]``."""
        effects = self.effects() * self.log_scales.exp()[:, None, None]
        parts = zip(self.x.split(self.sizes), effects, self.intercepts, strict=True)
        logits = torch.cat([x @ effect + intercept for x, effect, intercept in parts])
        return (logits @ self.basis.T).log_softmax(1)

    def scores_and_informations(self) -> tuple[Tensor, Tensor]:
        """Return U ``[E, D]`` and I ``[E, D, D]`` without intercepts and scales; D is K (C − 1)."""
        probabilities = self.log_probabilities().exp()
        residuals = (self.targets - probabilities) @ self.basis
        scores, informations = [], []
        for x, p, residual, effect, log_scale in zip(
            self.x.split(self.sizes),
            probabilities.split(self.sizes),
            residuals.split(self.sizes),
            self.effects(),
            self.log_scales,
            strict=True,
        ):
            design = torch.cat([x * log_scale.exp(), x.new_ones(len(x), 1)], 1)
            score, information = _score_and_information(design, residual, p, self.basis)
            score, information = _eliminate(
                score, information, slice(len(score) - residual.shape[1], None)
            )
            # The score of log s_e is that of all effects of the domain in proportion.
            u, v = score[: effect.numel()], information[: effect.numel(), : effect.numel()]
            along = v @ effect.reshape(-1)
            own = effect.reshape(-1) @ along + SCALE**-2
            scores.append(u - along * (u @ effect.reshape(-1) - log_scale / SCALE**2) / own)
            informations.append(v - along[:, None] * along / own)
        return torch.stack(scores), torch.stack(informations)


def _score_and_information(
    design: Tensor, residuals: Tensor, p: Tensor, basis: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ_i x_i ⊗ Qᵀ(y_i − p_i) and Σ_i x_i x_iᵀ ⊗ Qᵀ(diag p_i − p_i p_iᵀ)Q."""
    columns, contrasts = design.shape[1], basis.shape[1]
    projected = p @ basis
    found = design.new_empty(columns, contrasts, columns, contrasts)
    for a in range(contrasts):
        for b in range(a + 1):
            weight = p @ (basis[:, a] * basis[:, b]) - projected[:, a] * projected[:, b]
            found[:, a, :, b] = (design * weight[:, None]).T @ design
            found[:, b, :, a] = found[:, a, :, b]
    return (design.T @ residuals).reshape(-1), found.reshape(columns * contrasts, -1)


def _eliminate(score: Tensor, information: Tensor, place: slice) -> tuple[Tensor, Tensor]:
    """Return scores ``[…, D]`` and informations ``[…, D, D]`` if parameters are free; theirs are 0."""
    size = information[..., place, place].shape[-1]
    corner = information[..., place, place] + _tiny(information) * _eye(size)
    share = torch.linalg.solve(corner, information[..., place, :]).mT
    score = score - (share @ score[..., place, None])[..., 0]
    information = information - share @ information[..., place, :]
    score[..., place], information[..., place], information[..., place, :] = 0, 0, 0
    return score, information


def _tiny(information: Tensor) -> Tensor:
    """Return information that counts as none, beside the mean of a diagonal."""
    return ROUNDING * information.diagonal(dim1=-2, dim2=-1).mean().clamp(min=ROUNDING)


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def _contrasts(number: int) -> Tensor:
    """Return an orthonormal basis of the vectors that sum to zero, ``[number, number − 1]``."""
    found = torch.zeros(number, number - 1, dtype=torch.float64)
    for k in range(1, number):
        found[:k, k - 1] = -1 / math.sqrt(k * (k + 1))
        found[k, k - 1] = k / math.sqrt(k * (k + 1))
    return found


class _DomainScores:
    """Scores and informations of all domains, from which own effects of columns are taken."""

    def __init__(self, scores: Tensor, informations: Tensor) -> None:
        self.scores, self.informations = scores, informations
        total = informations.sum(0)
        self.inverse = torch.linalg.inv(total + _tiny(total) * _eye(len(total)))

    def without(self, place: slice) -> "_DomainScores":
        """Return those left if the effects at a place are free in every domain."""
        return _DomainScores(*_eliminate(self.scores, self.informations, place))

    def at(self, place: slice) -> tuple[Tensor, Tensor]:
        """Return u ``[E m]`` and V ``[E m, E m]`` of own effects, if the others are shared."""
        own = self.informations[:, place, place]
        cross = self.informations[:, :, place].permute(1, 0, 2).flatten(1).clone()  # [D, E m]
        pooled = self.scores.sum(0)
        cross[place], pooled[place] = 0, 0
        # H_rr − H_rg H_gg⁻¹ H_gr is the inverse of the information without the place g.
        solved = self.inverse @ torch.cat([cross, pooled[:, None]], 1)
        solved = solved - self.inverse[:, place] @ torch.linalg.solve(
            self.inverse[place, place], solved[place]
        )
        v = torch.block_diag(*own) - cross.T @ solved[:, :-1]
        return self.scores[:, place].reshape(-1) - cross.T @ solved[:, -1], (v + v.T) / 2


def _heterogeneity(u: Tensor, v: Tensor, num_domains: int) -> tuple[float, int]:
    """Return χ² of equal effects in all domains, and its degrees of freedom: the rank of V − 1."""
    units = v.diagonal().clamp(min=_tiny(v)).rsqrt()
    common = _eye(len(u) // num_domains).repeat(num_domains, 1)
    along = v @ common
    share = along @ torch.linalg.pinv(common.T @ along, hermitian=True)
    u = (u - share @ (common.T @ u)) * units
    values, directions = torch.linalg.eigh((v - share @ along.T) * units[:, None] * units)
    informed = values > math.sqrt(ROUNDING)
    squares = (directions.T @ u).square()[informed] / values[informed]
    return float(squares.sum()), int(informed.sum())


def _step_down(
    model: _PooledModel, places: Sequence[slice]
) -> tuple[list[float], dict[int, tuple[Tensor, Tensor]]]:
    """Return the p-values of all groups after Holm, and their effects with their covariances."""
    num_domains, contrasts = model.intercepts.shape
    flat = [slice(one.start * contrasts, one.stop * contrasts) for one in places]
    p_values, freed, lowest = [1.0] * len(places), list[int](), 0.0
    for step in range(FITS):
        chosen = torch.zeros(model.x.shape[1], dtype=torch.bool)
        for k in freed:
            chosen[places[k]] = True
        # Until unstable columns have effects of their own, they look like scales.
        model.fit(chosen, scaled=True) if step else model.fit_ridge()
        whole = tests = _DomainScores(*model.scores_and_informations())
        for k in freed:
            tests = tests.without(flat[k])
        left, new = [k for k in range(len(places)) if k not in freed], list[int]()
        while left:
            found = torch.tensor([_heterogeneity(*tests.at(flat[k]), num_domains) for k in left])
            statistic, freedom = found.double().T
            p = torch.special.gammaincc(freedom.clamp(min=1) / 2, statistic / 2)
            adjusted = (len(left) * p).clamp(min=lowest, max=1.0).tolist()
            for k, value in zip(left, adjusted, strict=True):
                p_values[k] = value
            best = int(_as_normal(statistic, freedom).argmax())
            if adjusted[best] > SIGNIFICANCE:
                break
            lowest = adjusted[best]
            new.append(left.pop(best))
            tests = tests.without(flat[new[-1]])
        freed += new
        if step and not new:
            break
    effects = {}
    for k, place in enumerate(flat):
        tests = whole
        for other in freed:
            tests = tests.without(flat[other]) if other != k else tests
        u, v = tests.at(place)
        own = model.own[:, places[k]].reshape(-1)
        covariance = torch.linalg.inv(v + RIDGE * _eye(len(v)))
        values = model.effects()[:, places[k]].reshape(-1) + covariance @ (u - RIDGE * own)
        effects[k] = values.reshape(num_domains, -1), covariance
    return p_values, effects


def _as_normal(statistic: Tensor, freedom: Tensor) -> Tensor:
    """Return χ² as a standard normal value (Wilson and Hilferty); it orders p-values that are 0."""
    part = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - 1 + part) / part.sqrt()
    return torch.where(freedom > 0, normal, -torch.inf)


def _judge(names: tuple[str, ...], p: float, effects: Tensor, covariance: Tensor) -> GroupEffects:
    """Return the judgement of a group's effects ``[E, m]``.

    Args:
        covariance: of the effects ``[E m, E m]``.
    """
    # A coefficient of two classes is b and −b, their log-odds 2b, and its norm √2 b.
    effects, covariance = math.sqrt(2) * effects, 2 * covariance
    num_domains, width = effects.shape
    spread = _spread(effects, covariance)
    blocks = covariance.reshape(num_domains, width, num_domains, width).diagonal(dim1=0, dim2=2)
    weights = 1 / (spread**2 + blocks.diagonal().sum(1))
    mean = weights @ effects / weights.sum()
    size = mean.norm().clamp(min=ROUNDING)
    direction = mean / size
    errors = torch.einsum("p,pqe,q->e", direction, blocks, direction).sqrt()
    along = effects @ direction
    turns = bool((along < -ERRORS * errors).any())
    much = spread > LITTLE and (turns or spread > SPREAD * float(size))
    # With one position and two classes an effect has a sign of its own.
    sign = -1 if width == 1 and direction[0] < 0 else 1
    return GroupEffects(
        names=names,
        p=p,
        effects=tuple((sign * along).tolist()),
        errors=tuple(errors.tolist()),
        mean=sign * float(size),
        spread=spread,
        turns=turns,
        flagged=p <= SIGNIFICANCE and much,
    )


def _spread(effects: Tensor, covariance: Tensor) -> float:
    """Return τ, the standard deviation of the effects without what chance explains.

    It is Paule and Mandel's: if effects have the covariance τ²/m beside their errors, Cochran's Q
    is as large as its degrees of freedom. With equal errors and m = 1, τ² is the variance of the
    effects, with E − 1 in the denominator, minus the squared error.
    """
    num_domains, width = effects.shape
    between = math.sqrt(width) * torch.kron(_contrasts(num_domains).T.contiguous(), _eye(width))
    errors, directions = torch.linalg.eigh(between @ covariance @ between.T)
    squares = (directions.T @ (between @ effects.reshape(-1))).square()
    low, high = 0.0, float(squares.sum())
    for _ in range(60):
        middle = (low + high) / 2
        if (squares / (errors.clamp(min=ROUNDING**2) + middle)).sum() > len(squares):
            low = middle
        else:
            high = middle
    return math.sqrt(low)
