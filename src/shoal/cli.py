"""The command ``shoal``."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from . import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    try:
        status: int = options.run(options)
    except (ValueError, OSError) as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"shoal: this command needs {error.name}; pip install 'shoal[cli,report]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"shoal: interrupted; {options.after_interrupt}", file=sys.stderr)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Classifiers that keep working on a domain they never saw.",
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="ERM, V-REx and Fishr on Colored MNIST, in under three minutes on a laptop"
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        help="folder for the page (default: %(default)s)",
    )
    demo.set_defaults(run=_demo, after_interrupt="the demo keeps nothing and starts anew")

    reproduce = commands.add_parser("reproduce", help="run an experiment of the paper")
    experiments = reproduce.add_subparsers(metavar="EXPERIMENT", required=True)
    _colored_mnist_options(
        experiments.add_parser(
            "colored-mnist",
            help="the paper's proof of concept (table:cmnist_25, table:cmnist_0, table:cmnistend)",
            description="Colored MNIST in the IRM setup, beside the paper's cells.",
        )
    )
    _hparams_options(
        commands.add_parser(
            "hparams",
            help="the hyperparameters of a draw, as DomainBed's random search draws them",
            description="The hyperparameters of a draw, as DomainBed's random search draws them.",
        )
    )
    listing = commands.add_parser("list", help="what there is to choose from")
    listing.add_argument("what", nargs="?", metavar="WHAT", help=", ".join(LISTS))
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list, after_interrupt="nothing was written")
    return parser


def _colored_mnist_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        default=None,
        help="methods or tables (default: the six of table:cmnist_25); 'list' shows them all",
    )
    parser.add_argument(
        "--restarts", type=_positive, default=10, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--flip",
        type=float,
        choices=(0.25, 0.0),
        default=0.25,
        help="share of wrong labels: 0.25, or 0 for table:cmnist_0 (default: %(default)s)",
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU where there is one"
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "tf32"),
        default="float32",
        help="matrix products on a GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/colored-mnist"),
        help="folder for records; an interrupted run goes on from it (default: %(default)s)",
    )
    parser.set_defaults(
        run=_reproduce_colored_mnist, after_interrupt="the same command goes on from here"
    )


def _hparams_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM",
        help="a name of 'shoal list algorithms', or your own: package.module:Class or "
        "path/to/file.py:Class",
    )
    parser.add_argument(
        "--dataset", required=True, metavar="NAME", help="such as colored-mnist or pacs"
    )
    parser.add_argument(
        "--trial", type=_whole, default=0, metavar="T", help="trial_seed (default: %(default)s)"
    )
    parser.add_argument(
        "--draw",
        type=_whole,
        default=0,
        metavar="K",
        help="hparams_seed; 0 is the defaults (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="a value for every draw, a search, or both: lr=0.01, 'penalty_weight=10^U(1, 5)', "
        "'ema_decay=0.95 ~ U(0.9, 0.99)'",
    )
    parser.add_argument("--json", action="store_true", help="print names and values as JSON")
    parser.set_defaults(run=_hparams, after_interrupt="nothing was written")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 or more, got {text!r}")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console

    from .experiments.demo import run
    from .report.demo import demo_page, demo_table
    from .storage import write_text

    import_module("jinja2")  # for the page: missing now is better than missing after training
    with _bars("steps") as bars:
        result = run(bars)
    page = options.out / "index.html"
    write_text(page, demo_page(result))
    console = Console()
    console.print(demo_table(result))
    print(f"The page with curves and digits: {page}")
    return 0


def _reproduce_colored_mnist(options: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from .checks import choose
    from .experiments import restarts
    from .experiments.colored_mnist import METHODS, TABLES, Setup
    from .report.tables import markdown, terminal
    from .storage import write_json, write_text

    console = Console()
    asked: list[str] = options.methods or ["table:cmnist_25" if options.flip else "table:cmnist_0"]
    if asked == ["list"]:
        for key, method in METHODS.items():
            console.print(f"{key:28} {method.name}", highlight=False)
        for label, keys in TABLES.items():
            console.print(f"{label:28} {', '.join(keys)}", highlight=False)
        return 0
    methods: list[str] = []
    for name in asked:
        choose("method", name, [*METHODS, *TABLES])
        methods += [key for key in TABLES.get(name, (name,)) if key not in methods]
    device = _device(options.device)
    setup = Setup(flip=options.flip, tf32=options.precision == "tf32")
    folder = restarts.Folder.open(options.out, setup)
    with _bars("steps") as bars:
        restarts.run(methods, options.restarts, setup, device, folder, bars)
    tables: dict[str, Any] = {}
    pages = []
    for label in restarts.tables_of(methods, options.flip):
        rows = restarts.table(label, options.restarts, options.flip, folder)
        tables[label] = rows
        title = f"{label}, {100 * options.flip:g} % of labels flipped"
        console.print(terminal(rows, title=title))
        pages.append(markdown(rows, title=title))
    name = f"results-flip{options.flip:g}"
    about = {
        "command": "shoal reproduce colored-mnist",
        "device": restarts.device_name(device),
        "torch": torch.__version__,
        "precision": options.precision,
        "restarts": options.restarts,
        "tables": tables,
    }
    write_json(options.out / f"{name}.json", about)
    write_text(options.out / f"{name}.md", "\n".join(pages))
    print(f"Written: {options.out / name}.json and .md")
    return 0


def _hparams(options: argparse.Namespace) -> int:
    from .algorithms.hparams import SCALE_OF, constant, draw, searches
    from .checks import choose
    from .own import with_settings

    method, settings = with_settings(options.algorithm)
    kind, settings = method.Hparams, settings | _settings(options.set)
    scale = SCALE_OF[choose("data set", options.dataset, SCALE_OF)]
    values = asdict(draw(kind, scale, options.trial, options.draw, settings))
    if options.json:
        print(json.dumps(values, indent=2))
        return 0
    from rich.console import Console
    from rich.text import Text

    which = f"draw {options.draw}" if options.draw else "draw 0, the defaults"
    table = _table(
        f"{options.algorithm} on {options.dataset}: trial {options.trial}, {which}",
        "Under a name: DomainBed's. –: not searched. --json gives every digit.",
    )
    table.add_column("Name", no_wrap=True)
    table.add_column("Value", overflow="fold")
    table.add_column("Search", overflow="fold", min_width=16)
    table.add_column("What it is", overflow="fold", min_width=16)
    found = searches(kind, scale, settings)
    for f in fields(kind):
        name, key, value = Text(f.name), f.metadata["key"], values[f.name]
        if key != f.name:
            name.append(f"\n  {key}", style="dim")
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        search = found[f.name].distribution.text
        searched = search != constant(value).text
        row = (shown, search if searched else "–", f.metadata["help"])
        table.add_row(name, *map(Text, row))
    Console().print(table)
    return 0


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for setting in given:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes name=value, got {setting!r}")
        if name in settings:
            raise ValueError(f"--set has {name} twice: {settings[name]!r} and {text!r}")
        settings[name] = text
    return settings


def _list(options: argparse.Namespace) -> int:
    from .checks import choose

    if options.what is None:
        if options.json:
            print(json.dumps(list(LISTS)))
            return 0
        for name, (line, _) in LISTS.items():
            print(f"shoal list {name:14} {line}")
        return 0
    _, show = LISTS[choose("list", options.what, LISTS)]
    show(options.json)
    return 0


def _list_algorithms(as_json: bool) -> None:
    from .algorithms import ALGORITHMS, VARIANTS

    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": name, "paper": kind.paper, "year": kind.year, "summary": _summary(kind)}
            for name, kind in ALGORITHMS.items()
        ]
        rows += [{"name": name, **asdict(variant)} for name, variant in VARIANTS.items()]
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console, Group
    from rich.padding import Padding
    from rich.text import Text

    table = _table(None, None)
    table.add_column("Name", no_wrap=True)
    table.add_column("Year", no_wrap=True)
    table.add_column("What it does, and its paper")
    for name, kind in ALGORITHMS.items():
        paper = Padding(Text(kind.paper, style="dim"), (0, 0, 0, 2))
        table.add_row(Text(name), Text(str(kind.year)), Group(Text(_summary(kind)), paper))
    console = Console()
    console.print(table)
    table = _table("Variants of the paper's ablations", None)
    table.add_column("Name", no_wrap=True)
    table.add_column("What it is, and its hyperparameters")
    for name, variant in VARIANTS.items():
        given = [f"{key}={text}" for key, text in variant.settings.items()]
        settings = Text(f"{variant.algorithm} with {', '.join(given)}", style="dim")
        lines = Text(f"{variant.summary} ({variant.table})"), Padding(settings, (0, 0, 0, 2))
        table.add_row(Text(name), Group(*lines))
    console.print(table)


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


LISTS: dict[str, tuple[str, Callable[[bool], None]]] = {
    "algorithms": ("the methods, each with its paper", _list_algorithms),
}


def _table(title: str | None, caption: str | None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title) if title else None,
        caption=Text(caption) if caption else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
    )


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; one of: auto, cpu, cuda, cuda:0 …") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}; one of: auto, cpu, cuda, cuda:0 …")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda was asked for, but torch sees no GPU; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} was asked for, torch sees {torch.cuda.device_count()}")
    return device


@contextmanager
def _bars(unit: str) -> Any:
    """Show one progress bar per method; lines where there is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}
        counts: dict[str, dict[int, int]] = {}
        told = time.monotonic()

        def report(method: str, restart: int, done: int, total: int) -> None:
            nonlocal told
            steps = counts.setdefault(method, {})
            steps[restart] = done
            if method not in tasks:
                tasks[method] = progress.add_task(method, total=total)
            progress.update(tasks[method], completed=sum(steps.values()), total=total * len(steps))
            if not console.is_terminal and (time.monotonic() - told > 15 or done == total):
                told = time.monotonic()
                print(f"{method}: restart {restart}, step {done} of {total}", file=sys.stderr)

        yield report


if __name__ == "__main__":
    sys.exit(main())
