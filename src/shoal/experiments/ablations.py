"""The ablations of the appendix as sweeps: moving average, gradient means, the range of λ.

Rows are methods and variants of the registry, runs are those of any sweep. Beside the paper's rows
stands one of ours: γ = 0 with λ/(1 − γ′), γ′ being the draw's own. The paper's "without ema" also
weakens the penalty, because v̄/(1 − γ) sums gaps that persist up to 1/(1 − γ) times; this row keeps
that pull and drops the memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ..reference import published_table
from ..report.views import Sheet
from ..results.aggregation import rows_of
from ..results.records import RunResult
from ..results.selection import choose_runs
from ..runs.run import Run

DATASETS = ("colored-mnist", "office-home")
RULES = ("test-domain", "training-domain")
AVERAGE = "average"
# What rows are held against draw by draw, and from which λ on its penalty is strong and up to
# which size its batches are small: the defaults, which every draw 0 has.
BASE, STRONG, SMALL = "fishr", 1000, 64


@dataclass(frozen=True)
class Ablation:
    """One ablation of the paper.

    Args:
        tables: the paper's table by domain of each data set.
        rows: in the order of the table.
        order: in which rows are run; the rest follows.
        averages: the paper's table whose columns are data sets, where it has one.
        stands_for: rows whose cells by domain the paper prints under another name.
    """

    tables: Mapping[str, str]
    rows: tuple[str, ...]
    order: tuple[str, ...]
    averages: str | None = None
    stands_for: Mapping[str, str] | None = None

    def in_order(self) -> list[str]:
        """Return all rows, the most telling first."""
        return [*self.order, *[row for row in self.rows if row not in self.order]]


_EMA = {"colored-mnist": "table:ablationemacmnist", "office-home": "table:ablationemahome"}
_IGA = {"colored-mnist": "table:igacmnist", "office-home": "table:igahome"}

ABLATIONS = {
    "ablation-ema": Ablation(
        _EMA,
        ("erm", "vrex", "vrex-ema", "fishr-no-ema", "fishr-rescaled", "fishr"),
        ("fishr-no-ema", "fishr-rescaled", "fishr"),
    ),
    "ablation-iga": Ablation(
        _IGA,
        (
            "erm",
            "iga",
            "iga-head",
            "iga-head-warmup",
            "iga-head-ema",
            "fishr-plain",
            "fishr-no-ema",
            "fishr",
            "fishr-iga",
        ),
        ("fishr-iga", "iga-head-ema", "iga-head"),
    ),
    "ablation-lambda": Ablation(
        _EMA,
        ("fishr-lambda-0", "fishr", "fishr-v15"),
        ("fishr", "fishr-v15"),
        "table:v15",
        {"fishr-lambda-0": "erm"},
    ),
}


def ordered(runs: Iterable[Run], rows: Sequence[str], test_domains: Sequence[str]) -> list[Run]:
    """Return the runs with these test domains, row after row."""
    kept = [run for run in runs if set(run.test_domains) <= set(test_domains)]
    return sorted(kept, key=lambda run: rows.index(run.algorithm))


def table(
    ablation: Ablation, dataset: str, rule: str, runs: Sequence[RunResult], planned: int
) -> list[dict[str, Any]]:
    """Return the rows of the paper's table: ours where there are runs, and the paper's, in %.

    Args:
        runs: finished; those of other methods and data sets play no part.
        planned: draws × trials, the runs of a cell.
    """
    printed = published_table(ablation.tables[dataset], rule)
    mine = [run for run in runs if run.dataset == dataset and run.algorithm in ablation.rows]
    found = {
        row.algorithm: row
        for row in rows_of(choose_runs(mine, rule), {dataset: list(printed.columns)})
    }
    counts = Counter((run.algorithm, run.test_domains) for run in mine)
    rows = []
    for name in ablation.rows:
        cells: dict[str, Any] = {}
        chosen = found.get(name)
        for domain in printed.columns:
            done = counts[name, (domain,)]
            cell = chosen and chosen.domains.get(domain)
            cells[domain] = cell and _cell(cell) | {"runs": done, "planned": planned}
        average = chosen and chosen.average
        done = sum(cell["runs"] for cell in cells.values() if cell)
        counted = {"runs": done, "planned": planned * len(cells)}
        cells[AVERAGE] = average and _cell(average) | counted
        rows.append({"row": name, "cells": cells, "paper": _paper(ablation, dataset, rule, name)})
    return rows


def draw_by_draw(
    ablation: Ablation, dataset: str, runs: Sequence[RunResult]
) -> list[dict[str, Any]]:
    """Return how each row differs from `fishr` with the same draw after the last update, in %.

    No model is selected: every draw of every trial counts, so that a few lucky ones do not decide.
    """
    mine = [run for run in runs if run.dataset == dataset and len(run.test_domains) == 1]
    base = {_place(run): run for run in mine if run.algorithm == BASE}
    found = []
    for name in ablation.rows:
        theirs = [run for run in mine if run.algorithm == name != BASE and _place(run) in base]
        for domain in sorted({run.test_domains[0] for run in theirs}):
            gaps: dict[str, list[float]] = {"all": [], "small": [], "large": []}
            for run in theirs:
                if run.test_domains == (domain,):
                    other = base[_place(run)]
                    gap = run.last_accuracy - other.last_accuracy
                    for group in _groups(other):
                        gaps[group].append(100 * gap)
            cells = {group: _spread(values) for group, values in gaps.items() if values}
            found.append({"row": name, "domain": domain, "gaps": cells})
    return found


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean of independent values and its standard error, by n − 1; of one none."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": fmean(values), "error": error, "runs": len(values)}


def _place(run: RunResult) -> tuple[Any, ...]:
    return run.test_domains, run.trial, run.draw


def _groups(base: RunResult) -> list[str]:
    """Return the groups of draws that this one is in."""
    if base.hparams["penalty_weight"] < STRONG:
        return ["all"]
    return ["all", "small" if base.hparams["batch_size"] <= SMALL else "large"]


def _cell(cell: Any) -> dict[str, Any]:
    return {"mean": 100 * cell.mean, "error": 100 * cell.error, "trials": cell.trials}


def _paper(ablation: Ablation, dataset: str, rule: str, name: str) -> dict[str, list[float]]:
    printed = published_table(ablation.tables[dataset], rule).rows
    row = printed.get((ablation.stands_for or {}).get(name, name))
    cells = {domain: list(cell) for domain, cell in row.cells.items()} if row else {}
    if row:
        cells[AVERAGE] = [row.average]
    if ablation.averages:
        over = published_table(ablation.averages, rule).rows[name].cells
        cells[AVERAGE] = list(over[dataset])
    return cells


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
        lines = [[row["row"], *[_cell_text(row, column) for column in columns]] for row in rows]
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


def _cell_text(row: Mapping[str, Any], column: str) -> str:
    return f"{_ours(row['cells'][column])} ({_paper_text(row['paper'].get(column))})"


def _ours(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return NOT_RUN
    text = f"{cell['mean']:.1f} ± {cell['error']:.1f}"
    if cell["runs"] == cell["planned"]:
        return text
    return f"{text}, {cell['runs']} of {cell['planned']} runs"


def _paper_text(cell: Sequence[float] | None) -> str:
    return "–" if not cell else " ± ".join(f"{value:.1f}" for value in cell)
