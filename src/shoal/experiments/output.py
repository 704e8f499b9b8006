"""What an experiment leaves: its numbers, its tables and its figures, in one folder."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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
    from . import colored_mnist, demo
    from .restarts import Folder

    setup = demo.SETUP if options.small else colored_mnist.Setup()
    return setup, Folder.open(options.out, setup)


def write(
    out: Path,
    command: str,
    result: Mapping[str, Any],
    sheets: Sequence[Any],
    figures: Mapping[str, Any],
) -> None:
    """Show the tables, and write results.json, results.md and every figure as PNG and PDF."""
    import torch
    from rich.console import Console

    from ..report.figures import rendered
    from ..report.views import sheet_markdown, sheet_terminal
    from ..storage import write_aside, write_text

    console = Console()
    for sheet in sheets:
        console.print(sheet_terminal(sheet))
    about = {"command": command, "torch": torch.__version__, **result}
    # Without a line for each of many numbers: results.md is there to be read.
    write_text(out / "results.json", json.dumps(about, ensure_ascii=False) + "\n")
    write_text(out / "results.md", sheet_markdown(sheets))
    for name, figure in figures.items():
        for kind, content in rendered(figure).items():
            write_aside(out / f"{name}.{kind}", lambda file, content=content: file.write(content))  # type: ignore[misc]
    drawn = ", ".join([f"{name}.png and .pdf" for name in figures])
    print(f"Written in {out}: results.json, results.md{drawn and f', {drawn}'}")
