"""The ablations of the appendix, as sweeps: moving average, gradient means, the range of λ.

Rows are methods and variants of the registry; runs are those of any sweep. We add one row to the
paper's: γ = 0 with λ/(1 − γ′), where γ′ is the draw's own. The paper's "without ema" also weakens
the penalty, because v̄/(1 − γ) sums persistent gaps up to 1/(1 − γ) times. Our row keeps that
strength and drops the memory.
"""

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
# Rows are compared with this one, draw by draw. Its penalty is strong from this λ on, and its
# batches are small up to this size: the defaults, which every draw 0 has.
BASE, STRONG, SMALL = "fishr", 1000, 64


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One ablation of the paper.

    Args:
        tables: the paper's table by domain of each data set.
        rows: in the order of the table.
        first: rows that are trained before the others.
        averages: the paper's table whose columns are data sets, if it has one.
        stands_for: rows whose cells by domain the paper prints under another name.
    """

    tables: Mapping[str, str]
    rows: tuple[str, ...]
    first: tuple[str, ...]
    averages: str | None = None
    stands_for: Mapping[str, str] | None = None

    def in_order(self) -> list[str]:
        """Return all rows in the order of training."""
        return [*self.first, *[row for row in self.rows if row not in self.first]]


_EMA = {"colored-mnist": "table:ablationemacmnist", "office-home": "table:ablationemahome"}
_IGA = {"colored-mnist": "table:igacmnist", "office-home": "table:igahome"}

ABLATIONS = {
    "ablation-ema": Ablation(
        tables=_EMA,
        rows=("erm", "vrex", "vrex-ema", "fishr-no-ema", "fishr-rescaled", "fishr"),
        first=("fishr-no-ema", "fishr-rescaled", "fishr"),
    ),
    "ablation-iga": Ablation(
        tables=_IGA,
        rows=(
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
        first=("fishr-iga", "iga-head-ema", "iga-head"),
    ),
    "ablation-lambda": Ablation(
        tables=_EMA,
        rows=("fishr-lambda-0", "fishr", "fishr-v15"),
        first=("fishr", "fishr-v15"),
        averages="table:v15",
        stands_for={"fishr-lambda-0": "erm"},
    ),
}


def in_row_order(
    runs: Iterable[Run], rows: Sequence[str], test_domains: Sequence[str]
) -> list[Run]:
    """Return the runs with these test domains, row after row."""
    kept = [run for run in runs if set(run.test_domains) <= set(test_domains)]
    return sorted(kept, key=lambda run: rows.index(run.algorithm))


def table(
    ablation: Ablation, dataset: str, rule: str, runs: Sequence[RunResult], planned: int
) -> list[dict[str, Any]]:
    """Return the rows of the paper's table: our cells (None without runs) and the paper's, in %.

    Args:
        runs: finished runs; those of other methods and data sets are ignored.
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
    """Return each row's accuracy minus that of ``fishr`` with the same draw, in %.

    After the last update and without selection: every draw of every trial counts, so that a few
    lucky ones do not decide.
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
    """Return the mean of independent values and its standard error (n − 1); None for one value."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": fmean(values), "error": error, "runs": len(values)}


def _place(run: RunResult) -> tuple[Any, ...]:
    return run.test_domains, run.trial, run.draw


def _groups(base: RunResult) -> list[str]:
    """Return the groups that a draw belongs to."""
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


# The tables

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
        tables: for each rule its rows: ``row``, ``cells`` and ``paper``, by domain and ``average``.
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
    "Accuracy in %, mean ± standard error over trials; the paper's in brackets. A cell with "
    "unfinished runs shows how many are done. Trained in {}."
)


def draws_sheet(
    name: str, dataset: str, rows: Sequence[Mapping[str, Any]], precision: str
) -> Sheet:
    """Return the differences from ``fishr`` draw by draw, by group of draws."""
    groups = ("all", "small", "large")
    lines = [
        (row["row"], row["domain"], *[_gap(row["gaps"].get(group)) for group in groups])
        for row in rows
    ]
    return Sheet(
        f"{name}, {dataset}: accuracy minus that of Fishr with the same draw, at the last update",
        ("Method", "domain", "all draws", "λ ≥ 1,000, batch ≤ 64", "λ ≥ 1,000, batch > 64"),
        lines,
        "In percentage points, mean ± standard error over the draws of all trials, with their "
        "number; no model is selected. λ is Fishr's; methods with other hyperparameters share its "
        f"learning rate and batch size. Trained in {precision}.",
    )


def _gap(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return "–"
    error = "" if gap["error"] is None else f" ± {gap['error']:.1f}"
    return f"{gap['mean']:+.1f}{error} ({gap['runs']})"


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
