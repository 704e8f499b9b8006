"""Progress of amounts: bytes of a download, images of a data set."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Seconds between two lines where there is no terminal.
QUIET = 15.0


class Amounts:
    """What a command tells while it works: bars on a terminal, lines elsewhere; all on stderr."""

    def __init__(self, bars: Any, unit: str) -> None:
        self._bars, self._unit = bars, unit
        self._name, self._task, self._began, self._told = "", None, 0.0, 0.0

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Show that so much of this is done."""
        now = time.monotonic()
        if name != self._name:
            self._name, self._began, self._told, self._first = name, now, now, done
            self._clear()
            self._task = self._bars.add_task(name, total=total)
        self._bars.update(self._task, completed=done, total=total)
        if done == total:
            self._clear()
            self.say(f"{name}: {self._amount(done)}{self._rate(done, now)}")
        elif self._bars.disable and now - self._told > QUIET:
            self._told = now
            share = f" ({done / total:.0%})" if total else ""
            self.say(f"{name}: {self._amount(done)}{share}{self._rate(done, now)}")

    def say(self, line: str) -> None:
        """Show a line of its own."""
        if self._bars.disable:
            print(line, file=sys.stderr)
        else:
            self._bars.console.print(line, highlight=False, markup=False, soft_wrap=True)

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
def amounts(unit: str) -> Iterator[Amounts]:
    """Yield a function of (name, done, total) that shows a bar with speed and time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (
        (DownloadColumn(), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn(unit))
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), *counted)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bars:
        yield Amounts(bars, unit)
