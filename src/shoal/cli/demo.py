"""``shoal demo``: three methods on Colored MNIST, and a page about what they learn."""

import argparse
from pathlib import Path
from typing import Any

from ..report.screen import open_console, print_lines
from .extras import require
from .notes import add_quiet
from .options import positive
from .terminal import bars


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="see ERM, V-REx and Fishr on Colored MNIST, in under three minutes on a laptop",
        description="Train ERM, V-REx and Fishr on Colored MNIST, where colour predicts the label "
        "in training and misleads in the test domain. Prints accuracies and writes a page with "
        "curves and digits. Needs no download and no GPU.",
        examples="""
            shoal demo
            shoal demo --out pages/demo --steps 30 -q    # a quick look, too short to learn much
        """,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        metavar="DIR",
        help="folder for the page, index.html (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="number of updates of each method (default: 300)",
    )
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="nothing was kept; the demo starts again")


def _run(options: argparse.Namespace) -> int:
    require("rich", "jinja2")
    from ..experiments.demo import run, shortened
    from ..report.demo_page import demo_page, demo_table
    from ..storage import write_text

    with bars("steps") as shown:
        result = run(shown) if options.steps is None else run(shown, shortened(options.steps))
    page = options.out / "index.html"
    write_text(page, demo_page(result))
    screen = open_console()
    screen.print(demo_table(result))
    print_lines(f"The page with curves and digits: {page}")
    return 0
