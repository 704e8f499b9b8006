"""Grids: tables of accuracies as text, with ranks and marks, ours or published."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..results.aggregation import Mark, Ranking, average, marks, one_decimal, ranking, ranks

# The method that all others are compared with.
BASELINE = "erm"


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in percent and its standard error over trials; no error for a single trial."""

    mean: float
    error: float | None = None

    def joint_errors(self, other: "Accuracy") -> float | None:
        """Return this minus the other in joint standard errors, √(a² + b²) being one.

        None if an error is not known or both are zero.
        """
        if self.error is None or other.error is None:
            return None
        joint = math.hypot(self.error, other.error)
        return (self.mean - other.mean) / joint if joint else None


@dataclass(frozen=True)
class GridMethod:
    """One row: accuracies by data set.

    Args:
        printed_average: the average that a publication prints, which can differ from that of its
            cells.
        apart: whether a line is drawn above the row.
    """

    name: str
    cells: Mapping[str, Accuracy]
    printed_average: float | None = None
    apart: bool = False


@dataclass(frozen=True)
class Benchmark:
    """Methods by key; ``columns`` maps a data set to its heading."""

    title: str
    label: str
    columns: Mapping[str, str]
    methods: Mapping[str, GridMethod]

    def ranks(self) -> dict[str, dict[str, int]]:
        """Return each method's place by data set, among the methods that have a cell there."""
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
        """Return the average over the data sets of each method that has all of them."""
        wanted = set(self.columns) - without
        return {
            key: average(means, without)
            for key, means in self._means().items()
            if wanted <= means.keys()
        }

    def shown_averages(self) -> dict[str, float]:
        """Return the averages as published, or else those of the cells."""
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
# Headings after the data sets: the average accuracy, and three means of the ranks.
SUMMARY: tuple[str, ...] = ("Avg", "Arith. mean", "Geom. mean", "Median")


@dataclass(frozen=True)
class GridEntry:
    """One cell: a number and its error as text, and its mark."""

    text: str = MISSING
    error: str = ""
    mark: Mark = field(default_factory=Mark)


@dataclass(frozen=True, kw_only=True)
class GridLine:
    """One row as text: an entry for each data set, and the entries of the summary.

    ``name`` is for people; ``key`` is the method's name in JSON.
    """

    name: str
    key: str
    cells: tuple[GridEntry, ...]
    summary: tuple[GridEntry, ...] = ()
    apart: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table as text.

    Args:
        summary: headings of the columns after the data sets, if any.
        smallest: those of them whose smallest number is the best.
    """

    title: str
    label: str
    columns: tuple[str, ...]
    summary: tuple[str, ...] = ()
    lines: tuple[GridLine, ...]
    smallest: tuple[str, ...] = ()

    @property
    def ranked(self) -> bool:
        """Whether the summary has means of the ranks."""
        return self.summary == SUMMARY


@dataclass(frozen=True)
class ExtraColumn:
    """A column after the average: a number and its error for each method that has them."""

    heading: str
    cells: Mapping[str, Accuracy]
    smallest_first: bool = False


def grid(benchmark: Benchmark, *, further: Sequence[ExtraColumn] | None = None) -> Grid:
    """Return accuracies with errors, the average and the ranking, each number with its mark.

    Args:
        further: columns instead of the ranking, for columns that are domains of one data set: ranks
            over those mean nothing.
    """
    columns = [_entries(_cells(benchmark, column)) for column in benchmark.columns]
    averages = _summary_entries(benchmark.shown_averages())
    if further is None:
        headings, smallest, others = SUMMARY[1:], SUMMARY[1:], _ranking(benchmark)
    else:
        headings = tuple(one.heading for one in further)
        smallest = tuple(one.heading for one in further if one.smallest_first)
        others = [_entries(one.cells, smallest_first=one.smallest_first) for one in further]
    summary = [averages, *others]
    lines = tuple(
        GridLine(
            name=method.name,
            key=key,
            cells=tuple(column.get(key, GridEntry()) for column in columns),
            summary=tuple(column.get(key, GridEntry()) for column in summary),
            apart=method.apart,
        )
        for key, method in benchmark.methods.items()
    )
    return Grid(
        title=benchmark.title,
        label=benchmark.label,
        columns=tuple(benchmark.columns.values()),
        summary=(SUMMARY[0], *headings),
        lines=lines,
        smallest=smallest,
    )


def published_grid(ours: Benchmark, published: Benchmark) -> Grid | None:
    """Return the published cells of our methods and columns; None if there are none.

    The number in brackets is our accuracy minus the published one, in joint standard errors.
    """

    def entry(key: str, column: str) -> GridEntry:
        cell = published.methods[key].cells.get(column)
        if cell is None:
            return GridEntry()
        mine = ours.methods[key].cells.get(column)
        gap = None if mine is None else mine.joint_errors(cell)
        error = "" if cell.error is None else one_decimal(cell.error)
        shown = error if gap is None else f"{error} ({signed(gap)})"
        return GridEntry(one_decimal(cell.mean), shown)

    lines = tuple(
        GridLine(
            name=method.name,
            key=key,
            cells=tuple(entry(key, column) for column in ours.columns),
            apart=method.apart,
        )
        for key, method in ours.methods.items()
        if key in published.methods
    )
    if all(cell == GridEntry() for line in lines for cell in line.cells):
        return None
    return Grid(
        title=f"{published.title}; in brackets ours minus published, in joint standard errors",
        label=f"{ours.label}-published",
        columns=tuple(ours.columns.values()),
        lines=lines,
    )


def _cells(benchmark: Benchmark, column: str) -> dict[str, Accuracy]:
    return {key: m.cells[column] for key, m in benchmark.methods.items() if column in m.cells}


def _entries(
    cells: Mapping[str, Accuracy], *, smallest_first: bool = False
) -> dict[str, GridEntry]:
    means = {key: cell.mean for key, cell in cells.items()}
    marked = marks(means, BASELINE, smallest_first=smallest_first)
    return {
        key: GridEntry(
            one_decimal(cell.mean),
            "" if cell.error is None else one_decimal(cell.error),
            marked[key],
        )
        for key, cell in cells.items()
    }


def _ranking(benchmark: Benchmark) -> list[dict[str, GridEntry]]:
    found = benchmark.rankings()
    arithmetic = {key: one.arithmetic for key, one in found.items()}
    geometric = {key: one.geometric for key, one in found.items()}
    median = {key: one.median for key, one in found.items()}
    return [
        _summary_entries(arithmetic, smallest_first=True),
        _summary_entries(geometric, smallest_first=True),
        _summary_entries(median, smallest_first=True, show="{:g}".format),
    ]


def _summary_entries(
    values: Mapping[str, float],
    *,
    smallest_first: bool = False,
    show: Callable[[float], str] = one_decimal,
) -> dict[str, GridEntry]:
    marked = marks(values, BASELINE, smallest_first=smallest_first)
    return {key: GridEntry(show(value), mark=marked[key]) for key, value in values.items()}


def signed(value: float) -> str:
    """Return a number with one decimal and its sign; zero has none."""
    text = one_decimal(value)
    return f"+{text}" if float(text) > 0 else text.replace("-", "−")
