"""How a training stands, live: step, images a second, time left, loss and accuracies."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

# Seconds between two lines where there is no terminal.
QUIET = 15.0


@contextmanager
def run_progress(title: str) -> Iterator[Any]:
    """Yield a function of ``Progress`` that shows it on stderr; lines where it is no terminal."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.text import Text

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task(title, total=None, speed="preparing")
    found = Text()  # below the bar: names of domains are long
    told = time.monotonic()

    def show(progress: Any) -> None:
        nonlocal told
        speed, record = _speed(progress), _summary(progress.record)
        bar.update(task, completed=progress.done, total=progress.steps, speed=speed)
        found.plain = record
        late = time.monotonic() - told > QUIET
        if not console.is_terminal and (late or progress.done == progress.steps):
            told = time.monotonic()
            line = f"{title}: step {progress.done} of {progress.steps}, {speed}, {record}"
            print(line, file=sys.stderr)

    live = Live(Group(bar, found), console=console) if console.is_terminal else nullcontext()
    with live:
        yield show


def _speed(progress: Any) -> str:
    """Return images a second and the time left."""
    if progress.seconds_left is None:
        return "preparing"
    left = timedelta(seconds=round(progress.seconds_left))
    return f"{progress.rate:,.0f} images/s, {left} left"


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
