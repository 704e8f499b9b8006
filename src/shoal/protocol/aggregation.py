"""From choices to cells: means and standard errors over trials, as DomainBed reports them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .selection import Choice


@dataclass(frozen=True)
class Cell:
    """A mean over trials and its standard error: the population's deviation over √trials."""

    mean: float
    error: float
    trials: int

    @staticmethod
    def of(values: Sequence[float]) -> "Cell":
        mean, n = fmean(values), len(values)
        # Not statistics.pstdev, which knows no NaN.
        return Cell(mean, math.sqrt(fmean((value - mean) ** 2 for value in values) / n), n)


@dataclass(frozen=True)
class Row:
    """One method on one data set.

    ``domains`` has a cell for each test domain, ``average`` is over them: first within a trial,
    then over trials. ``worst`` is the accuracy on a trial's worst domain. None where a test domain
    is missing in some trial, or its accuracy is not a number.
    """

    dataset: str
    algorithm: str
    domains: Mapping[str, Cell]
    average: Cell | None
    worst: Cell | None
    calibration_error: Cell | None


def rows_of(choices: Iterable[Choice], domains: Mapping[str, Sequence[str]]) -> list[Row]:
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


def _row(dataset: str, algorithm: str, choices: Sequence[Choice], domains: Sequence[str]) -> Row:
    trials: dict[int, dict[str, Choice]] = {}
    for choice in choices:
        trials.setdefault(choice.trial, {})[choice.test_domain] = choice
    cells = {}
    for domain in domains:
        values = [mine[domain].accuracy for mine in trials.values() if domain in mine]
        if values:
            cells[domain] = Cell.of(values)
    incomplete = any(set(mine) != set(domains) for mine in trials.values())
    if incomplete or any(math.isnan(cell.mean) for cell in cells.values()):
        return Row(dataset, algorithm, cells, None, None, None)
    found = [[mine[domain] for domain in domains] for mine in trials.values()]
    return Row(
        dataset,
        algorithm,
        cells,
        Cell.of([fmean(one.accuracy for one in trial) for trial in found]),
        Cell.of([min(one.accuracy for one in trial) for trial in found]),
        Cell.of([fmean(one.calibration_error for one in trial) for trial in found]),
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
