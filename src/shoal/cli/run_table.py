"""How runs stand, a row for every data set and method."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .terminal import table

STATES = ("done", "running", "failed", "waiting")


def run_rows(out: Path, runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return, for every data set and method, its updates and how many runs are in each state."""
    from ..protocol.attempt import state_of
    from ..protocol.plan import folder_of

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        first = {"dataset": run.dataset, "algorithm": run.algorithm, "updates": 0}
        row = found.setdefault((run.dataset, run.algorithm), first | dict.fromkeys(STATES, 0))
        row["updates"] += run.protocol.steps
        row[state_of(folder_of(out, run)).value] += 1
    return list(found.values())


def run_table(title: str, rows: Sequence[dict[str, Any]], planned: bool = False) -> Any:
    """Return the rows as a table; planned, with how many runs and updates there are in all."""
    from rich.text import Text

    columns = (*(("runs", "updates") if planned else ()), *STATES)
    shown = table(title, None)
    for head in ("Data set", "Method", *columns):
        shown.add_column(head, justify="left" if head[0].isupper() else "right")
    for row in rows:
        numbers = row | {"runs": sum(row[state] for state in STATES)}
        cells = [f"{numbers[name]:,}" if numbers[name] else "–" for name in columns]
        shown.add_row(Text(row["dataset"]), Text(row["algorithm"]), *cells)
    return shown
