"""``shoal reproduce``: experiments of the paper."""

import argparse
from pathlib import Path
from typing import Any

from . import ablations
from .options import add_precision, device, positive
from .terminal import bars, show_and_write


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """Add where the results go."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out") / name,
        metavar="DIR",
        help="folder for numbers, tables and figures (default: %(default)s)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add where it is computed."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU where there is one"
    )


def add_size(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a size that a CPU trains in minutes."""
    parser.add_argument(
        "--small",
        action="store_true",
        help="the demo's size: 8,000 examples of each domain, 256 units, 300 updates",
    )


def opened(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the setup of Colored MNIST that was asked for, and its folder."""
    from ..experiments import colored_mnist, demo
    from ..experiments.restarts import RestartFolder

    setup = demo.SETUP if options.small else colored_mnist.Setup()
    return setup, RestartFolder.open(options.out, setup)


def _add_hessian(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "hessian",
        help="Hessians and gradient variances, ERM against Fishr "
        "(table:simhessiangradvar, table:hessianermfishr, four figures)",
        description="Colored MNIST with two logits: exact Hessian diagonals in all weights on the "
        "way. A point per step on a GPU; on a CPU give --small --every 10.",
    )
    parser.add_argument("--restarts", type=positive, default=1, help="default: %(default)s")
    parser.add_argument(
        "--every", type=positive, default=1, metavar="N", help="steps between points (default: 1)"
    )
    add_size(parser)
    add_device(parser)
    add_out(parser, "hessian")
    parser.set_defaults(run=_run_hessian, after_interrupt="restarts that are done are kept")


def _run_hessian(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ..experiments import hessian
    from ..experiments.hessian import gap_dynamics, hessian_dynamics
    from ..experiments.sheets import hessian_sheets

    setup, folder = opened(options)
    with bars("steps") as shown:
        records = hessian.run(
            options.restarts, options.every, setup, device(options.device), folder, shown
        )
    result = {"setup": asdict(setup), "tables": hessian.tables(records), "records": records}
    figures = {}
    for name, mine in records.items():
        curves = hessian.mean_curves(mine)
        jump = setup.jump_step if name == "Fishr" else None
        figures[f"dynamics-{name.lower()}"] = gap_dynamics(curves, name, jump)
        figures[f"hessian-{name.lower()}"] = hessian_dynamics(curves, name, jump)
    command = f"shoal reproduce hessian --restarts {options.restarts} --every {options.every}"
    command += " --small" if options.small else ""
    show_and_write(options.out, command, result, hessian_sheets(result), figures)
    return 0


def _add_linear(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "linear",
        help="the linear example, and the window in which it holds (tab:appendix-linear)",
        description="Logistic regression on four features: ERM, Fish and Fishr. The data are "
        "reconstructed from the stated accuracies. Seconds on a CPU.",
    )
    add_out(parser, "linear")
    parser.set_defaults(run=_run_linear, after_interrupt="nothing was written")


def _run_linear(options: argparse.Namespace) -> int:
    from ..experiments import linear
    from ..experiments.linear import linear_window
    from ..experiments.sheets import linear_sheets

    result = linear.run()
    figures = {"linear-window": linear_window(result)}
    show_and_write(options.out, "shoal reproduce linear", result, linear_sheets(result), figures)
    return 0


def _add_overhead(experiments: Any) -> None:
    """Add the experiment."""
    parser = experiments.add_parser(
        "overhead",
        help="time and memory of Fishr over ERM, heads of PACS and DomainNet",
        description="Updates of ERM and Fishr take turns; medians beside the paper's +2.7 % and "
        "+6.5 % of time. On a CPU give a smaller --network, --size and --batch.",
    )
    parser.add_argument("--network", default="resnet50", help="default: %(default)s")
    parser.add_argument("--size", type=positive, default=224, help="of the images (default: 224)")
    parser.add_argument(
        "--batch", type=positive, default=32, help="images of each domain (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=100, help="default: %(default)s")
    add_precision(parser)
    add_device(parser)
    add_out(parser, "overhead")
    parser.set_defaults(run=_run_overhead, after_interrupt="nothing was written")


def _run_overhead(options: argparse.Namespace) -> int:
    from ..experiments.overhead import Work, overhead_figure, run
    from ..experiments.sheets import overhead_sheet

    work = Work(options.network, options.size, options.batch, options.rounds, options.precision)
    result = run(work, device(options.device))
    command = " ".join(["shoal reproduce overhead", *_given(work, Work())])
    figures = {"overhead": overhead_figure(result)}
    show_and_write(options.out, command, result, [overhead_sheet(result)], figures)
    return 0


def _given(work: Any, default: Any) -> list[str]:
    values = vars(work)
    return [f"--{n} {values[n]}" for n in values if values[n] != getattr(default, n)]


def _add_pictures(experiments: Any) -> None:
    """Add both experiments."""
    landscape = experiments.add_parser(
        "landscape",
        help="two domains' risks around trained weights (fig:fig_consistenty)",
        description="Colored MNIST, ERM and Fishr: ε-level sets of each domain's risk in a plane "
        "of the classifier's weights, and Proposition 1 taken apart into R and H.",
    )
    landscape.add_argument(
        "--epsilon", type=float, default=0.05, metavar="ε", help="default: %(default)s"
    )
    gradients = experiments.add_parser(
        "gradients",
        help="gradients of single examples of two domains (the introduction's figure)",
        description="Colored MNIST, ERM and Fishr: individual gradients of both training domains "
        "in their two principal directions.",
    )
    for parser, name, run in (
        (landscape, "landscape", _landscape),
        (gradients, "gradients", _gradients),
    ):
        add_size(parser)
        add_device(parser)
        add_out(parser, name)
        parser.set_defaults(run=run, after_interrupt="models that are trained are kept")


def _landscape(options: argparse.Namespace) -> int:
    from ..experiments import landscape
    from ..experiments.landscape import landscape_figure
    from ..experiments.sheets import landscape_sheet

    if not options.epsilon > 0:
        raise ValueError(f"--epsilon must be above 0, got {options.epsilon:g}")
    setup, folder = opened(options)
    with bars("steps") as shown:
        result = landscape.run(options.epsilon, setup, device(options.device), folder, shown)
    figures = {"landscape": landscape_figure(result)}
    command = f"shoal reproduce landscape --epsilon {options.epsilon:g}{_small(options)}"
    show_and_write(options.out, command, result, [landscape_sheet(result)], figures)
    return 0


def _gradients(options: argparse.Namespace) -> int:
    from ..experiments import gradients
    from ..experiments.gradients import gradient_scatter
    from ..experiments.sheets import gradient_sheet

    setup, folder = opened(options)
    with bars("steps") as shown:
        result = gradients.run(setup, device(options.device), folder, shown)
    figures = {"gradients": gradient_scatter(result)}
    command = f"shoal reproduce gradients{_small(options)}"
    show_and_write(options.out, command, result, [gradient_sheet(result)], figures)
    return 0


def _small(options: argparse.Namespace) -> str:
    return " --small" if options.small else ""


ANALYSES = (_add_linear, _add_hessian, _add_pictures, _add_overhead, ablations.add)


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
    for add_analysis in ANALYSES:
        add_analysis(experiments)


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

    from ..choices import choose
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
    folder = restarts.RestartFolder.open(options.out, setup)
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
