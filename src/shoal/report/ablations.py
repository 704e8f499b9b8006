"""Tables of the ablations: ours beside the paper's, and what was not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .sheets import Sheet

__all__ = ["ablation_sheets", "batch_sheet", "draws_sheet"]

NOT_RUN = "not run"


def ablation_sheets(
    name: str,
    dataset: str,
    label: str,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    precision: str,
) -> list[Sheet]:
    """Return a table for each selection rule.

    Args:
        tables: for each rule its rows: `row`, `cells` and `paper`, by domain and `average`.
    """
    sheets = []
    for rule, rows in tables.items():
        columns = list(rows[0]["cells"])
        head = ["Method", *["Avg" if column == "average" else column for column in columns]]
        lines = [[row["row"], *[_cell(row, column) for column in columns]] for row in rows]
        title = f"{name}, {dataset}, models selected by {rule} ({label})"
        sheets.append(Sheet(title, head, lines, ABOUT.format(precision)))
    return sheets


ABOUT = (
    "Accuracy in %, mean ± standard error over trials, and in brackets the paper's. Where not all "
    "draws and trials are done, the cell says how many. Trained in {}."
)


def draws_sheet(
    name: str, dataset: str, rows: Sequence[Mapping[str, Any]], precision: str
) -> Sheet:
    """Return how rows differ from `fishr` draw by draw: `row`, `domain` and `gaps` by group."""
    groups = ("all", "small", "large")
    lines = [
        (row["row"], row["domain"], *[_gap(row["gaps"].get(group)) for group in groups])
        for row in rows
    ]
    return Sheet(
        f"{name}, {dataset}: accuracy less that of fishr with the same draw, after the last update",
        ("Method", "domain", "all draws", "λ ≥ 1,000, batch ≤ 64", "λ ≥ 1,000, batch > 64"),
        lines,
        "In points of %, mean ± standard error over the draws of all trials, and their number; no "
        "model is selected. λ is that of fishr; methods that draw other hyperparameters have the "
        f"learning rate and the batch size in common with it. Trained in {precision}.",
    )


def _gap(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return "–"
    error = "" if gap["error"] is None else f" ± {gap['error']:.1f}"
    return f"{gap['mean']:+.1f}{error} ({gap['runs']})"


def batch_sheet(cells: Sequence[Mapping[str, Any]], precision: str) -> Sheet:
    """Return accuracies by γ and batch size, for either choice of λ."""
    sizes = list(dict.fromkeys(cell["batch_size"] for cell in cells))
    lines = []
    for key in dict.fromkeys((cell["pull"], cell["ema_decay"]) for cell in cells):
        mine = [cell for cell in cells if (cell["pull"], cell["ema_decay"]) == key]
        shown = [
            NOT_RUN if cell["mean"] is None else f"{cell['mean']:.1f} ± {cell['error']:.1f}"
            for cell in mine
        ]
        lines.append((f"{key[0]}, γ = {key[1]:g}", f"{mine[0]['penalty_weight']:,.0f}", *shown))
    return Sheet(
        "γ against batch size: accuracy in % on -90% of Colored MNIST after the last update",
        ("", "λ", *[f"batch {size}" for size in sizes]),
        lines,
        f"Mean ± standard error over trials; no model is selected. Trained in {precision}.",
    )


def _cell(row: Mapping[str, Any], column: str) -> str:
    return f"{_ours(row['cells'][column])} ({_paper(row['paper'].get(column))})"


def _ours(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NOT_RUN
    text = f"{cell['mean']:.1f} ± {cell['error']:.1f}"
    if cell["runs"] == cell["planned"]:
        return text
    return f"{text}, {cell['runs']} of {cell['planned']} runs"


def _paper(cell: Sequence[float] | None) -> str:
    return "–" if not cell else " ± ".join(f"{value:.1f}" for value in cell)
