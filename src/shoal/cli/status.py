"""``shoal status``: how the runs of a sweep stand."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .terminal import table


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="how the runs of a sweep stand")
    parser.add_argument("out", type=Path, metavar="DIR", help="the folder of a sweep")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..protocol.plan import read_plan

    runs = read_plan(options.out)
    if options.json:
        print(json.dumps(_as_json(options.out, runs), indent=2))
        return 0
    show_standing(options.out, runs)
    return 0


def show_standing(out: Path, runs: Sequence[Any]) -> None:
    """Show a row for every data set and method, what failed, and the time left."""
    from rich.console import Console
    from rich.text import Text

    found = _as_json(out, runs)
    shown = table(f"Runs of {out}", None)
    for head in ("Data set", "Method", "done", "running", "failed", "waiting"):
        shown.add_column(head, justify="left" if head[0].isupper() else "right")
    for row in found["runs"]:
        counts = [f"{row[state]:,}" if row[state] else "–" for state in STATES]
        shown.add_row(Text(row["dataset"]), Text(row["algorithm"]), *counts)
    console = Console()
    console.print(shown)
    by_reason: dict[str, list[str]] = {}
    for failure in found["failures"]:
        by_reason.setdefault(failure["reason"], []).append(failure["folder"])
    for reason, folders in by_reason.items():
        more = f" and {len(folders) - 1:,} more" if len(folders) > 1 else ""
        console.print(f"{folders[0]}{more}: {reason}", highlight=False, markup=False)
    if _is_fit(out):
        console.print("A fit plans its runs as it goes on, so there may be more to come")
    if found["time_left"]:
        console.print(f"About {found['time_left']} left, with one worker", highlight=False)


STATES = ("done", "running", "failed", "waiting")


def _as_json(out: Path, runs: Sequence[Any]) -> dict[str, Any]:
    from ..protocol.attempt import State, failure_of, state_of
    from ..protocol.plan import folder_of

    counts: dict[tuple[str, str], Counter[str]] = {}
    failures = []
    for run in runs:
        path = folder_of(out, run)
        state = state_of(path)
        counts.setdefault((run.dataset, run.algorithm), Counter())[state.value] += 1
        failure = failure_of(path) if state is State.FAILED else None
        if failure is not None:
            failures.append({"folder": str(path), "reason": failure["reason"]})
    rows = [
        {"dataset": dataset, "algorithm": algorithm, **{state: found[state] for state in STATES}}
        for (dataset, algorithm), found in counts.items()
    ]
    left = "" if _is_fit(out) else time_left(out, runs)
    return {"runs": rows, "failures": failures, "time_left": left}


def _is_fit(out: Path) -> bool:
    """Return whether the runs are a fit's, of which only those are planned that were begun."""
    from ..estimators.setup import SETUP

    return (out / SETUP).exists()


def time_left(out: Path, runs: Sequence[Any]) -> str:
    """Return how long what is left takes one worker; "" where nothing is left, or known."""
    from ..protocol.estimate import left_of

    left = left_of(out, runs)
    hours, rest = divmod(round(left.seconds), 3600)
    if not left.seconds:
        return ""
    told = f"{hours:,} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
    return f"{told} and what {' and '.join(left.unknown)} takes" if left.unknown else told
