"""``shoal report``: tables and pages of sweeps, and the paper's published tables."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import own_method
from ..report.screen import print_lines
from ..results.selection import ALL_RULES
from .extras import require
from .loading import add_places
from .notes import add_quiet, note

if TYPE_CHECKING:
    from ..report.views import Document
    from ..results.records import Failure, RunResult

PAGE = "report.html"


def finished_runs(folders: Sequence[Path]) -> "list[RunResult]":
    """Return the runs in these folders, ours and DomainBed's; warn if some cannot be told apart."""
    from ..results.averages import with_averages
    from ..results.domainbed import read_domainbed
    from ..results.records import failures, read_runs

    theirs = [run for folder in folders for run in read_domainbed(folder)]
    # A folder can be named twice, or be inside another.
    once = {(run.path and run.path.resolve(), *run.identity): run for run in theirs}
    runs = [*read_runs(folders), *once.values()]
    if not runs:
        failed = len(failures(folders))
        why = f"; {failed:,} failed, see 'shoal status {folders[0]}'" if failed else ""
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}{why}")
    warn_of_twins(runs)
    return with_averages(_with_search(runs))


def _with_search(runs: "list[RunResult]") -> "list[RunResult]":
    """Return the runs with the hyperparameters that were set by hand.

    A sweep writes them when it is planned. For single runs, and sweeps of versions before that,
    they are computed from the search distributions, which loads the methods and with them torch.
    """
    from ..catalogue import DATASETS

    published = [run for run in runs if run.protocol and run.dataset in DATASETS]
    if all(run.set_hparams is not None for run in published):
        return runs
    from ..sweeps.plan import with_search

    return with_search(runs)


def failed_runs(folders: Sequence[Path]) -> "list[Failure]":
    """Return the failed runs, each once, without those whose data have changed since."""
    from ..results.records import failures

    found = {one.path.resolve(): one for one in failures(folders)}
    if not found:
        return []
    from ..sweeps.status import stale_folders

    gone = {path.resolve() for at in sweeps_of(found.values()) for path in stale_folders(at)}
    return [one for path, one in found.items() if path not in gone]


def sweeps_of(failed: "Iterable[Failure]") -> list[Path]:
    """Return the folders of the sweeps that these runs belong to."""
    from ..results.index import PLAN

    above = (next((at for at in one.path.parents if (at / PLAN).exists()), None) for one in failed)
    return [at for at in dict.fromkeys(above) if at is not None]


def warn_of_twins(runs: "Sequence[RunResult]") -> None:
    """Warn if runs have the same data set, method, test domains, trial and draw."""
    from ..report.notes import twins

    if found := twins(runs):
        first, second = found[0]
        note(
            f"some draws have more than one run ({len(found):,} in total), and rules choose "
            f"between them: {first.path} and {second.path}; report sweeps of different protocols "
            "separately"
        )


def add(commands: Any) -> None:
    """Add the command."""
    from ..report.views import FORMATS

    parser = commands.add_parser(
        "report",
        help="print the tables of a sweep, with averages, ranks and paired differences",
        description="Print the tables of a sweep for each selection rule: accuracies by data set "
        "and by test domain, ranks, and paired differences between methods. Published numbers "
        "are shown next to comparable runs.",
        examples="""
            shoal report out/sweep
            shoal report out/sweep --rule training-domain --compare fishr vrex
            shoal report out/sweep --format html --out page.html
            shoal report --published --format markdown
        """,
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="folders with sweeps or runs, of shoal or of DomainBed",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="print the paper's two main tables instead, from the published cells",
    )
    parser.add_argument(
        "--rule",
        choices=(*ALL_RULES, "all"),
        default="all",
        help="the rule that selects models (default: %(default)s)",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=own_method,
        action="append",
        default=[],
        metavar=("METHOD", "OTHER"),
        help="also print the paired difference of these two methods or averages, such as "
        "fishr+half; can be given several times (all methods are compared with ERM anyway)",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, "html"),
        default="terminal",
        help="html writes one page that opens offline (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"write the report to this file instead of printing it (html: default {PAGE})",
    )
    add_quiet(parser)
    add_places(parser.add_argument_group("sample images of the html page"))
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..report.views import FORMATS
    from ..results.records import FIT_SETUP
    from ..storage import print_aside

    require(*{"terminal": ["rich"], "html": ["jinja2"]}.get(options.format, []))
    if options.published == bool(options.folders):
        raise ValueError("give either folders or --published")
    for folder in options.folders:
        if (folder / FIT_SETUP).exists():
            raise ValueError(
                f"{folder} is the folder of a fit, which compares methods in another way than a "
                f"benchmark: open {folder / 'report.html'}, or give the same 'shoal fit' again, "
                "which prints its table and trains nothing that is done"
            )
    if options.format == "html":
        parts, out = _page(options), options.out or Path(PAGE)
        print_aside(out, lambda file: file.writelines(parts))
    else:
        document = _published(options) if options.published else _document(options)
        show, out = FORMATS[options.format], options.out
        if out is None:
            show(document)
            return 0
        print_aside(out, lambda file: show(document, file))
    print_lines(f"wrote {out}")
    return 0


