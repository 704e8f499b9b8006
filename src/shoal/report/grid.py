"""What a view shows of a benchmark: a table as text and marks, and the published one beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal.protocol.ranking import Mark, marks, printed
from shoal.report.benchmark import BASELINE, Benchmark

__all__ = ["Entry", "Grid", "Line", "beside", "grid"]

MISSING = "–"
SUMMARY = ("Avg", "Arith. mean", "Geom. mean", "Median")
"""Headings after the data sets: the average accuracy, and three means of the ranks."""


@dataclass(frozen=True)
class Entry:
    """One cell: a number as text, its error as text, and its mark."""

    text: str = MISSING
    error: str = ""
    mark: Mark = field(default_factory=Mark)


@dataclass(frozen=True)
class Line:
    """One row as text: its name, an entry per data set, and the entries of the summary."""

    name: str
    cells: tuple[Entry, ...]
    summary: tuple[Entry, ...]
    apart: bool


@dataclass(frozen=True)
class Grid:
    """A table as text; `summary` is empty where there is nothing to sum up."""

    title: str
    label: str
    columns: tuple[str, ...]
    summary: tuple[str, ...]
    lines: tuple[Line, ...]


def grid(benchmark: Benchmark, *, ranked: bool = True) -> Grid:
    """Return accuracies with errors, the average and the ranking, each number with its mark.

    `ranked` is False where the columns are no data sets, and ranks over them mean nothing.
    """
    columns = [_accuracies(benchmark, column) for column in benchmark.columns]
    rankings = benchmark.rankings() if ranked else {}
    summary = [_summed(benchmark.shown_averages())]
    summary += (
        []
        if not ranked
        else [
            _summed({k: r.arithmetic for k, r in rankings.items()}, smallest_first=True),
            _summed({k: r.geometric for k, r in rankings.items()}, smallest_first=True),
            _summed(
                {k: r.median for k, r in rankings.items()}, smallest_first=True, show="{:g}".format
            ),
        ]
    )
    lines = tuple(
        Line(
            method.name,
            tuple(column.get(key, Entry()) for column in columns),
            tuple(column.get(key, Entry()) for column in summary),
            method.apart,
        )
        for key, method in benchmark.methods.items()
    )
    headings = tuple(benchmark.columns.values())
    shown = SUMMARY if ranked else SUMMARY[:1]
    return Grid(benchmark.title, benchmark.label, headings, shown, lines)


def beside(ours: Benchmark, published: Benchmark) -> Grid | None:
    """Return the published cells of our methods and columns; None where there are none.

    In brackets stands our accuracy less the published one, in joint standard errors.
    """

    def entry(key: str, column: str) -> Entry:
        cell = published.methods[key].cells.get(column)
        if cell is None:
            return Entry()
        mine = ours.methods[key].cells.get(column)
        gap = None if mine is None else mine.joint_errors(cell)
        error = "" if cell.error is None else printed(cell.error)
        return Entry(printed(cell.mean), error if gap is None else f"{error} ({_signed(gap)})")

    lines = tuple(
        Line(method.name, tuple(entry(key, column) for column in ours.columns), (), method.apart)
        for key, method in ours.methods.items()
        if key in published.methods
    )
    if all(cell == Entry() for line in lines for cell in line.cells):
        return None
    title = f"{published.title}; in brackets ours less it, in joint standard errors"
    return Grid(title, f"{ours.label}-published", tuple(ours.columns.values()), (), lines)


def _accuracies(benchmark: Benchmark, column: str) -> dict[str, Entry]:
    cells = {key: m.cells[column] for key, m in benchmark.methods.items() if column in m.cells}
    marked = marks({key: cell.mean for key, cell in cells.items()}, BASELINE)
    return {
        key: Entry(
            printed(cell.mean), "" if cell.error is None else printed(cell.error), marked[key]
        )
        for key, cell in cells.items()
    }


def _summed(
    values: Mapping[str, float],
    *,
    smallest_first: bool = False,
    show: Callable[[float], str] = printed,
) -> dict[str, Entry]:
    marked = marks(values, BASELINE, smallest_first=smallest_first)
    return {key: Entry(show(value), mark=marked[key]) for key, value in values.items()}


def _signed(value: float) -> str:
    text = printed(value)
    return f"+{text}" if float(text) > 0 else text.replace("-", "−")
