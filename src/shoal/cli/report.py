"""``shoal report``: tables of the benchmark, with averages and ranks."""

import argparse
import io
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command."""
    summary = "tables of the benchmark, with averages and ranks"
    parser = commands.add_parser(
        "report", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.add_argument(
        "--published",
        action="store_true",
        required=True,
        help="the paper's two main tables, from the published cells",
    )
    parser.add_argument(
        "--rule",
        choices=("test-domain", "training-domain", "all"),
        default="all",
        help="which domains models were selected on (default: %(default)s)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="terminal",
        help="(default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..reference import BENCHMARKS
    from ..storage import write_text

    rules = list(BENCHMARKS) if options.rule == "all" else [options.rule]
    show = FORMATS[options.format]
    if options.out is None:
        show(rules, None)
        return 0
    text = io.StringIO()
    show(rules, text)
    write_text(options.out, text.getvalue())
    print(f"wrote {options.out}")
    return 0


def _terminal(rules: list[str], file: io.StringIO | None) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from ..report.grid import grid
    from ..report.grid_views import terminal
    from ..report.published import published_benchmark, published_notes, remark_lines

    console = Console(file=file)
    for rule in rules:
        for piece in terminal(grid(published_benchmark(rule)), console.width):
            console.print(piece)
        for note in published_notes(rule):
            console.print(Padding(Text(note), (0, 1, 1, 1), expand=False))
    if console.is_terminal:
        marks = Text("first", "bold"), Text("second", "underline"), Text("worse than ERM", "dim")
        console.print(Text(" Marks: ").append_text(Text(", ").join(marks)).append(".\n"))
    console.print(Text(" How these cells were obtained"))
    for line in remark_lines():
        console.print(Padding(Text(line), (0, 1, 0, 3), expand=False))


def _markdown(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.published import published_page

    print(published_page(rules), end="", file=file)


def _latex(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.grid import grid
    from ..report.grid_views import latex
    from ..report.published import published_benchmark

    print("\n".join(latex(grid(published_benchmark(r))) for r in rules), end="", file=file)


def _json(rules: list[str], file: io.StringIO | None) -> None:
    from ..report.published import published_as_data

    print(json.dumps(published_as_data(rules), indent=2, ensure_ascii=False), file=file)


FORMATS = {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "json": _json}
