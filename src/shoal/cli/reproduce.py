"""``shoal reproduce``: run an experiment of the paper, next to the published numbers."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report.screen import open_console, print_lines
from . import ablations
from .extras import require
from .notes import add_quiet
from .options import add_device, add_out, add_precision, device, positive
from .terminal import bars, show_and_write


def add(commands: Any) -> None:
    """Add the command and its experiments."""
    parser = commands.add_parser(
        "reproduce",
        help="run an experiment of the paper and compare with its published numbers",
        description="Run an experiment of the paper. Tables show our numbers next to the "
        "published ones; names such as table:cmnist_25 are the paper's labels.",
        examples="""
            shoal reproduce linear
            shoal reproduce colored-mnist --restarts 3
        """,
    )
    experiments = parser.add_subparsers(metavar="EXPERIMENT", required=True)
    _add_colored_mnist(experiments)
    _add_linear(experiments)
    _add_hessian(experiments)
    _add_landscape(experiments)
    _add_gradients(experiments)
    _add_overhead(experiments)
    ablations.add(experiments)


def _add_colored_mnist(experiments: Any) -> None:
    parser = experiments.add_parser(
        "colored-mnist",
        help="the paper's proof of concept (table:cmnist_25, table:cmnist_0, table:cmnistend)",
        description="Train methods on Colored MNIST in the setup of the IRM paper, and print "
        "accuracies next to the published ones.",
        examples="""
            shoal reproduce colored-mnist
            shoal reproduce colored-mnist --methods erm fishr-omega --restarts 3
            shoal reproduce colored-mnist --methods list
        """,
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        default=None,
        help="methods or labels of tables; 'list' prints them all (default: the six methods of "
        "table:cmnist_25)",
    )
    parser.add_argument(
        "--restarts",
        type=positive,
        default=10,
        metavar="N",
        help="trainings of each method, with other seeds (default: %(default)s)",
    )
    parser.add_argument(
        "--flip",
        type=float,
        choices=(0.25, 0.0),
        default=0.25,
        help="share of flipped labels: 0.25, or 0 for table:cmnist_0 (default: %(default)s)",
    )
    add_device(parser)
    parser.add_argument(
        "--precision",
        choices=("float32", "tf32"),
        default="float32",
        help="precision of matrix products on a GPU (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/colored-mnist"),
        metavar="DIR",
        help="folder for records and tables; the same command resumes from it "
        "(default: %(default)s)",
    )
    add_quiet(parser)
    parser.set_defaults(
        run=_run_colored_mnist, after_interrupt="the same command resumes from here"
    )


def _run_colored_mnist(options: argparse.Namespace) -> int:
    require("rich")
    import torch

    from ..experiments import restarts
    from ..experiments.colored_mnist import Setup
    from ..report.tables import markdown, terminal
    from ..storage import write_json, write_text

    screen = open_console()
    asked: list[str] = options.methods or ["table:cmnist_25" if options.flip else "table:cmnist_0"]
    if asked == ["list"]:
        _list_methods(screen)
        return 0
    methods = _methods_named(asked)
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
        screen.print(terminal(rows, title=title))
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
    print_lines(f"Written: {options.out / name}.json and .md")
    return 0


def _list_methods(screen: Any) -> None:
    """Print the methods and tables that ``--methods`` takes."""
    from ..experiments.colored_mnist import METHODS, TABLES

    for key, method in METHODS.items():
        screen.print(f"{key:28} {method.name}", highlight=False)
    for label, keys in TABLES.items():
        screen.print(f"{label:28} {', '.join(keys)}", highlight=False)


def _methods_named(asked: Sequence[str]) -> list[str]:
    """Return the methods of these names and tables, each once."""
    from ..choices import choose
    from ..experiments.colored_mnist import METHODS, TABLES

    methods: list[str] = []
    for name in asked:
        choose("method", name, [*METHODS, *TABLES])
        methods += [key for key in TABLES.get(name, (name,)) if key not in methods]
    return methods


def _add_linear(experiments: Any) -> None:
    parser = experiments.add_parser(
        "linear",
        help="the linear example, and the λ for which it holds (tab:appendix-linear)",
        description="Train ERM, Fish and Fishr as logistic regressions on four binary features. "
        "The data are reconstructed from the published accuracies. Takes seconds on a CPU.",
        examples="""
            shoal reproduce linear
            shoal reproduce linear --out out/linear -q
        """,
    )
    add_out(parser, "linear")
    add_quiet(parser)
    parser.set_defaults(run=_run_linear, after_interrupt="nothing was written")


def _run_linear(options: argparse.Namespace) -> int:
    require("rich", "matplotlib")
    from ..experiments import linear
    from ..experiments.linear import linear_sheets, linear_window

    result = linear.run()
    figures = {"linear-window": linear_window(result)}
    show_and_write(options.out, "shoal reproduce linear", result, linear_sheets(result), figures)
    return 0


def _add_hessian(experiments: Any) -> None:
    parser = experiments.add_parser(
        "hessian",
        help="Hessians and gradient variances, ERM and Fishr "
        "(table:simhessiangradvar, table:hessianermfishr, four figures)",
        description="Train ERM and Fishr on Colored MNIST with two logits, and compute the exact "
        "Hessian diagonal of all weights along the way. On a GPU the default is every update; on "
        "a CPU use --small --every 10.",
        examples="""
            shoal reproduce hessian --device cuda
            shoal reproduce hessian --small --every 10
        """,
    )
    parser.add_argument(
        "--restarts",
        type=positive,
        default=1,
        metavar="N",
        help="trainings of each method, with other seeds (default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=positive,
        default=1,
        metavar="N",
        help="updates between two points of the curves (default: %(default)s)",
    )
    _add_size(parser)
    add_device(parser)
    add_out(parser, "hessian")
    add_quiet(parser)
    parser.set_defaults(run=_run_hessian, after_interrupt="finished restarts are kept")


def _run_hessian(options: argparse.Namespace) -> int:
    require("rich", "matplotlib")
    from ..experiments import hessian
    from ..experiments.hessian import hessian_figures, hessian_sheets

    setup, folder = _setup_and_folder(options)
    with bars("steps") as shown:
        records = hessian.run(
            options.restarts, options.every, setup, device(options.device), folder, shown
        )
    result = {"setup": setup.as_json(), "tables": hessian.tables(records), "records": records}
    figures = hessian_figures(records, setup)
    command = f"shoal reproduce hessian --restarts {options.restarts} --every {options.every}"
    command += _small(options)
    show_and_write(options.out, command, result, hessian_sheets(result), figures)
    return 0


def _add_landscape(experiments: Any) -> None:
    parser = experiments.add_parser(
        "landscape",
        help="the risks of two domains around trained weights (fig:fig_consistenty)",
        description="Train ERM and Fishr on Colored MNIST. Draw the ε-level sets of each domain's "
        "risk in a plane of the classifier's weights, and split the inconsistency of Proposition "
        "1 into R and H.",
        examples="""
            shoal reproduce landscape --small
            shoal reproduce landscape --epsilon 0.1 --device cuda
        """,
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=0.05,
        metavar="ε",
        help="rise of a risk at the border of its level set (default: %(default)s)",
    )
    _add_size(parser)
    add_device(parser)
    add_out(parser, "landscape")
    add_quiet(parser)
    parser.set_defaults(run=_run_landscape, after_interrupt="trained models are kept")


def _run_landscape(options: argparse.Namespace) -> int:
    require("rich", "matplotlib")
    from ..experiments import landscape
    from ..experiments.landscape import landscape_figure, landscape_sheet

    if not options.epsilon > 0:
        raise ValueError(f"--epsilon must be above 0, got {options.epsilon:g}")
    setup, folder = _setup_and_folder(options)
    with bars("steps") as shown:
        result = landscape.run(options.epsilon, setup, device(options.device), folder, shown)
    figures = {"landscape": landscape_figure(result)}
    command = f"shoal reproduce landscape --epsilon {options.epsilon:g}{_small(options)}"
    show_and_write(options.out, command, result, [landscape_sheet(result)], figures)
    return 0


def _add_gradients(experiments: Any) -> None:
    parser = experiments.add_parser(
        "gradients",
        help="per-example gradients of two domains (the figure of the introduction)",
        description="Train ERM and Fishr on Colored MNIST. Plot the per-example gradients of both "
        "training domains along their two principal directions.",
        examples="""
            shoal reproduce gradients --small
            shoal reproduce gradients --device cuda
        """,
    )
    _add_size(parser)
    add_device(parser)
    add_out(parser, "gradients")
    add_quiet(parser)
    parser.set_defaults(run=_run_gradients, after_interrupt="trained models are kept")


def _run_gradients(options: argparse.Namespace) -> int:
    require("rich", "matplotlib")
    from ..experiments import gradients
    from ..experiments.gradients import gradient_scatter, gradient_sheet

    setup, folder = _setup_and_folder(options)
    with bars("steps") as shown:
        result = gradients.run(setup, device(options.device), folder, shown)
    figures = {"gradients": gradient_scatter(result)}
    command = f"shoal reproduce gradients{_small(options)}"
    show_and_write(options.out, command, result, [gradient_sheet(result)], figures)
    return 0


def _add_overhead(experiments: Any) -> None:
    parser = experiments.add_parser(
        "overhead",
        help="time and memory of an update: Fishr compared with ERM, on PACS and DomainNet sizes",
        description="Time updates of ERM and Fishr in turn, and print medians next to the paper's "
        "+2.7 % and +6.5 % of time. On a CPU use a smaller --network, --size and --batch.",
        examples="""
            shoal reproduce overhead --device cuda
            shoal reproduce overhead --network resnet18 --size 64 --batch 4 --rounds 5
        """,
    )
    parser.add_argument(
        "--network", default="resnet50", metavar="NAME", help="default: %(default)s"
    )
    parser.add_argument(
        "--size",
        type=positive,
        default=224,
        metavar="PIXELS",
        help="side of the images (default: %(default)s)",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=32,
        metavar="N",
        help="images of each domain in an update (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=100,
        metavar="N",
        help="updates of each method that are timed (default: %(default)s)",
    )
    add_precision(parser)
    add_device(parser)
    add_out(parser, "overhead")
    add_quiet(parser)
    parser.set_defaults(run=_run_overhead, after_interrupt="nothing was written")


def _run_overhead(options: argparse.Namespace) -> int:
    require("rich", "matplotlib")
    from ..experiments.overhead import Work, overhead_figure, overhead_sheet, run

    work = Work(
        network=options.network,
        size=options.size,
        batch=options.batch,
        rounds=options.rounds,
        precision=options.precision,
    )
    result = run(work, device(options.device))
    command = " ".join(["shoal reproduce overhead", *_changed(work, Work())])
    figures = {"overhead": overhead_figure(result)}
    show_and_write(options.out, command, result, [overhead_sheet(result)], figures)
    return 0


def _changed(work: Any, default: Any) -> list[str]:
    """Return the options of a command whose values are not the defaults."""
    values = vars(work)
    return [f"--{n} {values[n]}" for n in values if values[n] != getattr(default, n)]


# Shared by experiments on Colored MNIST


def _add_size(parser: argparse.ArgumentParser) -> None:
    """Add ``--small``: a size that a CPU trains in minutes."""
    parser.add_argument(
        "--small",
        action="store_true",
        help="train the size of 'shoal demo', minutes on a CPU: 8,000 examples of each domain, 256 "
        "hidden units, 300 updates (default: the paper's size)",
    )


def _setup_and_folder(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the setup of Colored MNIST, small or full, and the folder of its restarts."""
    from ..experiments import colored_mnist, demo
    from ..experiments.restarts import RestartFolder

    setup = demo.SETUP if options.small else colored_mnist.Setup()
    return setup, RestartFolder.open(options.out, setup)


def _small(options: argparse.Namespace) -> str:
    """Return the option as the command's record names it."""
    return " --small" if options.small else ""
