"""A grid for a terminal, for Markdown and for LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .grid import Grid, GridEntry

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# What would end a cell, or begin markup. A sign that stands where it means nothing is left alone.
_SIGNS = re.compile(
    r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=\()|~(?=~)|&(?=#|\w+;)",
)


def as_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return " ".join(_SIGNS.sub(r"\\\g<0>", text).split())


CORNER = "Algorithm"
LEGEND = "Marks: **first**, <ins>second</ins>, worse than ERM ↓."
"""How Markdown marks a number; it has no gray."""
ROOMY, CLOSE, TIGHT = (" ± ", 1), ("±", 1), ("±", 0)
"""What joins a number and its error, and the room beside a cell."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def markdown(grid: Grid) -> str:
    """Return the table in Markdown, under its title."""
    head = [as_markdown(text) for text in (CORNER, *grid.columns, *grid.summary)]
    lines = [head, [":--"] + ["--:"] * (len(head) - 1)]
    lines += [
        [as_markdown(line.name), *map(_markdown, (*line.cells, *line.summary))]
        for line in grid.lines
    ]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"**{as_markdown(grid.title)}**\n\n{table}"


def _markdown(entry: GridEntry) -> str:
    text = entry.text
    if entry.mark.place == 1:
        text = f"**{text}**"
    elif entry.mark.place == 2:
        text = f"<ins>{text}</ins>"
    if entry.error:
        text += f" ± {entry.error}"
    return f"{text} ↓" if entry.mark.worse else text


MARKS = r" \textbf{First}, \underline{second} and \textcolor{gray}{worse than ERM}."


