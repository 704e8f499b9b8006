"""Stability: the columns of a table whose effect on the class differs between domains.

A column is flagged if it differs significantly (``heterogeneity``) and by much: with many rows,
differences that matter to nobody are significant. Its effects differ by much if their standard
deviation over the domains is above a quarter of their mean, or if their sign changes. This must
hold for the effects as they are, and for the effects without the common scale of each domain. A
domain with noisy labels has smaller effects of all columns, and that is not a fault of a column.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .column_groups import EVENTS, ColumnGroup, group_columns, standardise, taking_part
from .heterogeneity import SIGNIFICANCE, DomainEffects, find_heterogeneity
from .pooled_model import contrasts

# The standard deviation of the effects over their mean that counts as much.
SPREAD = 0.25
# The standard deviation of the effects that counts as little: log-odds for one standard deviation
# of the column.
LITTLE = 0.1
# A sign changes if an effect is so many standard errors on the other side of zero.
ERRORS = 2.0
# Halvings of the interval in which the spread of the effects is looked for.
BISECTIONS = 60
# A mean effect below this is 0.
NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True)
class ColumnStability:
    """The effects of one column by domain, and whether they are stable.

    Args:
        group: the columns that count as one with it, itself included.
        p: the p-value of equal effects in all domains, after Holm.
        effects: by domain, for one standard deviation of the column. With two classes they are
            log-odds of the second class. With more, or for a category, they are sizes along the
            mean effect.
        errors: the standard errors of the effects.
        spread: the standard deviation of the effects over their mean, without what chance
            explains, and without the domains' scales if that is less.
        turns: whether the effect has the other sign in some domain.
        flagged: whether the column is unstable.
        why: how the effects differ; empty if they do not differ significantly.
    """

    name: str
    group: tuple[str, ...]
    p: float
    effects: Mapping[str, float]
    errors: Mapping[str, float]
    spread: float
    turns: bool
    flagged: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class Stability:
    """The stability of the columns of a table.

    Args:
        columns: those that were tested, in the order of the table.
        scales: the common scale of all effects, by domain that took part.
        absent: the other domains, and why they took no part.
        note: why no column was tested; empty if some were.
    """

    columns: tuple[ColumnStability, ...]
    scales: Mapping[str, float]
    absent: Mapping[str, str]
    note: str = ""

    @property
    def flagged(self) -> tuple[str, ...]:
        """The names of the unstable columns."""
        return tuple(column.name for column in self.columns if column.flagged)

    def as_json(self) -> dict[str, Any]:
        """Return the stability as plain values."""
        return asdict(self)


def flagged_columns(
    vectors: Tensor, labels: Tensor, domains: Tensor, columns: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """Return the names of the unstable columns; see ``column_stability``."""
    return column_stability(vectors, labels, domains, columns).flagged


def column_stability(
    vectors: Tensor,
    labels: Tensor,
    domains: Tensor,
    columns: Mapping[str, Sequence[int]],
    domain_names: Sequence[str] | None = None,
) -> Stability:
    """Return the stability of every column; a note says why if nothing can be tested.

    Args:
        vectors: encoded rows ``[n, d]``; a missing number is NaN.
        labels: classes ``[n]``, from 0.
        domains: the domain of every row ``[n]``, from 0.
        columns: the positions of every column in a vector, as ``Encoding.positions`` gives them.
        domain_names: by default their numbers.
    """
    if not len(vectors) == len(labels) == len(domains):
        raise ValueError(
            "vectors, labels and domains must have one entry for every row, got "
            f"{len(vectors)}, {len(labels)} and {len(domains)}"
        )
    part = taking_part(labels, domains)
    name = str if domain_names is None else domain_names.__getitem__
    absent = {name(e): f"fewer than {EVENTS} rows of a class" for e in part.absent}
    if part.note:
        return Stability(columns=(), scales={}, absent=absent, note=part.note)
    rows, places = standardise(vectors, labels, domains, columns, part)
    if not places:
        note = "no column varies within the domains"
        return Stability(columns=(), scales={}, absent=absent, note=note)
    tests, p_values = find_heterogeneity(rows, group_columns(rows.x, places))
    names = [name(e) for e in part.domains]
    found = dict[str, ColumnStability]()
    for k, p in enumerate(p_values):
        informed = tests.informed(k)
        mine = [one for one, has in zip(names, informed, strict=True) if has]
        plain, scaled = (_only(tests.effects(k, scaled=each), informed) for each in (False, True))
        for column in _judge(tests.groups[k], p, plain, scaled, mine):
            found[column.name] = column
    return Stability(
        columns=tuple(found[name] for name in columns if name in found),
        scales=dict(zip(names, tests.model.log_scales.exp().tolist(), strict=True)),
        absent=absent,
    )


def _only(effects: DomainEffects, domains: Tensor) -> DomainEffects:
    covariance = effects.covariance[domains][:, :, domains]
    return DomainEffects(effects.values[domains], covariance, effects.metric)


def _judge(
    group: ColumnGroup,
    p: float,
    plain: DomainEffects,
    scaled: DomainEffects,
    domains: Sequence[str],
) -> list[ColumnStability]:
    """Return the judgement of a group, for each of its columns.

    Args:
        plain, scaled: its effects without and with the scales of the domains.
    """
    summaries = [_summarise(plain), _summarise(scaled)]
    spread = min(summary.spread / summary.size for summary in summaries)
    turns = all(summary.turns for summary in summaries)
    little = min(summary.spread for summary in summaries) < LITTLE
    flagged = p <= SIGNIFICANCE and not little and (turns or spread > SPREAD)
    shown = summaries[1]
    # With one direction and two classes an effect has a sign of its own.
    sign = shown.sign if scaled.values.shape[1] == 1 else 1
    found = []
    for name, own in zip(group.names, group.signs, strict=True):
        effects = dict(zip(domains, (shown.along * sign * own).tolist(), strict=True))
        found.append(
            ColumnStability(
                name=name,
                group=group.names,
                p=p,
                effects=effects,
                errors=dict(zip(domains, shown.errors.tolist(), strict=True)),
                spread=spread,
                turns=turns,
                flagged=flagged,
                why=_why(effects, turns, flagged) if p <= SIGNIFICANCE else "",
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class _Summary:
    """The effects of a group along their mean.

    Args:
        size, sign: of the mean; the sign is that of its first entry.
        spread: the standard deviation of the effects.
        along, errors: the effects along the mean and their standard errors ``[E]``.
        turns: whether an effect has the other sign.
    """

    size: float
    sign: int
    spread: float
    along: Tensor
    errors: Tensor
    turns: bool


def _summarise(effects: DomainEffects) -> _Summary:
    """Return the summary; the mean weights a domain by 1/(spread² + its error²)."""
    metric, spread = effects.metric, _spread(effects)
    errors = torch.einsum("epeq->epq", effects.covariance)
    weights = 1 / (spread**2 + torch.einsum("epq,pq->e", errors, metric))
    mean = weights @ effects.values / weights.sum()
    size = (mean @ metric @ mean).sqrt().clamp(min=NOTHING)
    direction = metric @ mean / size
    along = effects.values @ direction
    error = torch.einsum("p,epq,q->e", direction, errors, direction).sqrt()
    return _Summary(
        size=float(size),
        sign=-1 if mean[0] < 0 else 1,
        spread=spread,
        along=along,
        errors=error,
        turns=bool((along < -ERRORS * error).any()),
    )


def _spread(effects: DomainEffects) -> float:
    """Return τ, the standard deviation of the effects without what chance explains.

    It is Paule and Mandel's: if effects have the covariance τ² metric⁻¹/m beside their errors,
    Cochran's Q is as large as its degrees of freedom. With equal errors τ² is the variance of the
    effects, with E − 1 in the denominator, minus the squared error.
    """
    num_domains, width = effects.values.shape
    if num_domains < 2:
        return 0.0
    root = torch.linalg.cholesky(effects.metric * width).T.contiguous()
    between = torch.kron(contrasts(num_domains).T.contiguous(), root)
    covariance = effects.covariance.reshape(num_domains * width, -1)
    errors, directions = torch.linalg.eigh(between @ covariance @ between.T)
    squares = (directions.T @ (between @ effects.values.reshape(-1))).square()
    errors = errors.clamp(min=NOTHING**2)
    low, high = 0.0, float(squares.sum())
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if (squares / (errors + middle)).sum() > len(squares):
            low = middle
        else:
            high = middle
    return math.sqrt(low)


def _why(effects: Mapping[str, float], turns: bool, flagged: bool) -> str:
    least, most = min(effects, key=effects.__getitem__), max(effects, key=effects.__getitem__)
    found = (
        f"its effect {'turns' if turns else 'goes'} from {effects[most]:+.2f} in {most!r} to "
        f"{effects[least]:+.2f} in {least!r}"
    )
    return found if flagged else f"{found}, which is little"
