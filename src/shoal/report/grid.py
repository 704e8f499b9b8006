"""What a view shows of a benchmark: a table as text and marks, and the published one beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..results.aggregation import Mark, Ranking, average, marks, printed, ranking, ranks

BASELINE = "erm"
"""The method that others may be worse than."""


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in percent and its standard error over trials; None of a single trial."""

    mean: float
    error: float | None = None

    def joint_errors(self, other: Accuracy) -> float | None:
        """Return how many joint standard errors this lies above the other, √(a² + b²) being one.

        None where an error is not known or both are zero.
        """
        if self.error is None or other.error is None:
            return None
        joint = math.hypot(self.error, other.error)
        return (self.mean - other.mean) / joint if joint else None


@dataclass(frozen=True)
class GridMethod:
    """One row: accuracies by data set, and the average where a publication prints its own."""

    name: str
    cells: Mapping[str, Accuracy]
    printed_average: float | None = None
    apart: bool = False
    """Whether a line is drawn above it."""


@dataclass(frozen=True)
class Benchmark:
    """Methods by key; `columns` maps a data set to its heading."""

    title: str
    label: str
    columns: Mapping[str, str]
    methods: Mapping[str, GridMethod]

    def ranks(self) -> dict[str, dict[str, int]]:
        """Return each method's place by data set, among those that have a cell there."""
        return {
            column: ranks(
                {key: cells[column] for key, cells in self._means().items() if column in cells}
            )
            for column in self.columns
        }

    def rankings(self) -> dict[str, Ranking]:
        """Return the means of the ranks of each method that has all cells."""
        places = self.ranks()
        return {
            key: ranking([places[column][key] for column in self.columns])
            for key in self._complete()
        }

    def averages(self, without: frozenset[str] = frozenset()) -> dict[str, float]:
        """Return the average of the cells of each method that has all of them, but for some."""
        wanted = set(self.columns) - without
        return {
            key: average(means, without)
            for key, means in self._means().items()
            if wanted <= means.keys()
        }

    def shown_averages(self) -> dict[str, float]:
        """Return the averages as published, and those of the cells where none was."""
        published = {key: method.printed_average for key, method in self.methods.items()}
        return {
            key: own if (given := published[key]) is None else given
            for key, own in self.averages().items()
        }

    def _means(self) -> dict[str, dict[str, float]]:
        return {
            key: {c: method.cells[c].mean for c in self.columns if c in method.cells}
            for key, method in self.methods.items()
        }

    def _complete(self) -> dict[str, dict[str, float]]:
        return {k: means for k, means in self._means().items() if len(means) == len(self.columns)}


MISSING = "–"
SUMMARY: tuple[str, ...] = ("Avg", "Arith. mean", "Geom. mean", "Median")
"""Headings after the data sets: the average accuracy, and three means of the ranks."""


@dataclass(frozen=True)
class GridEntry:
    """One cell: a number as text, its error as text, and its mark."""

    text: str = MISSING
    error: str = ""
    mark: Mark = field(default_factory=Mark)


@dataclass(frozen=True)
class GridLine:
    """One row as text: its name, an entry per data set, and the entries of the summary."""

    name: str
    cells: tuple[GridEntry, ...]
    summary: tuple[GridEntry, ...]
    apart: bool


@dataclass(frozen=True)
class Grid:
    """A table as text; `summary` is empty where there is nothing to sum up.

    `smallest` are the headings of the summary whose smallest number is the best.
    """

    title: str
    label: str
    columns: tuple[str, ...]
    summary: tuple[str, ...]
    lines: tuple[GridLine, ...]
    smallest: tuple[str, ...] = ()

    @property
    def ranked(self) -> bool:
        """Whether the summary has means of the ranks."""
        return self.summary == SUMMARY


@dataclass(frozen=True)
class ExtraColumn:
    """A column beside the average: a number and its error for each method that has them."""

    heading: str
    cells: Mapping[str, Accuracy]
    smallest_first: bool = False


