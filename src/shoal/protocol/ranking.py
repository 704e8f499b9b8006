"""Ranks and averages over data sets, counted as the paper counts them: on what a table prints."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranking:
    """A method's ranks over the data sets in three numbers; smaller is better."""

    arithmetic: float
    geometric: float
    median: float


@dataclass(frozen=True)
class Mark:
    """How a number stands in its column: its place if that is 1 or 2, and whether ERM is better."""

    place: int | None = None
    worse: bool = False


def printed(value: float) -> str:
    """Return a number with one decimal, as Python rounds it; zero has no sign."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text


def ranks(values: Mapping[str, float], *, smallest_first: bool = False) -> dict[str, int]:
    """Return the place of each value, on numbers rounded to one decimal.

    Equal numbers share the best place and the next ones are skipped: 1, 2, 2, 4.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} has {value}, which has no rank; leave out what is missing")
    sign = -1 if smallest_first else 1
    shown = {name: sign * float(printed(value)) for name, value in values.items()}
    return {name: 1 + sum(other > own for other in shown.values()) for name, own in shown.items()}


def ranking(places: Sequence[int]) -> Ranking:
    """Return arithmetic mean, geometric mean and median of one method's ranks."""
    return Ranking(
        statistics.fmean(places), statistics.geometric_mean(places), statistics.median(places)
    )


def marks(
    values: Mapping[str, float], baseline: str, *, smallest_first: bool = False
) -> dict[str, Mark]:
    """Return the mark of each value of a column.

    Args:
        values: by method; a method without a number is left out.
        baseline: the method that others may be worse than; without a number of its own, none is.
        smallest_first: for a column of ranks.
    """
    places = ranks(values, smallest_first=smallest_first)
    limit = places.get(baseline, len(places))
    return {
        name: Mark(place if place <= 2 else None, place > limit) for name, place in places.items()
    }


def average(values: Mapping[str, float], without: Collection[str] = ()) -> float:
    """Return the mean over data sets; those of ``without`` do not count."""
    kept = [value for name, value in values.items() if name not in without]
    if not kept:
        raise ValueError(
            f"an average needs one data set or more, got {', '.join(values) or 'none'}"
        )
    return math.fsum(kept) / len(kept)
