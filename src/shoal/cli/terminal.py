"""What several commands show: tables and progress bars."""

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def table(title: str | None, caption: str | None) -> Any:
    """Return an empty table as all commands show them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title) if title else None,
        caption=Text(caption) if caption else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
    )


def fits(grid: Any, console: Any) -> bool:
    """Return whether the console is wide enough for all that the table says."""
    from rich.measure import Measurement

    unbounded = console.options.update(width=10_000)
    return bool(Measurement.get(console, unbounded, grid).maximum <= console.width)


@contextmanager
def bars(unit: str) -> Any:
    """Show one progress bar per method; lines where there is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}
        counts: dict[str, dict[int, int]] = {}
        told = time.monotonic()

        def report(method: str, restart: int, done: int, total: int) -> None:
            nonlocal told
            steps = counts.setdefault(method, {})
            steps[restart] = done
            if method not in tasks:
                tasks[method] = progress.add_task(method, total=total)
            progress.update(tasks[method], completed=sum(steps.values()), total=total * len(steps))
            if not console.is_terminal and (time.monotonic() - told > 15 or done == total):
                told = time.monotonic()
                print(f"{method}: restart {restart}, step {done} of {total}", file=sys.stderr)

        yield report


UNITS = {"s": 1, "min": 60, "h": 3600}


def duration(text: str) -> float:
    """Return the seconds of ``90s``, ``10min`` or ``1.5h``; a bare number is minutes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 10min or 2h, got {text!r}")
    return float(found[1]) * UNITS[found[2] or "min"]


def shown(seconds: float) -> str:
    """Return a length of time in a few letters."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def show_and_write(
    out: Path,
    command: str,
    result: Mapping[str, Any],
    sheets: Sequence[Any],
    figures: Mapping[str, Any],
) -> None:
    """Print an experiment's tables, write its output, and say which files were written."""
    from rich.console import Console

    from ..experiments.output import write
    from ..report.views import sheet_terminal

    console = Console()
    for sheet in sheets:
        console.print(sheet_terminal(sheet))
    print(f"Written in {out}: {', '.join(write(out, command, result, sheets, figures))}")
