"""Comparison tables: the results of experiments next to the paper's cells."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..escapes import as_markdown
from .screen import plain, rich_table
from .views import markdown_table

if TYPE_CHECKING:
    from rich.table import Table

# Columns of the paper's Colored MNIST tables: the key of a cell, and its heading.
COLORED_MNIST: Mapping[str, str] = {
    "train": "Train acc.",
    "test": "Test acc.",
    "gray": "Gray test acc.",
}
NOT_RUN = "not run"
NOT_POSSIBLE = "not possible"
NO_NUMBER = "–"
MARK = "!"
LEGEND = (
    f"{MARK} differs from the paper by more than 1.5 points and more than two of the paper's "
    "standard deviations."
)


@dataclass(frozen=True)
class Cell:
    """An accuracy in percent: its mean and standard deviation over ``count`` runs.

    The paper's cells have no count.
    """

    mean: float
    std: float | None = None
    count: int | None = None

    def __str__(self) -> str:
        spread = self.std is not None and self.count != 1  # one run has no standard deviation
        return f"{self.mean:.1f} ± {self.std:.1f}" if spread else f"{self.mean:.1f}"

    def difference(self, paper: "Cell") -> float:
        """Return this cell minus the paper's, in points."""
        # Rounded far below what is shown: 72.7 − 71.2 is not 1.5 in binary.
        return round(self.mean - paper.mean, 9)

    def departs(self, paper: "Cell") -> bool:
        """Return whether the difference exceeds max(1.5 points, 2 of the paper's deviations)."""
        within = abs(self.difference(paper)) <= max(1.5, 2 * (paper.std or 0.0))
        return not within  # so that a NaN departs


@dataclass(frozen=True)
class _CellText:
    """One cell as text: ours, the paper's, their difference, and whether it is marked."""

    ours: str
    paper: str
    difference: str
    marked: bool


def markdown(
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    columns: Mapping[str, str] = COLORED_MNIST,
) -> str:
    """Return the results as a Markdown table: our cell, the paper's cell, the difference in points.

    Args:
        rows: one mapping per method, with ``name``, ``cells`` and ``paper``. ``cells`` maps a
            column's key to ``{"mean", "std", "count"}`` in percent, or to None if it was not run.
            ``paper`` maps it to ``[mean, std]``. None, for the row or for one cell, means that the
            paper found it not possible; a missing key means that the paper has no number.
        title: set in bold above the table.
        columns: the heading of each cell's key.
    """
    table = _entries(rows, columns)
    head = ["Method", "Runs"]
    for heading in columns.values():
        head += [heading, "paper", "diff."]
    lines = []
    for name, runs, entries in table:
        line = [as_markdown(name), runs]
        for entry in entries:
            difference = f"**{entry.difference} {MARK}**" if entry.marked else entry.difference
            line += [entry.ours, entry.paper, difference]
        lines.append(line)
    note = LEGEND if _any_marked(table) else ""
    return markdown_table(title or "", [*map(as_markdown, head)], lines, note)


def terminal(
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    columns: Mapping[str, str] = COLORED_MNIST,
) -> "Table":
    """Return the results as a rich table; each cell has our number, and under it the paper's.

    Args:
        rows: as for ``markdown``.
        title: printed above the table.
        columns: the heading of each cell's key.
    """
    table = _entries(rows, columns)
    runs_differ = len({runs for _, runs, _ in table}) > 1
    caption = "Each cell: our mean ± standard deviation and its difference from the paper in "
    caption += "points; under it the paper's cell."
    if table and not runs_differ:
        caption += f" Runs: {table[0][1]}."  # a column of equal numbers would cost the names room
    if _any_marked(table):
        caption += f"\n{LEGEND}"
    view = rich_table(title or "", caption, padding=(0, 1))
    view.add_column("Method", overflow="fold", min_width=12)
    if runs_differ:
        view.add_column("Runs", justify="right", no_wrap=True)
    for heading in columns.values():
        view.add_column(heading, min_width=17)  # can wrap, so that no mark is ever cut off
    for name, runs, entries in table:
        cells = []
        for entry in entries:
            cell = plain(f"{entry.ours:<10}")
            if entry.difference != NO_NUMBER:
                mark, style = (MARK, "bold red") if entry.marked else ("", "green")
                cell.append(f" {entry.difference:>5}{mark}", style=style)
            cell.append(f"\n{entry.paper}", style="dim")
            cells.append(cell)
        view.add_row(plain(name), *([plain(runs)] if runs_differ else []), *cells)
    return view


def _entries(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> list[tuple[str, str, list[_CellText]]]:
    """Return name, number of runs and cells of each row, all as text."""
    table = []
    means = []
    for row in rows:
        ours = [_ours(row["cells"].get(key)) for key in columns]
        paper = [_paper(row, key) for key in columns]
        means += [cell.mean for cell in ours if cell is not None]
        entries = [_entry(*pair) for pair in zip(ours, paper, strict=True)]
        table.append((str(row["name"]), _runs(ours), entries))
    if means and 0 < max(means) <= 1:
        raise ValueError(
            f"cells are percentages, but the largest mean is {max(means):g}: multiply by 100"
        )
    return table


def _entry(ours: Cell | None, paper: Cell | str) -> _CellText:
    shown = NOT_RUN if ours is None else str(ours)
    if ours is None or isinstance(paper, str):
        return _CellText(shown, str(paper), NO_NUMBER, False)
    difference = f"{ours.difference(paper):+z.1f}"
    if difference == "+0.0":
        difference = "0.0"
    return _CellText(shown, str(paper), difference.replace("-", "−"), ours.departs(paper))


def _ours(value: Mapping[str, Any] | None) -> Cell | None:
    if value is None:
        return None
    std = value.get("std")
    if std is not None and not math.isfinite(std):
        std = None
    return Cell(float(value["mean"]), std, value.get("count"))


def _paper(row: Mapping[str, Any], key: str) -> Cell | str:
    if "paper" not in row:
        return NO_NUMBER
    cells: Mapping[str, Sequence[float] | None] | None = row["paper"]
    if cells is None:
        return NOT_POSSIBLE
    if key not in cells:
        return NO_NUMBER
    value = cells[key]
    return NOT_POSSIBLE if value is None else Cell(value[0], value[1])


def _runs(cells: Sequence[Cell | None]) -> str:
    counts = sorted({cell.count for cell in cells if cell is not None and cell.count is not None})
    if not counts:
        return NO_NUMBER
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


def _any_marked(table: Sequence[tuple[str, str, list[_CellText]]]) -> bool:
    return any(entry.marked for _, _, entries in table for entry in entries)
