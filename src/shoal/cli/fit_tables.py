"""How ``shoal fit`` shows what it found in the data, and what came of it."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .terminal import fits, format_duration, table

# Classes that get a column of their own; files that are named.
COLUMNS, NAMED = 8, 10
# Of every domain, how many there are of every class.
Counts = Mapping[str, Mapping[str, int]]


def show_material(material: Any) -> None:
    """Show domains, classes, broken files and what is unusual."""
    from rich.console import Console
    from rich.text import Text

    dataset, counts = material.dataset, material.dataset.counts()
    console = Console()
    kind = "images" if material.table is None else "rows"
    total = sum(map(len, dataset.domains))
    title = (
        f"{dataset.name}: {total:,} {kind}, {len(counts)} domains, {len(dataset.classes)} classes"
    )
    console.print(Text(title, "bold"), soft_wrap=True)
    ways = (_by_domain, _by_class) if len(dataset.classes) <= COLUMNS else ()
    grids = [*(way(counts, dataset.classes) for way in ways), _by_domain(counts, ())]
    grid = next((grid for grid in grids if fits(grid, console)), grids[-1])
    console.print(grid)
    if material.broken:
        console.print(Text(f" Cannot be read, and left out ({len(material.broken):,})", "bold"))
        for line in material.broken[:NAMED]:
            console.print(Text(f"   {line.path}: {line.why}", style="red"), soft_wrap=True)
    if material.table is not None and material.table.encoding.left_out:
        names = ", ".join(material.table.encoding.left_out)
        console.print(Text(f" Left out, because they say nothing about another row: {names}"))
    for note in material.notes:
        console.print(Text(f" Note: {note}"), soft_wrap=True)


def _by_domain(counts: Counts, classes: Sequence[str]) -> Any:
    """Return a table with a row for each domain, and a column for each of these classes."""
    from rich.text import Text

    grid = table(None, None)
    grid.add_column("Domain")
    for name in (*classes, "all", "classes"):
        grid.add_column(Text(name), justify="right")
    for domain, found in counts.items():
        cells = [_count(found[name]) for name in classes]
        kinds = sum(count > 0 for count in found.values())
        grid.add_row(Text(domain), *cells, f"{sum(found.values()):,}", str(kinds))
    return grid


def _by_class(counts: Counts, classes: Sequence[str]) -> Any:
    """Return a table with a column for each domain, for what is too wide the other way."""
    from rich.text import Text

    grid = table(None, None)
    grid.add_column("Class")
    for domain in counts:
        grid.add_column(Text(domain), justify="right")
    for name in classes:
        grid.add_row(Text(name), *(_count(found[name]) for found in counts.values()))
    grid.add_section()
    grid.add_row("all", *(f"{sum(found.values()):,}" for found in counts.values()))
    return grid


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"


def show_verdict(fitted: Any, out: Path, seconds: float) -> None:
    """Show the estimates, what to deploy, and where everything lies."""
    from rich.console import Console
    from rich.text import Text

    verdict, console = fitted.verdict, Console()
    rows, guess = verdict.rows, verdict.majority.row
    domains = list(dict.fromkeys(name for row in rows for name in row.domains))
    console.print(Text("Accuracy in % on the domain that was left out", "bold"), soft_wrap=True)
    grid = table(None, None)
    grid.add_column("Left out")
    for row in rows:
        style = "bold" if row.algorithm == verdict.deploy else ""
        grid.add_column(Text(row.algorithm, style), justify="right", style=style)
    grid.add_column(Text(guess.algorithm), justify="right", style="dim")
    for name in domains:
        grid.add_row(Text(name), *(_cell(row.domains.get(name)) for row in (*rows, guess)))
    grid.add_section()
    grid.add_row("average", *(_cell(row.average) for row in (*rows, guess)))
    grid.add_row("worst", *(_cell(row.worst) for row in (*rows, guess)))
    inside = (verdict.inside[row.algorithm] for row in rows)
    grid.add_row("known", *("–" if one is None else f"{100 * one:.1f}" for one in inside), "–")
    console.print(grid)
    for told in (
        "Known: on examples held out of the domains that were trained on.",
        f"{guess.algorithm.capitalize()}: always that of the other domains, without a model.",
    ):
        console.print(Text(f" {told}", "dim"), soft_wrap=True)
    for sentence in verdict.sentences:
        console.print(Text(f" {sentence}"), soft_wrap=True)
    files = "model.safetensors, model.json, model.onnx, report.html"
    files = ", ".join(name for name in files.split(", ") if (out / name).exists())
    console.print(Text(f" {out}: {files} ({format_duration(seconds)})"), soft_wrap=True)
    predict = f"shoal predict {shlex.quote(str(out))} FILES..."
    look = f"see what goes wrong in {out / 'report.html'}, and fit again to another --out"
    console.print(Text(f" Next: {predict if verdict.majority.beaten else look}"), soft_wrap=True)


def _cell(cell: Any) -> str:
    if cell is None:
        return "–"
    shown = f" ± {100 * cell.error:.1f}" if cell.trials > 1 else ""
    return f"{100 * cell.mean:.1f}{shown}"
