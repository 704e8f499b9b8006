"""Column groups: the rows and columns of a table that can be tested, standardised and grouped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .pooled_model import DomainRows

# Rows of every class that a domain needs to take part, and rows in which a column must differ from
# its most frequent value.
EVENTS = 10
# Columns that correlate more than this within the domains count as one.
CORRELATION = 0.9
# Deviations from the median count up to so many standard deviations, robustly from the quartiles.
LARGEST, NORMAL_QUARTILES = 5.0, 1.349
# Variances below this share of the largest possible one are rounding.
ROUNDING = 1e-8


@dataclass(frozen=True)
class TakingPart:
    """The domains and classes that take part, and the rows of both, sorted by domain.

    Args:
        absent: the domains that take no part.
        note: why nothing can be tested; empty if something can.
    """

    domains: list[int]
    classes: list[int]
    rows: Tensor
    absent: list[int]
    note: str


def taking_part(labels: Tensor, domains: Tensor) -> TakingPart:
    """Return the domains with ``EVENTS`` rows of every class.

    A class that half of the domains lack would keep these out, so its rows take no part instead.
    """
    if not len(labels):
        return TakingPart([], [], labels, [], "there are no rows")
    counts = torch.zeros(int(domains.max()) + 1, int(labels.max()) + 1, dtype=torch.long)
    counts.index_put_((domains, labels), torch.ones_like(labels), accumulate=True)
    present, enough = counts.sum(1) > 0, counts >= EVENTS
    classes = 2 * enough[present].sum(0) > present.sum()
    chosen = present & enough[:, classes].all(1)
    inside = (chosen[domains] & classes[labels]).nonzero()[:, 0]
    found = TakingPart(
        domains=_places(chosen),
        classes=_places(classes),
        rows=inside[domains[inside].argsort(stable=True)],
        absent=_places(present & ~chosen),
        note="",
    )
    if len(found.classes) < 2:
        note = f"fewer than two classes have {EVENTS} rows in more than half of the domains"
        return replace(found, note=note)
    if len(found.domains) < 2:
        return replace(found, note=f"fewer than two domains have {EVENTS} rows of every class")
    return found


def _places(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found


def standardise(
    vectors: Tensor,
    labels: Tensor,
    domains: Tensor,
    columns: Mapping[str, Sequence[int]],
    part: TakingPart,
) -> tuple[DomainRows, dict[str, range]]:
    """Return uncorrelated values of unit variance for every column that varies, and their places.

    Means and variances are those within the domains. A missing number is its domain's mean. The
    values of a category, of which one follows from the others, become one place fewer.
    """
    sizes = tuple(int((domains[part.rows] == e).sum()) for e in part.domains)
    values = vectors[part.rows].double()
    values.masked_fill_(values.isinf(), torch.nan)
    varied, limits = _variation(values)
    for mine in values.split(sizes):  # views
        mine -= mine.nanmedian(0).values
        mine.clamp_(-limits, limits)
        mine -= mine.nanmean(0)
    values.nan_to_num_(0.0)
    places, found, begin = dict[str, range](), [values[:, :0]], 0
    for name, positions in columns.items():
        whitened = _whiten(values[:, [k for k in positions if varied[k]]])
        if whitened.shape[1]:
            places[name] = range(begin, begin + whitened.shape[1])
            found.append(whitened)
            begin = places[name].stop
    numbers = torch.full((int(labels.max()) + 1,), -1)
    numbers[part.classes] = torch.arange(len(part.classes))
    x = torch.cat(found, 1)
    return DomainRows(x, numbers[labels[part.rows]], sizes, len(part.classes)), places


def _variation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return which positions vary, and the largest deviation from the median that counts.

    A few extreme rows would decide a test alone. If most rows have one value, the quartiles are
    those of the other rows.
    """
    others = torch.where(values == values.nanmedian(0).values, torch.nan, values)
    width = _quartile_range(values)
    narrow = width == 0
    width[narrow] = _quartile_range(others[:, narrow])
    limits = LARGEST * width / NORMAL_QUARTILES
    varied = (~others.isnan()).sum(0) >= EVENTS
    return varied, torch.where(limits > 0, limits, torch.inf)