def latex(grid: Grid) -> str:
    """Return the table in LaTeX, marked as the paper does; it needs booktabs and xcolor."""
    ranking = len(grid.summary[1:]) if grid.ranked else 0
    cells = len(grid.columns) + len(grid.summary) - ranking
    heads = [r"\textbf{" + _escaped(h) + "}" for h in (CORNER, *grid.columns, *grid.summary)]
    body = [r"\toprule"]
    if ranking:
        body.append(
            rf"& \multicolumn{{{cells}}}{{c}}{{Accuracy ($\uparrow$)}}"
            rf" & \multicolumn{{{ranking}}}{{c}}{{Ranking ($\downarrow$)}} \\"
        )
        last = 1 + cells + ranking
        body.append(rf"\cmidrule(lr){{2-{cells + 1}}} \cmidrule(l){{{cells + 2}-{last}}}")
    body += [" & ".join(heads) + r" \\", r"\midrule"]
    for line in grid.lines:
        body += [r"\midrule"] if line.apart else []
        shown = [_escaped(line.name), *map(_latex, (*line.cells, *line.summary))]
        body.append(" & ".join(shown) + r" \\")
    body.append(r"\bottomrule")
    entries = [entry for line in grid.lines for entry in (*line.cells, *line.summary)]
    marked = any(entry.mark.place or entry.mark.worse for entry in entries)
    return "\n".join(
        [
            r"\begin{table}",
            rf"  \caption{{{_escaped(grid.title)}.{MARKS if marked else ''}}}",
            rf"  \label{{{re.sub(r'[^A-Za-z0-9_:.+-]', '-', grid.label)}}}",
            r"  \centering",
            rf"  \begin{{tabular}}{{l{'c' * cells}{'c' * ranking}}}",
            *(f"    {line}" for line in body),
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex(entry: GridEntry) -> str:
    text = _escaped(entry.text)
    if entry.mark.worse:
        text = rf"\textcolor{{gray}}{{{text}}}"
    if entry.mark.place == 1:
        text = rf"\textbf{{{text}}}"
    elif entry.mark.place == 2:
        text = rf"\underline{{{text}}}"
    return rf"{text} {{\scriptsize $\pm$ {_escaped(entry.error)}}}" if entry.error else text


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def terminal(grid: Grid, width: int) -> list[Table]:
    """Return the table for a terminal: whole where it fits into the width, otherwise in pieces.

    They have no title, because a title would be broken to the width of its table.
    The first place is bold, the second underlined, what is worse than ERM dim. The summary is a
    piece of its own, and so is whatever has no room beside the others.
    """
    columns, summary = list(range(len(grid.columns))), list(range(len(grid.summary)))
    whole = _spaced(grid, columns, summary, width)
    if _measured(whole) <= width:
        return [whole]
    cells = _grouped(columns, lambda group: _piece(grid, group, [], TIGHT), width)
    rest = _grouped(summary, lambda group: _piece(grid, [], group, TIGHT), width)
    return [
        *(_spaced(grid, group, [], width) for group in cells),
        *(_spaced(grid, [], group, width) for group in rest),
    ]


def _grouped(
    places: Sequence[int], piece: Callable[[list[int]], Table], width: int
) -> list[list[int]]:
    """Return the places in groups, as many in each as fit into the width."""
    groups: list[list[int]] = []
    for place in places:
        if groups and _measured(piece([*groups[-1], place])) <= width:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _spaced(grid: Grid, columns: Sequence[int], summary: Sequence[int], width: int) -> Table:
    """Return the piece with the most room that fits into the width, or else with the least."""
    for spacing in (ROOMY, CLOSE):
        piece = _piece(grid, columns, summary, spacing)
        if _measured(piece) <= width:
            return piece
    return _piece(grid, columns, summary, TIGHT)


def _piece(
    grid: Grid, columns: Sequence[int], summary: Sequence[int], spacing: tuple[str, int]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    joint, padding = spacing
    view = Table(box=box.SIMPLE_HEAD, padding=(0, padding), collapse_padding=True)
    view.add_column(CORNER, no_wrap=True)
    headings = [grid.columns[c] for c in columns]
    headings += [grid.summary[s].replace(" ", "\n") for s in summary]
    for heading in headings:
        view.add_column(Text(heading, justify="right"), justify="right", no_wrap=True)
    for line in grid.lines:
        if line.apart:
            view.add_section()
        entries = [line.cells[c] for c in columns] + [line.summary[s] for s in summary]
        view.add_row(Text(line.name), *(_styled(entry, joint) for entry in entries))
    return view


def _styled(entry: GridEntry, joint: str) -> Text:
    from rich.text import Text

    style = {1: "bold", 2: "underline"}.get(entry.mark.place or 0, "")
    shown = Text()
    shown.append(entry.text, style=f"{style} dim" if entry.mark.worse else style)
    if entry.error:
        shown.append(f"{joint}{entry.error}", style="dim")
    return shown


def _measured(view: Table) -> int:
    from rich.console import Console

    return Console(width=10_000).measure(view).maximum


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Sheet:
    """A table as text: a title, headings, rows, and what to know of them."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def power(value: float, digits: int = 2) -> str:
    """Return a number with so many digits, such as 4.1 · 10⁻⁵ where it is small or large."""
    if value == 0 or 1e-2 <= abs(value) < 1e5:
        return f"{value:,.{digits}g}" if abs(value) < 100 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def sheet_markdown(sheets: Iterable[Sheet]) -> str:
    """Return the tables as Markdown, one under the other."""
    return "\n".join(_sheet_markdown(sheet) for sheet in sheets)


def sheet_terminal(sheet: Sheet) -> Table:
    """Return one table as rich shows it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    view = Table(
        title=Text(sheet.title),
        caption=Text(sheet.note) if sheet.note else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
    )
    for number, heading in enumerate(sheet.head):
        # Rows are told apart by their names: those are never cut.
        view.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    for row in sheet.rows:
        view.add_row(*map(Text, row))
    return view


def _sheet_markdown(sheet: Sheet) -> str:
    lines = [sheet.head, [":--", *["--:"] * (len(sheet.head) - 1)], *sheet.rows]
    table = "\n".join("| " + " | ".join(map(as_markdown, line)) + " |" for line in lines)
    note = f"\n{sheet.note}\n" if sheet.note else ""
    return f"**{as_markdown(sheet.title)}**\n\n{table}\n{note}"