def grid(benchmark: Benchmark, *, further: Sequence[ExtraColumn] | None = None) -> Grid:
    """Return accuracies with errors, the average and the ranking, each number with its mark.

    Args:
        further: columns in place of the ranking, where the benchmark's own are no data sets and
            ranks over them mean nothing.
    """
    columns = [_entries(_cells(benchmark, column)) for column in benchmark.columns]
    averages = _summed(benchmark.shown_averages())
    if further is None:
        headings, smallest, beside_it = SUMMARY[1:], SUMMARY[1:], _ranking(benchmark)
    else:
        headings = tuple(one.heading for one in further)
        smallest = tuple(one.heading for one in further if one.smallest_first)
        beside_it = [_entries(one.cells, smallest_first=one.smallest_first) for one in further]
    summary = [averages, *beside_it]
    lines = tuple(
        GridLine(
            method.name,
            tuple(column.get(key, GridEntry()) for column in columns),
            tuple(column.get(key, GridEntry()) for column in summary),
            method.apart,
        )
        for key, method in benchmark.methods.items()
    )
    shown = tuple(benchmark.columns.values())
    title, label = benchmark.title, benchmark.label
    return Grid(title, label, shown, (SUMMARY[0], *headings), lines, smallest)


def beside(ours: Benchmark, published: Benchmark) -> Grid | None:
    """Return the published cells of our methods and columns; None where there are none.

    In brackets stands our accuracy less the published one, in joint standard errors.
    """

    def entry(key: str, column: str) -> GridEntry:
        cell = published.methods[key].cells.get(column)
        if cell is None:
            return GridEntry()
        mine = ours.methods[key].cells.get(column)
        gap = None if mine is None else mine.joint_errors(cell)
        error = "" if cell.error is None else printed(cell.error)
        return GridEntry(printed(cell.mean), error if gap is None else f"{error} ({signed(gap)})")

    lines = tuple(
        GridLine(
            method.name, tuple(entry(key, column) for column in ours.columns), (), method.apart
        )
        for key, method in ours.methods.items()
        if key in published.methods
    )
    if all(cell == GridEntry() for line in lines for cell in line.cells):
        return None
    title = f"{published.title}; in brackets ours less it, in joint standard errors"
    return Grid(title, f"{ours.label}-published", tuple(ours.columns.values()), (), lines)


def _cells(benchmark: Benchmark, column: str) -> dict[str, Accuracy]:
    return {key: m.cells[column] for key, m in benchmark.methods.items() if column in m.cells}


def _entries(
    cells: Mapping[str, Accuracy], *, smallest_first: bool = False
) -> dict[str, GridEntry]:
    means = {key: cell.mean for key, cell in cells.items()}
    marked = marks(means, BASELINE, smallest_first=smallest_first)
    return {
        key: GridEntry(
            printed(cell.mean), "" if cell.error is None else printed(cell.error), marked[key]
        )
        for key, cell in cells.items()
    }


def _ranking(benchmark: Benchmark) -> list[dict[str, GridEntry]]:
    found = benchmark.rankings()
    arithmetic = {key: one.arithmetic for key, one in found.items()}
    geometric = {key: one.geometric for key, one in found.items()}
    median = {key: one.median for key, one in found.items()}
    return [
        _summed(arithmetic, smallest_first=True),
        _summed(geometric, smallest_first=True),
        _summed(median, smallest_first=True, show="{:g}".format),
    ]


def _summed(
    values: Mapping[str, float],
    *,
    smallest_first: bool = False,
    show: Callable[[float], str] = printed,
) -> dict[str, GridEntry]:
    marked = marks(values, BASELINE, smallest_first=smallest_first)
    return {key: GridEntry(show(value), mark=marked[key]) for key, value in values.items()}


def signed(value: float) -> str:
    """Return a number with one decimal and its sign; zero has none."""
    text = printed(value)
    return f"+{text}" if float(text) > 0 else text.replace("-", "−")
