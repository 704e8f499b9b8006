"""Small tables of any numbers, for a document or for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .markup import as_markdown

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Sheet", "markdown", "power", "terminal"]

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


def markdown(sheets: Iterable[Sheet]) -> str:
    """Return the tables as Markdown, one under the other."""
    return "\n".join(_markdown(sheet) for sheet in sheets)


def terminal(sheet: Sheet) -> Table:
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


def _markdown(sheet: Sheet) -> str:
    lines = [sheet.head, [":--", *["--:"] * (len(sheet.head) - 1)], *sheet.rows]
    table = "\n".join("| " + " | ".join(map(as_markdown, line)) + " |" for line in lines)
    note = f"\n{sheet.note}\n" if sheet.note else ""
    return f"**{as_markdown(sheet.title)}**\n\n{table}\n{note}"
