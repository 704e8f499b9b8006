"""``shoal select``: the models that a rule chose, out of the runs of a sweep."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..results.selection import ALL_RULES


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "select",
        help="save the models that a selection rule chose",
        description="For every data set, method, test domain and trial, the model that a rule "
        "chose of all draws and records, with a card that says how. Weights of other records than "
        "the last are there where the runs were made with --keep-best.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="sweeps and runs")
    parser.add_argument("--rule", choices=ALL_RULES, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="only these methods")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="only these data sets")
    parser.set_defaults(run=_run, after_interrupt="the same command saves all of them")


def _run(options: argparse.Namespace) -> int:
    from ..report.notes import lost_by_themselves
    from ..results.records import read_runs
    from ..results.selection import select
    from ..runs.best_weights import NotKept, save_chosen
    from .report import failed_runs, note_twins

    runs = read_runs(options.folders)
    if not runs:
        raise ValueError(f"no finished run in {', '.join(map(str, options.folders))}")
    note_twins(runs)
    _refuse_unknown("method", options.algorithms, [run.algorithm for run in runs])
    _refuse_unknown("data set", options.datasets, [run.dataset for run in runs])
    selected = select(runs, options.rule, lost_by_themselves(failed_runs(options.folders)))
    choices = [
        choice
        for choice in selected.choices
        if choice.algorithm in (options.algorithms or [choice.algorithm])
        and choice.dataset in (options.datasets or [choice.dataset])
    ]
    asked = [
        place
        for place in selected.undecided
        if place[0] in (options.datasets or [place[0]])
        and place[1] in (options.algorithms or [place[1]])
    ]
    if not choices and asked:
        raise ValueError(f"no run has an accuracy that is a number and {options.rule} looks at")
    if not choices:
        raise ValueError(f"these {len(runs)} runs are not those that {options.rule} needs")
    missing = 0
    for choice in choices:
        try:
            folder = save_chosen(choice, options.rule, options.out)
        except NotKept as error:
            missing += 1
            print(f"shoal: {error}", file=sys.stderr)
        else:
            print(f"{folder}: {_told(choice)}")
    if missing:
        print(f"shoal: {missing} of {len(choices)} models were not kept", file=sys.stderr)
    return 1 if missing else 0


def _told(choice: Any) -> str:
    return (
        f"draw {choice.draw} (of {choice.draws}), step {choice.step} (record {choice.record} of "
        f"{choice.records}), {100 * choice.accuracy:.1f} % on {choice.test_domain}"
    )


def _refuse_unknown(what: str, asked: list[str] | None, there: list[str]) -> None:
    from ..choices import choose

    for name in asked or ():
        choose(f"{what} of these runs", name, sorted(set(there)))
