"""``shoal status``: how the runs of a sweep stand."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .terminal import fits, format_duration, table

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


def time_left(left: Any, workers: int) -> str:
    """Return the time in a few words; "" where nothing is left, or known."""
    if not left.each:
        return ""
    rest = f" and what {' and '.join(left.unknown)} takes" if left.unknown else ""
    return f"{format_duration(left.seconds(workers))}{rest}"


def told_left(left: Any, workers: int) -> str:
    """Return a sentence: how long it takes whom, and by what that is known; "" as above."""
    time = time_left(left, workers)
    if not time:
        return ""
    whom = "one worker" if workers == 1 else f"{workers:,} workers"
    found = [f"About {time} left, with {whom}"]
    if left.guessed:
        found.append("guessed from a few updates that were not compiled")
    if left.elsewhere:
        where = ", ".join(name or "unknown" for name in left.elsewhere)
        found.append(f"by the timings of another machine ({where})")
    return ", ".join(found)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="how the runs of a sweep stand")
    parser.add_argument("out", type=Path, metavar="DIR", help="the folder of a sweep")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..sweeps.plan import read_plan
    from ..sweeps.status import current

    runs = current(options.out, read_plan(options.out))
    if options.json:
        left, workers = _left(options.out, runs)
        found = _as_json(options.out, runs) | _left_as_json(left, workers)
        print(json.dumps(found, indent=2))
        return 0
    show_standing(options.out, runs)
    return 0


def show_standing(out: Path, runs: Sequence[Any]) -> None:
    """Show a row for every data set and method, what failed or was left, and the time left."""
    from rich.console import Console

    from ..runs.model import CARD

    found = _as_json(out, runs)
    console = Console()
    if found["runs"]:
        console.print(run_table(f"Runs of {out}", found["runs"], console))
    by_reason: dict[str, list[str]] = {}
    for failure in found["failures"]:
        by_reason.setdefault(failure["reason"], []).append(failure["folder"])
    for reason, folders in by_reason.items():
        more = f" and {len(folders) - 1:,} more" if len(folders) > 1 else ""
        console.print(f"{folders[0]}{more}: {reason}", highlight=False, markup=False)
    if others := len(found["left_behind"]):
        console.print(
            f"Not counted: unfinished runs of data that have changed since ({others:,}). Their "
            "folders can be deleted; status --json names them (left_behind)",
            highlight=False,
            markup=False,
        )
    if not found["runs"]:
        console.print(f"No run is planned in {out}", highlight=False, markup=False)
    if _is_fit(out) and not (out / CARD).exists():
        console.print("A fit plans its runs as it goes on, so there may be more to come")
    left, workers = _left(out, runs)
    if told := told_left(left, workers) if left else "":
        console.print(told, highlight=False, markup=False)


def _as_json(out: Path, runs: Sequence[Any]) -> dict[str, Any]:
    from ..results.records import failure_of
    from ..sweeps.attempt import RunState, state_of
    from ..sweeps.plan import folder_of
    from ..sweeps.status import left_behind

    failures = []
    for run in runs:
        path = folder_of(out, run)
        failure = failure_of(path) if state_of(path) is RunState.FAILED else None
        if failure is not None:
            failures.append({"folder": str(path), "reason": failure["reason"]})
    others = [str(path) for path in left_behind(out)]
    return {"runs": run_rows(out, runs), "failures": failures, "left_behind": others}


def _is_fit(out: Path) -> bool:
    """Return whether the runs are a fit's, of which only those are planned that were begun."""
    from ..fitting.setup import SETUP

    return (out / SETUP).exists()


def _left(out: Path, runs: Sequence[Any]) -> tuple[Any, int]:
    """Return what is left, None where nobody knows, and how many are at it, or else one."""
    from ..runs.machine import hardware_here
    from ..sweeps.attempt import RunState
    from ..sweeps.cost import left_of
    from ..sweeps.status import count_states

    if _is_fit(out):
        return None, 1
    return left_of(out, runs, hardware_here(None)), max(
        1, count_states(out, runs)[RunState.RUNNING]
    )


def _left_as_json(left: Any, workers: int) -> dict[str, Any]:
    """Return it as plain values, in seconds and in words; null where nothing is known."""
    if left is None:
        return {"seconds_left": None, "time_left": ""}
    seconds = None if left.unknown and not left.each else round(left.seconds(workers), 1)
    return {
        "seconds_left": seconds,
        "time_left": time_left(left, workers),
        "workers": workers,
        "guessed": left.guessed,
        "timings_of_other_machines": list(left.elsewhere),
        "unknown_datasets": list(left.unknown),
    }
