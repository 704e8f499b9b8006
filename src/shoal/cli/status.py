"""``shoal status``: how the runs of a sweep stand."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .run_table import run_rows, run_table
from .time_left import time_left, told_left


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
    from ..sweeps.attempt import State, state_of
    from ..sweeps.plan import folder_of
    from ..sweeps.status import left_behind

    failures = []
    for run in runs:
        path = folder_of(out, run)
        failure = failure_of(path) if state_of(path) is State.FAILED else None
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
    from ..sweeps.attempt import State
    from ..sweeps.cost import left_of
    from ..sweeps.status import standing

    if _is_fit(out):
        return None, 1
    return left_of(out, runs, hardware_here(None)), max(1, standing(out, runs)[State.RUNNING])


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
