"""What an experiment leaves: its numbers, its tables and its figures, in one folder."""

import argparse
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

    from ...report.figures.style import rendered
    from ...report.sheets import markdown, terminal
    from ...storage import write_aside, write_json, write_text

    console = Console()
    for sheet in sheets:
        console.print(terminal(sheet))
    write_json(out / "results.json", {"command": command, "torch": torch.__version__, **result})
    write_text(out / "results.md", markdown(sheets))
    for name, figure in figures.items():
        for kind, content in rendered(figure).items():
            write_aside(out / f"{name}.{kind}", lambda file, content=content: file.write(content))  # type: ignore[misc]
    drawn = ", ".join([f"{name}.png and .pdf" for name in figures])
    print(f"Written in {out}: results.json, results.md{drawn and f', {drawn}'}")