def _quartile_range(values: Tensor) -> Tensor:
    """Return the distance of the quartiles of each column, without missing values."""
    ordered = values.T.contiguous().sort(1).values  # NaN last
    last = (~values.isnan()).sum(0).clamp(min=1) - 1
    low, high = (ordered.gather(1, (last * k // 4)[:, None])[:, 0] for k in (1, 3))
    return (high - low).nan_to_num(0.0)


def _whiten(values: Tensor) -> Tensor:
    """Return uncorrelated combinations of unit variance; none of what does not vary."""
    deviation = values.square().mean(0).sqrt()
    values = values[:, deviation > 0] / deviation[deviation > 0]
    if values.shape[1] < 2:
        return values
    directions, variances = _principal(values.T @ values / len(values))
    return values @ directions / variances.sqrt()


def _principal(correlations: Tensor) -> tuple[Tensor, Tensor]:
    """Return the principal directions, the largest first, and their variances.

    The last entry of a direction that is not zero is positive. Directions without variance are
    left out.
    """
    variances, directions = torch.linalg.eigh(correlations)
    kept = (variances > ROUNDING * len(correlations)).nonzero()[:, 0].flip(0)
    variances, directions = variances[kept], directions[:, kept]
    last = len(directions) - 1 - (directions.abs() > ROUNDING).flip(0).double().argmax(0)
    return directions * directions.gather(0, last[None]).sign(), variances


@dataclass(frozen=True)
class ColumnGroup:
    """Columns that count as one, and the directions in which their effect is tested.

    Args:
        names: of the columns.
        signs: of each column's correlation with the direction; 1 if there are several directions.
        positions: of the columns in x, ``[k]``.
        directions: x[:, positions] @ directions are the tested values, ``[k, q]``.
        loadings: the correlations of the positions with these values, ``[k, q]``.
    """

    names: tuple[str, ...]
    signs: tuple[int, ...]
    positions: Tensor
    directions: Tensor
    loadings: Tensor

    def embedded(self, columns: int) -> Tensor:
        """Return the directions among all columns of x, ``[columns, q]``."""
        found = self.directions.new_zeros(columns, self.directions.shape[1])
        found[self.positions] = self.directions
        return found


def group_columns(x: Tensor, places: Mapping[str, range]) -> list[ColumnGroup]:
    """Return the groups of correlated columns, in the order of their first columns.

    Again and again, the column with the most neighbours and those neighbours become a group. So all
    columns of a group correlate with one of them, and a chain of neighbours is no group.
    """
    correlations = x.T @ x / len(x)
    near = _near(correlations, list(places.values()))
    names, found = list(places), list[ColumnGroup]()
    neighbours = near.sum(1)
    while neighbours.max() > 0:
        members = _places(near[neighbours.argmax()])
        neighbours -= near[:, members].sum(1)
        neighbours[members] = 0
        near[:, members] = False
        found.append(_make_group({names[k]: places[names[k]] for k in members}, correlations))
    return sorted(found, key=lambda group: int(group.positions[0]))


def _near(correlations: Tensor, places: Sequence[range]) -> Tensor:
    """Return which columns correlate, in every direction of the one with fewer of them."""
    owner = torch.cat([torch.full((len(place),), k) for k, place in enumerate(places)])
    squares = correlations.new_zeros(len(places), len(correlations))
    squares.index_add_(0, owner, correlations.square())
    shared = correlations.new_zeros(len(places), len(places))
    shared.index_add_(1, owner, squares)
    widths = torch.tensor([len(place) for place in places])
    narrower = torch.minimum(widths[:, None], widths)
    # The sum of all squared canonical correlations; the smallest is asked for.
    near = shared > CORRELATION**2 * narrower
    for a, b in (near & (narrower > 1)).nonzero().tolist():
        between = correlations[places[a].start : places[a].stop, places[b].start : places[b].stop]
        near[a, b] = torch.linalg.svdvals(between).min() > CORRELATION
    return near


def _make_group(members: Mapping[str, range], correlations: Tensor) -> ColumnGroup:
    positions = torch.tensor([k for place in members.values() for k in place])
    if len(members) == 1:
        same = torch.eye(len(positions), dtype=torch.float64)
        return ColumnGroup(tuple(members), (1,), positions, same, same)
    width = max(map(len, members.values()))
    directions, variances = _principal(correlations[positions][:, positions])
    directions, variances = directions[:, :width], variances[:width]
    loadings = directions * variances.sqrt()
    signs = [int(sign) if width == 1 else 1 for sign in loadings[:, 0].sign()]
    return ColumnGroup(
        names=tuple(members),
        signs=tuple(signs[: len(members)]),
        positions=positions,
        directions=directions / variances.sqrt(),
        loadings=loadings,
    )
