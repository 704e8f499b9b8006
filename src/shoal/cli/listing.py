"""``shoal list``: the methods with their papers, and the data sets with their sources."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..report.screen import open_console, plain, print_json, print_lines
from .extras import require
from .terminal import table

if TYPE_CHECKING:
    from ..datasets import DatasetSource


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "list",
        help="list the methods with their papers, or the data sets with their sources",
        description="List the names that other commands take. Which data sets are on this machine: "
        "'shoal data list'.",
        examples="""
            shoal list algorithms
            shoal list datasets --json
        """,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help=f"one of: {', '.join(LISTS)} (default: print what can be listed)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..choices import choose

    if options.what is None:
        if options.json:
            print_json(list(LISTS))
            return 0
        for name, (line, _) in LISTS.items():
            print_lines(f"shoal list {name:14} {line}")
        return 0
    require(*([] if options.json else ["rich"]))
    _, show = LISTS[choose("list", options.what, LISTS)]
    show(options.json)
    return 0


def _algorithms(as_json: bool) -> None:
    from ..algorithms import ALGORITHMS, VARIANTS
    from ..catalogue import title_of

    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": name, "paper": kind.paper, "year": kind.year, "summary": _summary(kind)}
            for name, kind in ALGORITHMS.items()
        ]
        rows += [{"name": name, **asdict(variant)} for name, variant in VARIANTS.items()]
        print_json(rows, indent=2)
        return
    from rich.console import Group
    from rich.padding import Padding

    shown = table(None, None)
    shown.add_column("Name", no_wrap=True)
    shown.add_column("Method", no_wrap=True)
    shown.add_column("Year", no_wrap=True)
    shown.add_column("What it does, and its paper")
    for name, kind in ALGORITHMS.items():
        paper = Padding(plain(kind.paper, style="dim"), (0, 0, 0, 2))
        text = Group(plain(_summary(kind)), paper)
        shown.add_row(plain(name), plain(title_of(name)), plain(str(kind.year)), text)
    screen = open_console()
    screen.print(shown)
    shown = table("Variants of the paper's ablations", None)
    shown.add_column("Name", no_wrap=True)
    shown.add_column("What it is, and its hyperparameters")
    for name, variant in VARIANTS.items():
        given = [f"{key}={text}" for key, text in variant.settings.items()]
        settings = plain(f"{variant.algorithm} with {', '.join(given)}", style="dim")
        summary = plain(f"{variant.summary} ({variant.table})")
        shown.add_row(plain(name), Group(summary, Padding(settings, (0, 0, 0, 2))))
    screen.print(shown)


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _datasets(as_json: bool) -> None:
    from ..catalogue import DATASETS
    from ..datasets import SOURCES

    if as_json:
        rows = [
            {
                "name": name,
                "domainbed": DATASETS[name].domainbed,
                "domains": source.domains,
                "classes": source.classes,
                "images": source.images,
                "source": _source(source),
                "terms": source.terms,
            }
            for name, source in SOURCES.items()
        ]
        print_json(rows, indent=2)
        return
    from rich.console import Group
    from rich.padding import Padding

    shown = table(None, "Your own images need no name: a folder of domain/class/file is one.")
    shown.add_column("Name", no_wrap=True)
    shown.add_column("Domains, and where the images come from")
    for heading in ("Classes", "Images"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, source in SOURCES.items():
        origin = Padding(plain(_source(source), style="dim"), (0, 0, 0, 2))
        shown.add_row(
            plain(name),
            Group(plain(", ".join(source.domains)), origin),
            f"{source.classes:,}",
            f"{source.images:,}",
        )
    open_console().print(shown)


def _source(source: "DatasetSource") -> str:
    """Return where the images come from, in words or as an address."""
    if source.embedded:
        return "made from the digits of MNIST, which come with shoal"
    how = "by hand: " if source.by_hand else ""
    return f"{how}{source.page}"


LISTS: dict[str, tuple[str, Callable[[bool], None]]] = {
    "algorithms": (
        "the methods, each with its paper, and the variants of the paper's ablations",
        _algorithms,
    ),
    "datasets": (
        "the published data sets: domains, classes, images, and where they come from",
        _datasets,
    ),
}
