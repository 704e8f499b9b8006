"""Aggregation: means and standard errors over trials, paired comparisons, ranks."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .selection import Choice


@dataclass(frozen=True)
class TrialMean:
    """A mean over trials and its standard error as in DomainBed: population deviation / √trials."""

    mean: float
    error: float
    trials: int

    @staticmethod
    def of(values: Sequence[float]) -> "TrialMean":
        mean, n = fmean(values), len(values)
        # Not statistics.pstdev, which raises on NaN.
        return TrialMean(mean, math.sqrt(fmean((value - mean) ** 2 for value in values) / n), n)


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One method on one data set.

    ``domains`` has a cell for each test domain. ``average`` is the mean over them, first within a
    trial, then over trials. ``worst`` is the accuracy on the worst domain of a trial. The last
    three are None if a test domain is missing in some trial, or its accuracy is not a number.
    """

    dataset: str
    algorithm: str
    domains: Mapping[str, TrialMean]
    average: TrialMean | None = None
    worst: TrialMean | None = None
    calibration_error: TrialMean | None = None


def rows_of(choices: Iterable[Choice], domains: Mapping[str, Sequence[str]]) -> list[MethodRow]:
    """Return a row for each data set and method.

    Args:
        domains: all test domains of each data set; the average needs every one of them.
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
        return MethodRow(dataset=dataset, algorithm=algorithm, domains=cells)
    found = [[mine[domain] for domain in domains] for mine in trials.values()]
    errors = [fmean(one.calibration_error for one in trial) for trial in found]
    return MethodRow(
        dataset=dataset,
        algorithm=algorithm,
        domains=cells,
        average=TrialMean.of([fmean(one.accuracy for one in trial) for trial in found]),
        worst=TrialMean.of([min(one.accuracy for one in trial) for trial in found]),
        calibration_error=TrialMean.of(errors),
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The accuracy of one method minus that of another, on the same splits and batches.

    ``difference`` is the mean over the ``pairs`` for which both have a number, ``error`` its
    standard error (n − 1). Of the pairs, the first method has ``wins`` and ``losses``.
    """

    difference: float
    error: float
    wins: int
    losses: int
    pairs: int

    @property
    def p(self) -> float:
        """The two-sided p-value of the sign test, which ignores ties."""
        n, fewer = self.wins + self.losses, min(self.wins, self.losses)
        tail = sum(math.comb(n, k) for k in range(fewer + 1))
        return min(1.0, 2 * tail / (1 << n))


def compare(choices: Iterable[Choice], method: str, other: str) -> Comparison:
    """Return the comparison of two methods; a pair is a (data set, test domain, trial)."""
    found = _both(choices, method, other)
    if len(found) < 2:
        raise ValueError(
            f"a comparison needs two or more (data set, test domain, trial) with results of both "
            f"{method} and {other}, got {len(found)}"
        )
    return _comparison([mine - theirs for mine, theirs in found.values()])


def compare_over_domains(choices: Iterable[Choice], method: str, other: str) -> Comparison:
    """Return the comparison of two methods; a pair is a (data set, test domain).

    The trials of a domain are averaged first: they are no new domains, and to count them as such
    makes the error too small for a domain that was never seen.
    """
    domains: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (dataset, domain, _), pair in _both(choices, method, other).items():
        domains.setdefault((dataset, domain), []).append(pair)
    if len(domains) < 2:
        raise ValueError(
            f"a comparison over domains needs two or more with results of both {method} and "
            f"{other}, got {len(domains)}"
        )
    means = [[fmean(values) for values in zip(*found, strict=True)] for found in domains.values()]
    return _comparison([mine - theirs for mine, theirs in means])


def _both(
    choices: Iterable[Choice], method: str, other: str
) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Return the accuracies at every (data set, test domain, trial) that both methods have."""
    found: dict[str, dict[tuple[str, str, int], float]] = {method: {}, other: {}}
    for choice in choices:
        if choice.algorithm in found and not math.isnan(choice.accuracy):
            place = (choice.dataset, choice.test_domain, choice.trial)
            found[choice.algorithm][place] = choice.accuracy
    both = sorted(found[method].keys() & found[other].keys())
    return {place: (found[method][place], found[other][place]) for place in both}


def _comparison(gaps: Sequence[float]) -> Comparison:
    mean = fmean(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Comparison(
        difference=mean,
        error=math.sqrt(variance / len(gaps)),
        wins=wins,
        losses=losses,
        pairs=len(gaps),
    )


@dataclass(frozen=True)
class Ranking:
    """Three means of a method's ranks over the data sets; smaller is better."""

    arithmetic: float
    geometric: float
    median: float


@dataclass(frozen=True)
class Mark:
    """The mark of a number in its column: its place if 1 or 2, and whether ERM is better."""

    place: int | None = None
    worse: bool = False


def one_decimal(value: float) -> str:
    """Return a number with one decimal, as Python rounds it; zero has no sign."""
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text


def ranks(values: Mapping[str, float], *, smallest_first: bool = False) -> dict[str, int]:
    """Return the place of each value, on numbers rounded to one decimal.

    Equal numbers share the best place and the next ones are skipped: 1, 2, 2, 4.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} has {value}, which has no rank; omit missing values")
    sign = -1 if smallest_first else 1
    shown = {name: sign * float(one_decimal(value)) for name, value in values.items()}
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
        values: by method; omit methods without a number.
        baseline: the method that others are compared with; without it, none is marked as worse.
        smallest_first: for a column of ranks.
    """
    places = ranks(values, smallest_first=smallest_first)
    limit = places.get(baseline, len(places))
    return {
        name: Mark(place if place <= 2 else None, place > limit) for name, place in places.items()
    }


def average(values: Mapping[str, float], without: Collection[str] = ()) -> float:
    """Return the mean over data sets, without those of ``without``."""
    kept = [value for name, value in values.items() if name not in without]
    if not kept:
        raise ValueError(
            f"an average needs one data set or more, got {', '.join(values) or 'none'}"
        )
    return math.fsum(kept) / len(kept)
