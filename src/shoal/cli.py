"""The command ``shoal``."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")
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
