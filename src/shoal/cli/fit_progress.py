"""How a fit stands, live: the run at hand, all runs, and the time left; all on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .durations import shown

# Seconds between two lines where there is no terminal.
QUIET = 15.0


class FitProgress:
    """Bars on a terminal, lines elsewhere."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}
        self._told = time.monotonic()

    def amount(self, name: str, done: int, total: int) -> None:
        """Show that so many images are done."""
        self._show(name, done, total, "images")
        if done == total:
            self._bars.remove_task(self._tasks.pop(name))
            self.note(f"{name}: {total:,} images")

    def run(self, title: str, progress: Any, ahead: Any) -> None:
        """Show a run of a fit, and the fit."""
        left = f"about {shown(ahead.left)} left" if ahead.left else ""
        done, total = (progress.done, progress.steps) if progress else (0, None)
        if ahead.total > 1 and not self._bars.disable:
            self._show("all runs", ahead.done, ahead.total, left)
        elif "all runs" in self._tasks:
            self._bars.remove_task(self._tasks.pop("all runs"))
        for name in [name for name in self._tasks if name not in (title, "all runs")]:
            self._bars.remove_task(self._tasks.pop(name))
        speed = f"{progress.rate:,.0f} examples/s" if progress and progress.rate else "preparing"
        if self._bars.disable or ahead.total == 1:
            number = f"{ahead.done + 1} of {ahead.total} runs" if ahead.total > 1 else ""
            whole = "; ".join(part for part in (number, left) if part)
            speed += f" ({whole})" if whole else ""
        self._show(title, done, total, speed)
        if self._bars.disable and progress and done == total:
            self.note(f"{title}: {done:,} updates, {speed}")

    def note(self, line: str) -> None:
        """Show a line of its own."""
        if self._bars.disable:
            print(line, file=sys.stderr)
        else:
            self._bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _show(self, name: str, done: int, total: int | None, words: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, words=words)
        self._bars.update(self._tasks[name], completed=done, total=total, words=words)
        now = time.monotonic()
        if self._bars.disable and now - self._told > QUIET and total and done < total:
            self._told = now
            print(f"{name}: {done:,} of {total:,}, {words}", file=sys.stderr)


@contextmanager
def fit_progress() -> Iterator[FitProgress]:
    """Yield what shows how a fit stands."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield FitProgress(bars)
