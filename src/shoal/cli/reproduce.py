"""``shoal reproduce``: experiments of the paper."""

import argparse
from pathlib import Path
from typing import Any

from .arguments import device, positive
from .reproductions import ablation, hessian, linear, overhead, pictures
from .terminal import bars

ANALYSES = (linear, hessian, pictures, overhead, ablation)


def add(commands: Any) -> None:
    """Add the command and its experiments."""
    parser = commands.add_parser("reproduce", help="run an experiment of the paper")
    experiments = parser.add_subparsers(metavar="EXPERIMENT", required=True)
    _colored_mnist_options(
        experiments.add_parser(
            "colored-mnist",
            help="the paper's proof of concept (table:cmnist_25, table:cmnist_0, table:cmnistend)",
            description="Colored MNIST in the IRM setup, beside the paper's cells.",
        )
    )
    for analysis in ANALYSES:
        analysis.add(experiments)


def _colored_mnist_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        default=None,
        help="methods or tables (default: the six of table:cmnist_25); 'list' shows them all",
    )
    parser.add_argument(
        "--restarts", type=positive, default=10, metavar="N", help="default: %(default)s"
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
    parser.set_defaults(run=_colored_mnist, after_interrupt="the same command goes on from here")


def _colored_mnist(options: argparse.Namespace) -> int:
    import torch
    from rich.console import Console

    from ..checks import choose
    from ..experiments import restarts
    from ..experiments.colored_mnist import METHODS, TABLES, Setup
    from ..report.tables import markdown, terminal
    from ..storage import write_json, write_text

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
    on = device(options.device)
    setup = Setup(flip=options.flip, tf32=options.precision == "tf32")
    folder = restarts.Folder.open(options.out, setup)
    with bars("steps") as shown:
        restarts.run(methods, options.restarts, setup, on, folder, shown)
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
        "device": restarts.device_name(on),
        "torch": torch.__version__,
        "precision": options.precision,
        "restarts": options.restarts,
        "tables": tables,
    }
    write_json(options.out / f"{name}.json", about)
    write_text(options.out / f"{name}.md", "\n".join(pages))
    print(f"Written: {options.out / name}.json and .md")
    return 0
