"""``shoal report``: tables of the benchmark, with averages and ranks."""

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..results.selection import ALL_RULES
from .loading import add_places


def finished_runs(folders: Sequence[Path]) -> list[Any]:
    """Return the runs in these folders, ours and DomainBed's; say which cannot be told apart."""
    from ..results.domainbed import read_domainbed
    from ..results.records import failures, read_runs

    theirs = [run for folder in folders for run in read_domainbed(folder)]
    # A folder may be named twice, or lie in another.
    once = {(run.path and run.path.resolve(), *run.identity): run for run in theirs}
    runs = [*read_runs(folders), *once.values()]
    if not runs:
        failed = len(failures(folders))
        why = f"; {failed:,} failed, and 'shoal status {folders[0]}' says why" if failed else ""
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}{why}")
    note_twins(runs)
    return _with_search(runs)


def _with_search(runs: list[Any]) -> list[Any]:
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


def failed_runs(folders: Sequence[Path]) -> list[Any]:
    """Return the failed runs, each once, but for those whose data have changed since."""
    from ..results.records import failures

    found = {one.path.resolve(): one for one in failures(folders)}
    if not found:
        return []
    from ..sweeps.status import left_behind

    gone = {path.resolve() for at in sweeps_of(found.values()) for path in left_behind(at)}
    return [one for path, one in found.items() if path not in gone]


def sweeps_of(failed: Iterable[Any]) -> list[Path]:
    """Return the folders of sweeps in which these runs lie."""
    from ..sweeps.plan import PLAN

    above = (next((at for at in one.path.parents if (at / PLAN).exists()), None) for one in failed)
    return [at for at in dict.fromkeys(above) if at is not None]


def note_twins(runs: list[Any]) -> None:
    """Say where two runs differ in nothing that the tables know, as in steps or in the network."""
    from ..report.notes import twins

    if found := twins(runs):
        first, second = found[0]
        print(
            f"shoal: runs are there more than once ({len(found):,}), and rules choose between "
            f"them: {first.path} and {second.path}; report sweeps of different protocols apart",
            file=sys.stderr,
        )


PAGE = "report.html"


def add(commands: Any) -> None:
    """Add the command."""
    summary = "tables of the benchmark, with averages and ranks"
    parser = commands.add_parser(
        "report", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="sweeps and runs of shoal's, or output folders of DomainBed's",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="the paper's two main tables, from the published cells",
    )
    parser.add_argument(
        "--rule",
        choices=(*ALL_RULES, "all"),
        default="all",
        help="how models are selected (default: %(default)s)",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        action="append",
        default=[],
        metavar=("METHOD", "OTHER"),
        help="the paired difference of these two, beside those of all to ERM; may be repeated",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, "html"),
        default="terminal",
        help="html is one page that opens offline (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"write it there (html: {PAGE} by default)"
    )
    add_places(parser.add_argument_group("html: where sample images are looked for"))
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..reference import BENCHMARKS
    from ..storage import write_text

    if options.published == bool(options.folders):
        raise ValueError("shoal report takes folders, or --published: one of the two")
    if options.published:
        if options.compare:
            raise ValueError("--compare takes pairs of runs, which published cells have none of")
        if options.format == "html":
            raise ValueError("a page is made of runs: give --format html with folders")
        rules = list(BENCHMARKS) if options.rule == "all" else [options.rule]
        if options.rule not in (*BENCHMARKS, "all"):
            raise ValueError(f"the paper has no table for the rule {options.rule}")
        show = partial(FORMATS[options.format], rules)
    elif options.format == "html":
        return _page(options)
    else:
        failed = failed_runs(options.folders)
        show = partial(SWEEP_FORMATS[options.format], _chapters(options, failed), failed)
    if options.out is None:
        show(None)
        return 0
    text = io.StringIO()
    show(text)
    write_text(options.out, text.getvalue())
    print(f"wrote {options.out}")
    return 0


def _page(options: argparse.Namespace) -> int:
    from ..report.page import sweep_page
    from ..storage import write_text
    from .samples import samples_of

    if options.compare:
        raise ValueError("the page compares any two methods: --compare is for the other formats")
    out, runs = options.out or Path(PAGE), finished_runs(options.folders)
    failed, samples = failed_runs(options.folders), samples_of(runs, options)
    write_text(out, sweep_page(runs, _rules(options), failed, samples))
    print(f"wrote {out}")
    return 0


def _terminal(rules: list[str], file: io.StringIO | None) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from ..report.grid import grid
    from ..report.published import published_benchmark, published_notes, remark_lines

    console = Console(file=file)
    for rule in rules:
        _show(console, grid(published_benchmark(rule)))
        for note in published_notes(rule):
            console.print(Padding(Text(note), (0, 1, 1, 1), expand=False))
    _tell_marks(console)
    console.print(Text(" How these cells were obtained"))
    for line in remark_lines():
        console.print(Padding(Text(line), (0, 1, 0, 3), expand=False))


