"""Progress on stderr: bars on a terminal, lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from ..escapes import printable
from ..report.screen import has_bars, plain, progress_bars, words_column
from ..training.watcher import Progress, Watcher
from .notes import progress_console, say
from .terminal import QUIET, format_duration

# The width of lines without a terminal.
COLUMNS = 80


class RunProgressBar:
    """Shows a run on stderr: a bar on a terminal, a line every 15 s elsewhere."""

    def __init__(self, title: str, bar: Any, below: Any) -> None:
        self._title, self._bar, self._below = title, bar, below
        self._task = bar.add_task(title, total=None, speed="preparing")
        self._printed = time.monotonic()

    def show(self, progress: Progress) -> None:
        speed, record = _speed(progress), _summary(progress.record)
        self._bar.update(self._task, completed=progress.done, total=progress.steps, speed=speed)
        self._below.plain = printable(record)
        late = time.monotonic() - self._printed > QUIET
        if not self._bar.console.is_terminal and (late or progress.done == progress.steps):
            self._printed = time.monotonic()
            line = f"{self._title}: step {progress.done} of {progress.steps}, {speed}, {record}"
            say(line)


@contextmanager
def run_progress(title: str) -> Iterator[RunProgressBar]:
    """Yield a bar for a run."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn

    columns = (
        words_column(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        words_column("speed"),
    )
    screen = progress_console()
    bar = progress_bars(screen, *columns, always=True)
    below = plain("")  # names of domains are long
    run_bar = RunProgressBar(title, bar, below)
    live = Live(Group(bar, below), console=screen) if has_bars(screen) else nullcontext()
    with live:
        yield run_bar


def _speed(progress: Progress) -> str:
    """Return images per second and the time left."""
    if progress.seconds_left is None:
        return "preparing"
    left = timedelta(seconds=round(progress.seconds_left))
    return f"{progress.rate:,.0f} images/s, {left} left"


def _summary(record: Any) -> str:
    """Return the loss and the accuracy of each domain in a few words."""
    if record is None:
        return ""
    accuracies = ", ".join(
        f"{domain} {100 * next(iter(splits.values())):.0f}%"
        for domain, splits in record.accuracy.items()
    )
    loss = record.terms.get("loss")
    return f"loss {loss:.3g}; {accuracies}" if loss is not None else accuracies


class FitProgressBars(Watcher):
    """Shows a fit on stderr: bars on a terminal, lines elsewhere."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}
        self._printed = time.monotonic()

    def amount(self, name: str, done: int, total: int) -> None:
        self._show(name, done, total, "images", f"{name}: {done:,} of {total:,} images")
        if done == total:
            self._bars.remove_task(self._tasks.pop(name))
            self.note(f"{name}: {total:,} images")

    def run(self, title: str, progress: Progress | None, ahead: Any) -> None:
        left = f"about {format_duration(ahead.left)} left" if ahead.left else ""
        done, total = (progress.done, progress.steps) if progress else (0, None)
        if ahead.total > 1 and not self._bars.disable:
            self._show("all runs", ahead.done, ahead.total, left)
        elif "all runs" in self._tasks:
            self._bars.remove_task(self._tasks.pop("all runs"))
        for name in [name for name in self._tasks if name not in (title, "all runs")]:
            self._bars.remove_task(self._tasks.pop(name))
        # A model that is fitted at once makes no updates.
        at_once = progress is not None and total == 1 and not progress.rate
        words = "" if done else "fitting" if at_once else "preparing"
        if ahead.inside is not None:
            words = f"{100 * ahead.inside:.1f} % on seen domains"
        number = f"{ahead.done + 1} of {ahead.total} runs" if ahead.total > 1 else ""
        whole = "; ".join(filter(None, (number, left)))
        # On a terminal, the bar of all runs has the same numbers.
        beside = f" ({left})" if left and ahead.total == 1 else ""
        head = title if at_once else f"{title}: {done:,} of {total or 0:,} updates"
        self._show(title, done, total, f"{words}{beside}", *_lines(head, words, whole))
        if self._bars.disable and progress and done == total:
            made = "fitted" if at_once else f"{done:,} updates"
            say(*_lines(f"{title}: {made}", words, whole))

    def note(self, line: str) -> None:
        if self._bars.disable:
            say(line)
        else:
            self._bars.console.print(line, soft_wrap=True)

    def _show(self, name: str, done: int, total: int | None, words: str, *lines: str) -> None:
        """Show a bar with these words on a terminal; elsewhere print lines every ``QUIET`` s."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, words=words)
        self._bars.update(self._tasks[name], completed=done, total=total, words=words)
        now = time.monotonic()
        if self._bars.disable and now - self._printed > QUIET and total and done < total:
            self._printed = now
            say(*lines)


def _lines(head: str, words: str, whole: str) -> list[str]:
    """Return a line with words about a run and the whole fit, two lines if it is too long."""
    line = f"{head}, {words}" if words else head
    if not whole:
        return [line]
    together = f"{line} ({whole})"
    return [together] if len(together) <= COLUMNS else [line, f"  ({whole})"]


@contextmanager
def fit_progress(watcher: type[FitProgressBars]) -> Iterator[Any]:
    """Yield a ``FitWatcher`` of this class that shows a fit on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn
    from rich.table import Column

    columns = (
        words_column(),
        BarColumn(bar_width=None, table_column=Column(max_width=24)),
        MofNCompleteColumn(),
        words_column("words"),
    )
    with progress_bars(progress_console(), *columns) as bars:
        yield watcher(bars)


class AmountProgress:
    """Shows how much of something is done: a bar on a terminal, lines elsewhere."""

    def __init__(self, bars: Any, unit: str) -> None:
        self._bars, self._unit = bars, unit
        self._name, self._task, self._began, self._printed = "", None, 0.0, 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` is done."""
        now = time.monotonic()
        if name != self._name:
            self._name, self._began, self._printed, self._first = name, now, now, done
            self._clear()
            self._task = self._bars.add_task(name, total=total)
        self._bars.update(self._task, completed=done, total=total)
        if done == total:
            self._clear()
            self.note(f"{name}: {self._amount(done)}{self._rate(done, now)}")
        elif self._bars.disable and now - self._printed > QUIET:
            self._printed = now
            share = f" ({done / total:.0%})" if total else ""
            self.note(f"{name}: {self._amount(done)}{share}{self._rate(done, now)}")

    def note(self, line: str) -> None:
        """Print a line."""
        if self._bars.disable:
            say(line)
        else:
            self._bars.console.print(line, soft_wrap=True)

    def _clear(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._bars.refresh()  # or the next line would be followed by the bar as it was
            self._task = None

    def _amount(self, count: int) -> str:
        from rich.filesize import decimal

        return decimal(count) if self._unit == "bytes" else f"{count:,} {self._unit}"

    def _rate(self, done: int, now: float) -> str:
        if now - self._began < 1:
            return ""
        return f", {self._amount(int((done - self._first) / (now - self._began)))}/s"


@contextmanager
def amounts(unit: str) -> Iterator[AmountProgress]:
    """Yield a function of (name, done, total) that shows a bar with speed and time left."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (
        (DownloadColumn(), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn(unit))
    )
    columns = (words_column(), BarColumn(bar_width=None), *counted, TimeRemainingColumn())
    with progress_bars(progress_console(), *columns) as bars:
        yield AmountProgress(bars, unit)
