"""Views: tables and reports for a terminal, in Markdown, in LaTeX and in JSON."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from ..escapes import as_latex, as_markdown, json_parts, latex_comment
from .grid import Grid, GridEntry
from .screen import open_console, plain, print_document, print_parts, rich_table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def markdown_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = ""
) -> str:
    """Return a table under its title, and the note under it; cells are Markdown already."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    above = f"**{as_markdown(title)}**\n\n" if title else ""
    return f"{above}{table}" + (f"\n{note}\n" if note else "")


@dataclass(frozen=True)
class Sheet:
    """A plain table: a title, headings, rows of text, and a note."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def sheet_markdown(sheets: Iterable[Sheet]) -> str:
    """Return the tables in Markdown, one under the other."""
    return "\n".join(
        markdown_table(
            sheet.title,
            [*map(as_markdown, sheet.head)],
            [[*map(as_markdown, row)] for row in sheet.rows],
            sheet.note,
        )
        for sheet in sheets
    )


def sheet_terminal(sheet: Sheet) -> "Table":
    """Return the table for a terminal."""
    view = rich_table(sheet.title, sheet.note)
    for number, heading in enumerate(sheet.head):
        # The first column names the rows, so it is never cut.
        view.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    for row in sheet.rows:
        view.add_row(*map(plain, row))
    return view


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(value: float, digits: int = 2) -> str:
    """Return a number with this many digits; a small or large one as 4.1 · 10⁻⁵."""
    if value == 0 or 1e-2 <= abs(value) < 1e5:
        return f"{value:,.{digits}g}" if abs(value) < 100 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


CORNER = "Method"
# How Markdown marks a number; it has no gray.
LEGEND = "Marks: **first**, <ins>second</ins>, worse than ERM ↓."
# The text between a number and its error, and the padding of a cell.
ROOMY, CLOSE, TIGHT = (" ± ", 1), ("±", 1), ("±", 0)


def markdown(grid: Grid) -> str:
    """Return the table in Markdown, under its title."""
    head = [as_markdown(text) for text in (CORNER, *grid.columns, *grid.summary)]
    rows = (
        [as_markdown(line.name), *map(_markdown, (*line.cells, *line.summary))]
        for line in grid.lines
    )
    return markdown_table(grid.title, head, rows)


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
    heads = [r"\textbf{" + as_latex(h) + "}" for h in (CORNER, *grid.columns, *grid.summary)]
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
        shown = [as_latex(line.name), *map(_latex, (*line.cells, *line.summary))]
        body.append(" & ".join(shown) + r" \\")
    body.append(r"\bottomrule")
    entries = [entry for line in grid.lines for entry in (*line.cells, *line.summary)]
    marked = any(entry.mark.place or entry.mark.worse for entry in entries)
    return "\n".join(
        [
            r"\begin{table}",
            rf"  \caption{{{as_latex(grid.title)}.{MARKS if marked else ''}}}",
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
    text = as_latex(entry.text)
    if entry.mark.worse:
        text = rf"\textcolor{{gray}}{{{text}}}"
    if entry.mark.place == 1:
        text = rf"\textbf{{{text}}}"
    elif entry.mark.place == 2:
        text = rf"\underline{{{text}}}"
    return rf"{text} {{\scriptsize $\pm$ {as_latex(entry.error)}}}" if entry.error else text


def terminal(grid: Grid, width: int) -> "list[Table]":
    """Return the table for a terminal: whole if it fits into the width, otherwise in pieces.

    The pieces have no title, because rich would wrap it to the width of its piece. The first place
    is bold, the second underlined, numbers worse than ERM are dim. The summary is a piece of its
    own, and so are the columns that have no room next to the others.
    """
    columns, summary = list(range(len(grid.columns))), list(range(len(grid.summary)))
    whole = _spaced(grid, columns, summary, width)
    if _width(whole) <= width:
        return [whole]
    cells = _group(columns, lambda group: _piece(grid, group, [], TIGHT), width)
    rest = _group(summary, lambda group: _piece(grid, [], group, TIGHT), width)
    return [
        *(_spaced(grid, group, [], width) for group in cells),
        *(_spaced(grid, [], group, width) for group in rest),
    ]


def _group(
    places: Sequence[int], piece: "Callable[[list[int]], Table]", width: int
) -> list[list[int]]:
    """Return the places in groups, each with as many as fit into the width."""
    groups: list[list[int]] = []
    for place in places:
        if groups and _width(piece([*groups[-1], place])) <= width:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _spaced(grid: Grid, columns: Sequence[int], summary: Sequence[int], width: int) -> "Table":
    """Return the piece with the widest spacing that fits, or else with the tightest."""
    for spacing in (ROOMY, CLOSE):
        piece = _piece(grid, columns, summary, spacing)
        if _width(piece) <= width:
            return piece
    return _piece(grid, columns, summary, TIGHT)


def _piece(
    grid: Grid, columns: Sequence[int], summary: Sequence[int], spacing: tuple[str, int]
) -> "Table":
    joint, padding = spacing
    view = rich_table(padding=(0, padding))
    view.add_column(CORNER, no_wrap=True)
    headings = [plain(grid.columns[c], justify="right") for c in columns]
    for s in summary:
        headings.append(plain(grid.summary[s].replace(" ", "\n"), keep="\n", justify="right"))
    for heading in headings:
        view.add_column(heading, justify="right", no_wrap=True)
    for line in grid.lines:
        if line.apart:
            view.add_section()
        entries = [line.cells[c] for c in columns] + [line.summary[s] for s in summary]
        view.add_row(plain(line.name), *(_styled(entry, joint) for entry in entries))
    return view


def _styled(entry: GridEntry, joint: str) -> "Text":
    style = {1: "bold", 2: "underline"}.get(entry.mark.place or 0, "")
    shown = plain("").append_text(plain(entry.text, f"{style} dim" if entry.mark.worse else style))
    if entry.error:
        shown.append(f"{joint}{entry.error}", style="dim")
    return shown


def _width(view: "Table") -> int:
    return open_console(width=10_000).measure(view).maximum


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a report: tables under a heading, with lines before and after them.

    Args:
        cautions: lines to read before the tables.
        advice: lines with commands in backticks, which Markdown shows as code.
    """

    heading: str
    cautions: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    notes: Sequence[str] = ()
    advice: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A report that every format can show.

    Args:
        data: returns the contents for JSON.
        title, introduction: for Markdown.
    """

    sections: Sequence[Section]
    data: Callable[[], dict[str, Any]]
    title: str = ""
    introduction: str = ""


def print_terminal(document: Document, file: IO[str] | None = None) -> None:
    """Print a report for a terminal. Tables have titles, so only other sections have headings."""
    from rich.padding import Padding

    screen = open_console(file)

    def show(line: str, style: str = "", below: int = 0) -> None:
        screen.print(Padding(plain(line, style), (0, 1, below, 1), expand=False))

    for section in document.sections:
        if not section.tables:
            show(section.heading, "bold")
        for line in section.cautions:
            show(line, "bold", below=1)
        for table in section.tables:
            # A title of its own, because it can be wider than the table.
            screen.print(plain(table.title, "italic"))
            for piece in terminal(table, screen.width):
                screen.print(piece)
        for line in (*section.notes, *section.advice):
            show(line)
        screen.print()
    if screen.is_terminal:  # elsewhere the styles cannot be seen
        marks = plain("first", "bold"), plain("second", "underline"), plain("worse than ERM", "dim")
        screen.print(plain(" Marks: ").append_text(plain(", ").join(marks)).append("."))


def print_markdown(document: Document, file: IO[str] | None = None) -> None:
    """Print a report in Markdown."""
    parts = [f"# {document.title}"] if document.title else []
    parts += [document.introduction] if document.introduction else []
    for section in document.sections:
        parts.append(f"## {as_markdown(section.heading)}")
        parts += [f"**{as_markdown(line)}**" for line in section.cautions]
        parts += [markdown(table).rstrip("\n") for table in section.tables]
        lines = [*map(as_markdown, section.notes), *section.advice]
        parts += ["\n".join(f"- {line}" for line in lines)] if lines else []
    print_document("\n\n".join([*parts, LEGEND]), file)


def print_latex(document: Document, file: IO[str] | None = None) -> None:
    """Print the tables of a report in LaTeX, and its lines as comments."""
    seen = Counter[str]()
    for section in document.sections:
        for line in (*section.cautions, *section.notes, *section.advice):
            print_document(latex_comment(line), file)
        for table in section.tables:
            seen[table.label] += 1  # a label must name one table
            number = f"-{seen[table.label]}" if seen[table.label] > 1 else ""
            print_document(latex(replace(table, label=table.label + number)), file)


def print_json(document: Document, file: IO[str] | None = None) -> None:
    """Print the contents of a report as JSON."""
    print_parts(json_parts(document.data(), indent=2, allow_nan=False), file)


FORMATS = {
    "terminal": print_terminal,
    "markdown": print_markdown,
    "latex": print_latex,
    "json": print_json,
}
