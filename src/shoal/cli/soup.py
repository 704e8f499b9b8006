"""``shoal soup``: average the runs of a sweep, and measure members, averages and ensembles."""

import argparse
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import DATASETS, own_method, title_of
from ..report.screen import open_console, plain, print_document, print_json
from ..results.soups import BEST_RECORD, WEIGHTS
from .domainbed import dataset_name, refuse_domainbed
from .extras import require
from .loading import add_places, decode_with_progress, load_and_report
from .notes import add_quiet, note
from .options import add_device, device, name_domains, whole
from .progress import amounts

if TYPE_CHECKING:
    from ..results.records import RunResult
    from ..results.soups import Soup
    from ..sweeps.members import Group

FORMATS = ("terminal", "markdown", "json")
FOLDER = "soups"
DESCRIPTION = """\
For every data set, method, test domain and trial of a sweep, average the
weights of its draws, which share their start: of all (uniform soup), and of
those that do not lower the accuracy on the training domains (greedy soup).
Beside them: each member, the ensemble that sums their logits, and, after
--start linear-probe, interpolations of the uniform soup with the start.
Averages are saved as models; what was measured is not measured again."""
# Returns a data set and the cache of its images, by name and trial.
Load = Callable[[str, int], tuple[Any, Any]]


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "soup",
        help="average the runs of a sweep: soups, ensembles, interpolation with the start",
        description=DESCRIPTION,
        examples="""
            shoal sweep --algorithms erm --datasets pacs --data DIR --trials 1 --search mild \\
                --start linear-probe --keep-best training-domain --out out/mild
            shoal soup out/mild --data DIR
            shoal soup out/mild --data DIR --of sma --test-domain sketch   # an ensemble of averages
            shoal eval out/mild/soups/pacs-erm-sketch-t0-best/uniform --dataset pacs --data DIR
        """,
    )
    name_domains(parser)
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="the folder of a sweep")
    parser.add_argument(
        "--of",
        choices=WEIGHTS,
        help="which weights of a run: best (the record with the best accuracy on the training "
        "domains, kept by --keep-best training-domain), last, or an average along the run "
        "(default: best if all runs kept it, otherwise last)",
    )
    only = parser.add_argument_group("which runs (default: all)")
    only.add_argument(
        "--algorithms",
        nargs="+",
        type=own_method,
        metavar="NAME",
        help="only these methods; your own as package.module:Class or path/to/file.py:Class",
    )
    only.add_argument(
        "--datasets",
        nargs="+",
        type=dataset_name,
        metavar="NAME",
        help="only these data sets; your own as the folder or manifest that was trained on",
    )
    only.add_argument("--test-domain", nargs="+", metavar="DOMAIN", help="only these test domains")
    only.add_argument("--trial", nargs="+", type=whole, metavar="T", help="only these trials")
    where = parser.add_argument_group("where to run and what to write")
    add_places(where)
    add_device(where)
    where.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for models and numbers (default: SWEEP/soups)",
    )
    where.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    add_quiet(where)
    parser.set_defaults(run=_run, after_interrupt="the same command resumes with the next soup")


def _run(options: argparse.Namespace) -> int:
    require("rich", "safetensors")

    from ..results.records import read_runs
    from ..sweeps.members import grouped
    from .report import warn_of_twins

    runs = read_runs([options.sweep])
    if not runs:
        refuse_domainbed(options.sweep)
        raise ValueError(f"no finished run in {options.sweep}")
    methods, datasets = _methods(options.algorithms or ()), _datasets(options)
    asked = _asked(runs, options, list(methods), list(datasets))
    warn_of_twins(asked)
    groups = _groups(grouped(asked), options)
    load = lru_cache(maxsize=1)(partial(_load, options, datasets))
    out = options.out or options.sweep / FOLDER
    found = [_soup(group, out, options, methods, load) for group in groups]
    if options.format == "json":
        print_json([soup.to_json() for soup in found], indent=2)
    else:
        _show(found, out, options.format)
    return 0


def _methods(asked: Sequence[str]) -> dict[str, Any]:
    """Return the classes of methods, by their names in runs."""
    from .methods import name_of, with_settings

    classes = {text: with_settings(text)[0] for text in asked}
    return {name_of(text, found): found for text, found in classes.items()}


def _datasets(options: argparse.Namespace) -> dict[str, str]:
    """Return what names each data set on this machine, by its name in runs."""
    return {
        text if text in DATASETS else load_and_report(text, options.data).name: text
        for text in options.datasets or ()
    }


