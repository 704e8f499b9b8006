"""Tables, durations, progress bars and words on a terminal, shared by the commands."""

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..compiled_code import bound_compiled_code, code_folder
from ..report.screen import open_console, print_lines, progress_bars, rich_table, words_column
from .notes import progress_console, say


def table(title: str | None, caption: str | None) -> Any:
    """Return an empty table in the style of all commands."""
    return rich_table(title or "", caption or "")


def fits(grid: Any, screen: Any) -> bool:
    """Return whether the screen is wide enough to show every cell of the table on one line."""
    from rich.measure import Measurement

    unbounded = screen.options.update(width=10_000)
    return bool(Measurement.get(screen, unbounded, grid).maximum <= screen.width)


# Seconds between two progress lines without a terminal.
QUIET = 15.0


@contextmanager
def bars(unit: str) -> Any:
    """Show one progress bar per method on a terminal; print lines to a file or pipe."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        words_column(width=28),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with progress_bars(progress_console(), *columns) as progress:
        tasks: dict[str, Any] = {}
        counts: dict[str, dict[int, int]] = {}
        last_line = time.monotonic()

        def report(method: str, restart: int, done: int, total: int) -> None:
            nonlocal last_line
            steps = counts.setdefault(method, {})
            steps[restart] = done
            if method not in tasks:
                tasks[method] = progress.add_task(method, total=total)
            progress.update(tasks[method], completed=sum(steps.values()), total=total * len(steps))
            quiet_for = time.monotonic() - last_line
            if progress.disable and (quiet_for > QUIET or done == total):
                last_line = time.monotonic()
                say(f"{method}: restart {restart}, step {done} of {total}")

        yield report


UNITS = {"s": 1, "min": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return the seconds in ``90s``, ``10min`` or ``1.5h``; a bare number means minutes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 10min or 2h, got {text!r}")
    return float(found[1]) * UNITS[found[2] or "min"]


def format_duration(seconds: float) -> str:
    """Return a duration for people: ``42 s``, ``3 min 5 s`` or ``2 h 7 min``."""
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
    """Print an experiment's tables, write its results, and print which files were written."""

    from ..experiments.output import write
    from ..report.views import sheet_terminal

    screen = open_console()
    for sheet in sheets:
        screen.print(sheet_terminal(sheet))
    print_lines(f"Written in {out}: {', '.join(write(out, command, result, sheets, figures))}")


def describe_steps(kinds: Mapping[str, str]) -> list[str]:
    """Return a line for each way in which updates run, by the kind of step of every method.

    The methods are named if there are several ways.
    """
    found: dict[str, list[str]] = {}
    for method, kind in kinds.items():
        found.setdefault(kind, []).append(method)
    whose = {kind: f" of {', '.join(methods)}" for kind, methods in found.items()}
    return [
        f"Updates{whose[kind] if len(found) > 1 else ''} {_describe_step(kind)}." for kind in found
    ]


def _describe_step(kind: str) -> str:
    if kind != "compiled":
        return f"run {'as a CUDA graph' if kind == 'graph' else 'one operation at a time'}"
    size = bound_compiled_code() / 1e6
    return (
        "are compiled first, which takes a minute or two, or seconds if the code is at hand "
        f"({size:,.0f} MB in {code_folder()})"
    )