def _page(options: argparse.Namespace) -> "Iterator[str]":
    """Return the HTML page of a sweep, in parts."""
    from ..report.page import page_parts
    from .samples import samples_of

    if options.published:
        raise ValueError("--format html needs folders with runs, not --published")
    if options.compare:
        raise ValueError("--compare is for the other formats: the page compares any two methods")
    runs, failed = finished_runs(options.folders), failed_runs(options.folders)
    return page_parts(runs, _rules(options), failed, samples_of(runs, options))


def _published(options: argparse.Namespace) -> "Document":
    """Return the paper's tables."""
    from ..reference import BENCHMARKS
    from ..report.published import published_document

    if options.compare:
        raise ValueError("--compare needs folders with runs, not --published")
    if options.rule not in (*BENCHMARKS, "all"):
        raise ValueError(
            f"the paper has no table for the rule {options.rule}; expected one of: "
            f"{', '.join(BENCHMARKS)}"
        )
    return published_document(list(BENCHMARKS) if options.rule == "all" else [options.rule])


def _document(options: argparse.Namespace) -> "Document":
    """Return the report of a sweep: a section for each rule, and one on failed runs."""
    from ..report.as_json import as_data
    from ..report.sweep import no_choice_message, rule_reports
    from ..report.views import Document, Section

    failed = failed_runs(options.folders)
    runs, rules = finished_runs(options.folders), _rules(options)
    reports = rule_reports(runs, rules, _compared(options.compare, runs), failed)
    if not reports:
        raise ValueError(no_choice_message(runs, rules))
    sections = [
        Section(heading=one.rule, cautions=one.cautions, tables=one.all_tables, notes=one.lines)
        for one in reports
    ]
    sections += [_failures(failed)] if failed else []
    return Document(sections, partial(as_data, reports, failed))


def _failures(failed: "Sequence[Failure]") -> Any:
    """Return a section on the failed runs, with what to do about them."""
    from ..report.notes import advice_lines, failure_lines
    from ..report.views import Section
    from ..results.records import FIT_SETUP

    # A fit has a plan, too, but resumes by a command of its own.
    sweeps = [str(at) for at in sweeps_of(failed) if not (at / FIT_SETUP).exists()]
    return Section(heading="Failed runs", notes=failure_lines(failed), advice=advice_lines(sweeps))


def _rules(options: argparse.Namespace) -> tuple[str, ...]:
    return ALL_RULES if options.rule == "all" else (options.rule,)


def _compared(pairs: list[list[str]], runs: "Sequence[RunResult]") -> list[tuple[str, str]]:
    """Return the pairs of methods to compare; raise if there are no runs of one."""
    from ..choices import choose

    known = {run.algorithm for run in runs}
    for one, other in pairs:
        for name in (one, other):
            choose("method of these runs", name, known)
        if one == other:
            raise ValueError(f"--compare needs two different methods, got {one} twice")
    return [(one, other) for one, other in pairs]
