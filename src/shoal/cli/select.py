"""``shoal select``: save the models that a selection rule chose."""

import argparse
from pathlib import Path
from typing import Any

from ..catalogue import own_method
from ..report.screen import print_lines
from ..results.selection import ALL_RULES
from .domainbed import dataset_name, refuse_domainbed
from .notes import add_quiet, note, report_error


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "select",
        help="save the models that a selection rule chose from a sweep",
        description="For every data set, method, test domain and trial, save the model that a rule "
        "chose among all draws and records, with a card on how it was chosen. Averages of the "
        "weights count as methods of their own, such as fishr+swad. A run keeps the weights of its "
        "last record; give --keep-best to 'shoal sweep' to keep those that a rule can choose. Runs "
        "of DomainBed are for 'shoal report': their models are pickles, which shoal never opens.",
        examples="""
            shoal select out/sweep --rule training-domain --out models
            shoal select out/sweep --rule training-domain --algorithms fishr fishr+swad --out models
        """,
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="folders with sweeps or runs"
    )
    parser.add_argument(
        "--rule", choices=ALL_RULES, required=True, help="the rule that selects models"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the saved models"
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        type=own_method,
        metavar="NAME",
        help="only these methods or averages",
    )
    parser.add_argument(
        "--datasets", nargs="+", type=dataset_name, metavar="NAME", help="only these data sets"
    )
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="run the same command again to save all models")


def _run(options: argparse.Namespace) -> int:
    from ..report.notes import diverged_runs
    from ..results.averages import with_averages
    from ..results.domainbed import read_domainbed
    from ..results.records import read_runs
    from ..results.selection import select
    from ..runs.best_weights import NotKept, save_chosen
    from .report import failed_runs, warn_of_twins

    runs = read_runs(options.folders)
    if not runs:
        refuse_domainbed(*options.folders)
        raise ValueError(f"no finished run in {', '.join(map(str, options.folders))}")
    if theirs := sum(len(read_domainbed(folder)) for folder in options.folders):
        note(f"{theirs:,} runs of DomainBed are left out: their models are pickles")
    warn_of_twins(runs)
    rows = with_averages(runs)
    _check_known("method", options.algorithms, [row.algorithm for row in rows])
    _check_known("data set", options.datasets, [run.dataset for run in runs])
    selected = select(rows, options.rule, diverged_runs(failed_runs(options.folders)))
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
        raise ValueError(f"{options.rule} cannot choose: no run has a score that is a number")
    if not choices:
        raise ValueError(
            f"{options.rule} cannot choose among these {len(runs)} runs: it needs others"
        )
    missing = 0
    for choice in choices:
        try:
            folder = save_chosen(choice, options.rule, options.out)
        except NotKept as error:
            missing += 1
            report_error(str(error))
        else:
            print_lines(f"{folder}: {_describe(choice)}")
    if missing:
        report_error(f"{missing} of {len(choices)} models were not kept")
    return 1 if missing else 0


def _describe(choice: Any) -> str:
    return (
        f"draw {choice.draw} (of {choice.draws}), step {choice.step} (record {choice.record} of "
        f"{choice.records}), {100 * choice.accuracy:.1f} % on {choice.test_domain}"
    )


def _check_known(what: str, asked: list[str] | None, there: list[str]) -> None:
    from ..choices import choose

    for name in asked or ():
        choose(f"{what} of these runs", name, sorted(set(there)))
