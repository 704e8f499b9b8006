"""The live line of a training: step, loss, accuracies, images a second, time left."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Seconds between two lines where there is no terminal.
QUIET = 15.0


@contextmanager
def run_progress(title: str) -> Iterator[Any]:
    """Yield a function of ``Progress`` that shows it on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[record]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None, rate="", record="")
        told = time.monotonic()

        def show(progress: Any) -> None:
            nonlocal told
            rate = f"{progress.rate:,.0f} images/s" if progress.done else "preparing"
            record = _summary(progress.record)
            bars.update(
                task, completed=progress.done, total=progress.steps, rate=rate, record=record
            )
            quiet = not console.is_terminal and time.monotonic() - told > QUIET
            if quiet or (not console.is_terminal and progress.done == progress.steps):
                told = time.monotonic()
                print(
                    f"{title}: step {progress.done} of {progress.steps}, {rate}, "
                    f"{progress.seconds_left or 0:.0f} s left, {record}",
                    file=sys.stderr,
                )

        yield show


def _summary(record: Any) -> str:
    """Return loss and accuracy per domain in a few words."""
    if record is None:
        return ""
    accuracies = ", ".join(
        f"{domain} {100 * next(iter(splits.values())):.0f}%"
        for domain, splits in record["accuracy"].items()
    )
    loss = record["terms"].get("loss")
    return f"loss {loss:.3g}; {accuracies}" if loss is not None else accuracies