def _load(
    options: argparse.Namespace, datasets: dict[str, str], name: str, trial: int
) -> tuple[Any, Any]:
    """Return a data set and the cache of its images."""
    if name not in DATASETS and name not in datasets:
        raise ValueError(
            f"the runs were trained on your own data, {name}: name its folder or manifest with "
            "--datasets"
        )
    dataset = load_and_report(datasets.get(name, name), options.data, trial)
    return dataset, decode_with_progress(dataset, options.cache)


def _asked(
    runs: "Sequence[RunResult]",
    options: argparse.Namespace,
    methods: Sequence[str],
    datasets: Sequence[str],
) -> "list[RunResult]":
    """Return the runs that the options ask for; raise for names that no run has."""
    from ..choices import choose

    singles = [run for run in runs if len(run.test_domains) == 1]
    asked: dict[str, tuple[Sequence[Any], list[Any]]] = {
        "method": (methods, [run.algorithm for run in singles]),
        "data set": (datasets, [run.dataset for run in singles]),
        "test domain": (options.test_domain or (), [run.test_domains[0] for run in singles]),
        "trial": (options.trial or (), [run.trial for run in singles]),
    }
    for what, (names, there) in asked.items():
        for name in names:
            choose(f"{what} of these runs", str(name), sorted(set(map(str, there))))
    return [
        run
        for number, run in enumerate(singles)
        if all(not names or there[number] in names for names, there in asked.values())
    ]


def _groups(groups: "Sequence[Sequence[RunResult]]", options: argparse.Namespace) -> "list[Group]":
    """Return the groups of two runs or more; all are checked before any is measured."""
    from ..runs.best_weights import NotKept
    from ..sweeps.members import group_of

    _warn_of_unfinished(groups, options.sweep)
    several = [runs for runs in groups if len(runs) > 1]
    if not several:
        raise ValueError(
            f"nothing to average in {options.sweep}: a soup needs two finished draws or more of "
            "one method, test domain and trial"
        )
    found = []
    for runs in several:
        found.append(group_of(runs, options.of))
        if options.of is None and found[-1].of != BEST_RECORD and len(found) == 1:
            try:
                group_of(runs, BEST_RECORD)
            except NotKept as error:
                note(f"the last weights are averaged, because {error}")
    return found


def _warn_of_unfinished(groups: "Sequence[Sequence[RunResult]]", sweep: Path) -> None:
    """Print how many runs of these groups are planned and not finished."""
    from ..results.index import PLAN
    from ..sweeps.plan import read_plan

    if not (sweep / PLAN).exists():
        return
    done = {runs[0].identity[:-1]: len(runs) for runs in groups}
    planned = [
        (run.dataset, run.algorithm, run.test_domains, run.trial) for run in read_plan(sweep)
    ]
    missing = sum(place in done for place in planned) - sum(done.values())
    if missing > 0:
        subject = "1 run of these soups is" if missing == 1 else f"{missing:,} runs of these are"
        note(f"{subject} not finished: 'shoal status {sweep}'")


def _soup(
    group: "Group", out: Path, options: argparse.Namespace, methods: dict[str, Any], load: Load
) -> "Soup":
    """Return the soup of a group, read if it was made before."""
    from ..sweeps.soup import make_soup, read_soup, write_soup

    found = read_soup(out, group.name, group.key)
    if found is not None:
        return found
    run = group.first
    dataset, cache = load(run.dataset, run.trial)
    title = f"{title_of(run.algorithm)} on {group.test_domain}, trial {run.trial}"
    with amounts("images") as shown:
        found = make_soup(
            group,
            dataset,
            cache,
            out=out,
            device=device(options.device),
            method=methods.get(run.algorithm),
            progress=partial(shown, title),
        )
    write_soup(out, found)
    return found


def _show(soups: "Sequence[Soup]", out: Path, kind: str) -> None:
    """Print a table for every soup, and one over test domains where there are several."""
    from ..escapes import as_markdown
    from ..report.soups import soup_lines, soup_sheet, summary_sheets
    from ..report.views import sheet_markdown, sheet_terminal

    shown = [(soup_sheet(soup), soup_lines(soup, str(out / soup.name))) for soup in soups]
    shown += [(sheet, []) for sheet in summary_sheets(soups)]
    if kind == "markdown":
        for sheet, lines in shown:
            print_document(sheet_markdown([sheet]))
            print_document("".join(f"- {as_markdown(line)}\n" for line in lines))
        return
    from rich.padding import Padding

    screen = open_console()
    for sheet, lines in shown:
        screen.print(sheet_terminal(sheet))
        for line in lines:
            screen.print(Padding(plain(line), (0, 1, 0, 1), expand=False))
        screen.print()
