"""How runs stand, a row for every data set and method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .terminal import fits, table

STATES = ("done", "running", "failed", "waiting")


def run_rows(out: Path, runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return, for every data set and method, its updates and how many runs are in each state."""
    from ..sweeps.attempt import state_of
    from ..sweeps.plan import folder_of

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        first = {"dataset": run.dataset, "algorithm": run.algorithm, "updates": 0}
        row = found.setdefault((run.dataset, run.algorithm), first | dict.fromkeys(STATES, 0))
        row["updates"] += run.protocol.steps
        row[state_of(folder_of(out, run)).value] += 1
    return list(found.values())


def run_table(
    title: str, rows: Sequence[dict[str, Any]], console: Any, planned: bool = False
) -> Any:
    """Return the rows as a table; planned, with how many runs and updates there are in all.

    Where the console is narrow, states that no run is in are left out, and then the updates.
    """
    counted = [row | {"runs": sum(row[state] for state in STATES)} for row in rows]
    all_columns = (*(("runs", "updates") if planned else ()), *STATES)
    some = tuple(name for name in all_columns if any(row[name] for row in counted))
    least = tuple(name for name in some if name != "updates")
    for columns in (all_columns, some, least):
        shown = _table(title, counted, columns)
        if fits(shown, console):
            break
    return shown


def _table(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Any:
    from rich.text import Text

    shown = table(title, None)
    for head in ("Data set", "Method"):
        shown.add_column(head, overflow="fold")
    for head in columns:
        shown.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row[name]:,}" if row[name] else "–" for name in columns]
        shown.add_row(Text(row["dataset"]), Text(row["algorithm"]), *cells)
    return shown
