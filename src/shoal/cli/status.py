"""``shoal status``: the states of a sweep's runs and the time left; free of torch."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import title_of
from ..report.screen import open_console, plain, print_json
from ..results.domainbed import RESULTS
from ..results.index import PLAN
from ..results.records import CARD, FIT_SETUP, failure_of
from ..runs.machine import installed_hardware
from ..runs.run import Run
from ..sweeps.cost import RemainingWork, remaining_work
from ..sweeps.plan import read_plan
from ..sweeps.status import (
    RunState,
    SweepStatus,
    read_status,
    stale_folders,
    why_closed,
    without_stale,
)
from .domainbed import refuse_domainbed
from .extras import require
from .terminal import fits, format_duration, table

STATES = tuple(state.value for state in RunState)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "status",
        help="show how many runs of a sweep are done, running, failed and waiting",
        description="Show the states of the runs of a sweep or a fit, why runs failed, and about "
        "how long the rest takes.",
        examples="""
            shoal status out/sweep
            shoal status out/sweep --json
        """,
    )
    parser.add_argument("out", type=Path, metavar="DIR", help="the folder of a sweep or a fit")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    require(*([] if options.json else ["rich"]))
    if not (options.out / PLAN).exists() and _looks_like_domainbed(options.out):
        refuse_domainbed(options.out)
    plan = read_plan(options.out)
    runs = without_stale(options.out, plan)
    if options.json:
        status = read_status(options.out, runs)
        found = _status_as_json(status, plan) | _remaining_as_json(*_remaining(status))
        print_json(found, indent=2)
        return 0
    show_status(options.out, runs, plan)
    return 0


def _looks_like_domainbed(out: Path) -> bool:
    """Return whether there are DomainBed's results here or in a folder of this one.

    Not further below: this can be any folder, as large as a whole disk.
    """
    return any(any(out.glob(name)) for name in (RESULTS, f"*/{RESULTS}"))


def show_status(out: Path, runs: Sequence[Run], plan: Sequence[Run] | None = None) -> None:
    """Print a row for every data set and method, failures, stale runs, and the time left.

    Args:
        plan: all runs of the folder, if they were read already.
    """
    status = read_status(out, runs)
    found = _status_as_json(status, plan)
    screen = open_console()
    if found["runs"]:
        screen.print(status_table(f"Runs of {out}", found["runs"], screen))
    by_reason: dict[str, list[str]] = {}
    for failure in found["failures"]:
        by_reason.setdefault(failure["reason"], []).append(failure["folder"])
    lines = []
    for reason, folders in by_reason.items():
        more = f" and {len(folders) - 1:,} more" if len(folders) > 1 else ""
        lines.append(f"{folders[0]}{more}: {reason}")
    if stale := len(found["left_behind"]):
        lines.append(
            f"Not counted: unfinished runs of data that have changed since ({stale:,}). You can "
            "delete their folders; status --json names them (left_behind)"
        )
    if not found["runs"]:
        lines.append(f"No run is planned in {out}")
    if _is_fit(out) and not (out / CARD).exists():
        lines.append("A fit plans its runs as it goes, so more may follow")
    left, workers = _remaining(status)
    lines.append(describe_time_left(left, workers) if left else "")
    for line in filter(None, lines):
        screen.print(line, highlight=False, markup=False)


def status_rows(status: SweepStatus) -> list[dict[str, Any]]:
    """Return for every data set and method its updates, and its number of runs in each state."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for run, state in zip(status.runs, status.states, strict=True):
        key = (run.dataset, run.algorithm)
        if key not in found:
            first = {"dataset": run.dataset, "algorithm": run.algorithm, "updates": 0}
            found[key] = first | dict.fromkeys(STATES, 0)
        found[key]["updates"] += run.protocol.steps
        found[key][state.value] += 1
    return list(found.values())


def status_table(
    title: str, rows: Sequence[dict[str, Any]], screen: Any, planned: bool = False
) -> Any:
    """Return the rows as a table; a planned one also has the runs and the updates in all.

    If the screen is narrow, states without runs are skipped, and then the updates.
    """
    counted = [row | {"runs": sum(row[state] for state in STATES)} for row in rows]
    all_columns = (*(("runs", "updates") if planned else ()), *STATES)
    some = tuple(name for name in all_columns if any(row[name] for row in counted))
    least = tuple(name for name in some if name != "updates")
    for columns in (all_columns, some, least):
        grid = _table(title, counted, columns)
        if fits(grid, screen):
            break
    return grid


def _table(title: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Any:

    grid = table(title, None)
    for head in ("Data set", "Method"):
        grid.add_column(head, overflow="fold")
    for head in columns:
        grid.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row[name]:,}" if row[name] else "–" for name in columns]
        grid.add_row(plain(row["dataset"]), plain(title_of(row["algorithm"])), *cells)
    return grid


def format_time_left(left: RemainingWork, workers: int) -> str:
    """Return the time in a few words; "" if nothing is left, or its time is not known."""
    if not left.each:
        return ""
    rest = f" plus {' and '.join(left.unknown)} (unknown)" if left.unknown else ""
    return f"{format_duration(left.seconds(workers))}{rest}"


def describe_time_left(left: RemainingWork, workers: int) -> str:
    """Return a sentence with the time left and its source; "" as in ``format_time_left``."""
    time = format_time_left(left, workers)
    if not time:
        return ""
    with_whom = "one worker" if workers == 1 else f"{workers:,} workers"
    parts = [f"About {time} left with {with_whom}"]
    if left.guessed:
        parts.append("estimated from a few updates that were not compiled")
    if left.elsewhere:
        hardware = ", ".join(name or "unknown" for name in left.elsewhere)
        parts.append(f"from timings of other hardware ({hardware})")
    return ", ".join(parts)


def _status_as_json(status: SweepStatus, plan: Sequence[Run] | None) -> dict[str, Any]:
    failures = []
    for path, state in zip(status.paths, status.states, strict=True):
        if state is RunState.FAILED:
            failure = failure_of(path) or {"reason": why_closed(path)}
            if failure["reason"]:
                failures.append({"folder": str(path), "reason": failure["reason"]})
    stale = [str(path) for path in stale_folders(status.out, plan)]
    return {"runs": status_rows(status), "failures": failures, "left_behind": stale}


def _is_fit(out: Path) -> bool:
    """Return whether the folder is a fit's, which plans a run only when it begins it."""
    return (out / FIT_SETUP).exists()


def _remaining(status: SweepStatus) -> tuple[RemainingWork | None, int]:
    """Return the work left, None if it is not planned yet, and the number of workers, or one."""
    if _is_fit(status.out):
        return None, 1
    running = status.states.count(RunState.RUNNING)
    left = remaining_work(status.out, status.runs, installed_hardware(), status.states)
    return left, max(1, running)


def _remaining_as_json(left: RemainingWork | None, workers: int) -> dict[str, Any]:
    """Return the work left as plain values, its time in seconds and in words; null if unknown."""
    if left is None:
        return {"seconds_left": None, "time_left": ""}
    seconds = None if left.unknown and not left.each else round(left.seconds(workers), 1)
    return {
        "seconds_left": seconds,
        "time_left": format_time_left(left, workers),
        "workers": workers,
        "guessed": left.guessed,
        "timings_of_other_machines": list(left.elsewhere),
        "unknown_datasets": list(left.unknown),
    }
