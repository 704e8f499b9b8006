"""``shoal demo``: three methods on Colored MNIST, and a page about what they learn."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from ..report.screen import console, say
from .terminal import bars


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="see ERM, V-REx and Fishr on Colored MNIST, in under three minutes on a laptop",
        description="Train ERM, V-REx and Fishr on Colored MNIST, where colour predicts the label "
        "in training and misleads in the test domain. Prints accuracies and writes a page with "
        "curves and digits. Needs no download and no GPU.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        metavar="DIR",
        help="folder for the page, index.html (default: %(default)s)",
    )
    parser.set_defaults(run=_run, after_interrupt="nothing was kept; the demo starts again")


def _run(options: argparse.Namespace) -> int:

    from ..experiments.demo import run
    from ..report.demo_page import demo_page, demo_table
    from ..storage import write_text

    import_module("jinja2")  # for the page: fail now if it is missing, not after training
    with bars("steps") as shown:
        result = run(shown)
    page = options.out / "index.html"
    write_text(page, demo_page(result))
    screen = console()
    screen.print(demo_table(result))
    say(f"The page with curves and digits: {page}")
    return 0