def _tell_marks(console: Any) -> None:
    """Print how numbers are marked, where styles are to be seen."""
    from rich.text import Text

    if console.is_terminal:
        marks = Text("first", "bold"), Text("second", "underline"), Text("worse than ERM", "dim")
        console.print(Text(" Marks: ").append_text(Text(", ").join(marks)).append(".\n"))


def _show(console: Any, shown: Any) -> None:
    """Print a grid under its title, which may be wider than the table."""
    from rich.text import Text

    from ..report.views import terminal

    console.print(Text(shown.title, "italic"))
    for piece in terminal(shown, console.width):
        console.print(piece)


def _markdown(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.published import published_page

    print(published_page(rules), end="", file=file)


def _latex(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.grid import grid
    from ..report.published import published_benchmark
    from ..report.views import latex

    print("\n".join(latex(grid(published_benchmark(r))) for r in rules), end="", file=file)


def _json(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.published import published_as_data

    print(json.dumps(published_as_data(rules), indent=2, ensure_ascii=False), file=file)


FORMATS = {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "json": _json}


def _rules(options: argparse.Namespace) -> tuple[str, ...]:
    return ALL_RULES if options.rule == "all" else (options.rule,)


def _chapters(options: argparse.Namespace, failed: list[Any]) -> list[Any]:
    from ..report.sweep import chapters, nothing_chosen

    runs, rules = finished_runs(options.folders), _rules(options)
    found = chapters(runs, rules, _compared(options.compare, runs), failed)
    if not found:
        raise ValueError(nothing_chosen(len(runs), rules))
    return found


def _compared(asked: list[list[str]], runs: list[Any]) -> list[tuple[str, str]]:
    """Return the pairs of methods that were asked for; raise where the runs have no such."""
    from ..choices import choose

    there = {run.algorithm for run in runs}
    for one, other in asked:
        for name in (one, other):
            choose("method of these runs", name, there)
        if one == other:
            raise ValueError(f"--compare takes two methods, got {one} twice")
    return [(one, other) for one, other in asked]


def _failed(failed: list[Any], written: Callable[[str], str] = str) -> list[str]:
    """Return what to know of the runs that failed, as ``written``, and what to do."""
    if not failed:
        return []
    from ..fitting.setup import SETUP
    from ..report.notes import advice_lines, failure_lines

    # A fit has a plan, too, and goes on by a command of its own.
    sweeps = [str(at) for at in sweeps_of(failed) if not (at / SETUP).exists()]
    return [*map(written, failure_lines(failed)), *advice_lines(sweeps)]


def _sweep_terminal(chapters: list[Any], failed: list[Any], file: io.StringIO | None) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=file)

    def say(line: str, style: str = "", below: int = 0) -> None:
        console.print(Padding(Text(line, style), (0, 1, below, 1), expand=False))

    for chapter in chapters:
        for line in chapter.cautions:
            say(line, "bold", below=1)
        for shown in chapter.all_tables:
            _show(console, shown)
        for line in chapter.lines:
            say(line)
        console.print()
    _tell_marks(console)
    for place, line in enumerate(_failed(failed)):
        say(line, "" if place else "bold")


def _sweep_markdown(chapters: list[Any], failed: list[Any], file: io.StringIO | None) -> None:
    from ..report.views import LEGEND, as_markdown, markdown

    for chapter in chapters:
        print(f"## {chapter.rule}\n", file=file)
        for line in chapter.cautions:
            print(f"**{as_markdown(line)}**\n", file=file)
        for shown in chapter.all_tables:
            print(markdown(shown), file=file)
        print("\n".join(f"- {as_markdown(line)}" for line in chapter.lines) + "\n", file=file)
    if failed:
        listed = "\n".join(f"- {line}" for line in _failed(failed, as_markdown))
        print(f"## Failed runs\n\n{listed}\n", file=file)
    print(LEGEND, file=file)


def _sweep_latex(chapters: list[Any], failed: list[Any], file: io.StringIO | None) -> None:
    from collections import Counter
    from dataclasses import replace

    from ..report.views import latex

    seen = Counter[str]()
    for chapter in chapters:
        for note in (*chapter.cautions, *chapter.lines):
            print(f"% {note}", file=file)
        for shown in chapter.all_tables:
            seen[shown.label] += 1  # a label must name one table
            number = f"-{seen[shown.label]}" if seen[shown.label] > 1 else ""
            print(latex(replace(shown, label=shown.label + number)), file=file)
    for line in _failed(failed):
        print(f"% {line}", file=file)


def _sweep_json(chapters: list[Any], failed: list[Any], file: io.StringIO | None) -> None:
    from ..report.as_json import as_data

    text = json.dumps(as_data(chapters, failed), indent=2, ensure_ascii=False, allow_nan=False)
    print(text, file=file)


SWEEP_FORMATS = {
    "terminal": _sweep_terminal,
    "markdown": _sweep_markdown,
    "latex": _sweep_latex,
    "json": _sweep_json,
}
