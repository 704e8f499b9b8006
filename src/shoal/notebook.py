"""Notebook: tables as HTML and progress bars, for Jupyter and editors like it; free of torch."""

import sys
import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# Seconds between two drawings of the bars, so that a notebook is not flooded.
DRAWN = 0.1
LEFT = "text-align: left"


def html_table(
    rows: Iterable[Sequence[object]], header: Sequence[object] = (), title: str = ""
) -> str:
    """Return a table as HTML; every text is escaped. The first cell of a row is its name."""
    head = "".join(f"<th>{_escaped(cell)}</th>" for cell in header)
    body = "".join(
        f'<tr><th style="{LEFT}">{_escaped(name)}</th>'
        + "".join(f'<td style="{LEFT}">{_escaped(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    above = f"<strong>{escape(title)}</strong>" if title else ""
    return f"{above}<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}{body}</table>"


def _escaped(cell: object) -> str:
    """Return a cell's text; a number and its unit stay on one line."""
    return escape(str(cell)).replace(" %", "\N{NO-BREAK SPACE}%")


def html_lines(lines: Iterable[str]) -> str:
    """Return one paragraph of HTML for each line; every text is escaped."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def in_notebook() -> bool:
    """Return whether a kernel runs this process, such as Jupyter's, and can show HTML."""
    # Where IPython was never imported, there is no kernel; importing it would take a second.
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask is not None and hasattr(ask(), "kernel")


class Bars:
    """Progress bars and lines in one output of a notebook, drawn again in the same place."""

    def __init__(self) -> None:
        self._bars: dict[str, tuple[int, int | None, str]] = {}
        self._lines: list[str] = []
        self._handle: Any = None
        self._drawn = 0.0

    def show(self, name: str, done: int, total: int | None, words: str = "") -> None:
        """Show that ``done`` of ``total`` is done, None if that is not known, and some words."""
        new = name not in self._bars
        self._bars[name] = done, total, words
        self._draw(now=new or done == total)

    def remove(self, *names: str) -> None:
        """Remove the bars of these names, if there are any."""
        for name in names:
            self._bars.pop(name, None)
        self._draw(now=True)

    def note(self, line: str) -> None:
        """Add a line below the bars, which stays."""
        self._lines.append(line)
        self._draw(now=True)

    def __repr__(self) -> str:
        bars = [
            f"{name}: {done:,}{'' if total is None else f' of {total:,}'}{words and f', {words}'}"
            for name, (done, total, words) in self._bars.items()
        ]
        return "\n".join([*bars, *self._lines])

    def _repr_html_(self) -> str:
        rows = ""
        for name, (done, total, words) in self._bars.items():
            share = "" if total is None else f' value="{done}" max="{max(total, 1)}"'
            count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            rows += (
                f'<tr><td style="{LEFT}">{escape(name)}</td><td><progress{share}></progress></td>'
                f'<td>{count}</td><td style="{LEFT}">{escape(words)}</td></tr>'
            )
        return (f"<table>{rows}</table>" if rows else "") + html_lines(self._lines)

    def _draw(self, now: bool) -> None:
        if not now and time.monotonic() - self._drawn < DRAWN:
            return
        self._drawn = time.monotonic()
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)
