"""From choices to cells: means and standard errors over trials, as DomainBed reports them."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .selection import Choice


@dataclass(frozen=True)
class TrialMean:
    """A mean over trials and its standard error: the population's deviation over √trials."""

    mean: float
    error: float
    trials: int

    @staticmethod
    def of(values: Sequence[float]) -> "TrialMean":
        mean, n = fmean(values), len(values)
        # Not statistics.pstdev, which knows no NaN.
        return TrialMean(mean, math.sqrt(fmean((value - mean) ** 2 for value in values) / n), n)


@dataclass(frozen=True)
class MethodRow:
    """One method on one data set.

    ``domains`` has a cell for each test domain, ``average`` is over them: first within a trial,
    then over trials. ``worst`` is the accuracy on a trial's worst domain. None where a test domain
    is missing in some trial, or its accuracy is not a number.
    """

    dataset: str
    algorithm: str
    domains: Mapping[str, TrialMean]
    average: TrialMean | None
    worst: TrialMean | None
    calibration_error: TrialMean | None


def rows_of(choices: Iterable[Choice], domains: Mapping[str, Sequence[str]]) -> list[MethodRow]:
    """Return a row for each data set and method.

    Args:
        domains: all test domains of each data set: without one of them there is no average.
    """
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices:
        groups.setdefault((choice.dataset, choice.algorithm), []).append(choice)
    return [
        _row(dataset, algorithm, mine, domains[dataset])
        for (dataset, algorithm), mine in groups.items()
    ]


def _row(
    dataset: str, algorithm: str, choices: Sequence[Choice], domains: Sequence[str]
) -> MethodRow:
    trials: dict[int, dict[str, Choice]] = {}
    for choice in choices:
        trials.setdefault(choice.trial, {})[choice.test_domain] = choice
    cells = {}
    for domain in domains:
        values = [mine[domain].accuracy for mine in trials.values() if domain in mine]
        if values:
            cells[domain] = TrialMean.of(values)
    incomplete = any(set(mine) != set(domains) for mine in trials.values())
    if incomplete or any(math.isnan(cell.mean) for cell in cells.values()):
        return MethodRow(dataset, algorithm, cells, None, None, None)
    found = [[mine[domain] for domain in domains] for mine in trials.values()]
    return MethodRow(
        dataset,
        algorithm,
        cells,
        TrialMean.of([fmean(one.accuracy for one in trial) for trial in found]),
        TrialMean.of([min(one.accuracy for one in trial) for trial in found]),
        TrialMean.of([fmean(one.calibration_error for one in trial) for trial in found]),
    )


@dataclass(frozen=True)
class Comparison:
    """How much better one method is than another, over the same splits and batches.

    ``difference`` is the mean over all (data set, test domain, trial) that both have a number for,
    ``error`` its standard error (n − 1), ``wins`` and ``losses`` how many of the ``pairs`` it wins
    and loses.
    """

    difference: float
    error: float
    wins: int
    losses: int
    pairs: int

    @property
    def p(self) -> float:
        """The two-sided p-value of the sign test, which leaves out pairs that are equal."""
        n, fewer = self.wins + self.losses, min(self.wins, self.losses)
        tail = sum(math.comb(n, k) for k in range(fewer + 1))
        return min(1.0, 2 * tail / (1 << n))


def compare(choices: Iterable[Choice], method: str, other: str) -> Comparison:
    """Return the paired comparison of two methods."""
    found: dict[str, dict[tuple[str, str, int], float]] = {method: {}, other: {}}
    for choice in choices:
        if choice.algorithm in found and not math.isnan(choice.accuracy):
            place = (choice.dataset, choice.test_domain, choice.trial)
            found[choice.algorithm][place] = choice.accuracy
    both = found[method].keys() & found[other].keys()
    if len(both) < 2:
        raise ValueError(
            f"{method} and {other} share {len(both)} of (data set, test domain, trial); "
            "a comparison needs two or more"
        )
    gaps = [found[method][place] - found[other][place] for place in sorted(both)]
    mean = fmean(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Comparison(mean, math.sqrt(variance / len(gaps)), wins, losses, len(gaps))


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
