"""``shoal demo``."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from .terminal import bars


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo", help="ERM, V-REx and Fishr on Colored MNIST, in under three minutes on a laptop"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        help="folder for the page (default: %(default)s)",
    )
    parser.set_defaults(run=_run, after_interrupt="the demo keeps nothing and starts anew")


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ..experiments.demo import run
    from ..report.demo_page import demo_page, demo_table
    from ..storage import write_text

    import_module("jinja2")  # for the page: missing now is better than missing after training
    with bars("steps") as shown:
        result = run(shown)
    page = options.out / "index.html"
    write_text(page, demo_page(result))
    console = Console()
    console.print(demo_table(result))
    print(f"The page with curves and digits: {page}")
    return 0
