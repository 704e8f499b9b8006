"""A sweep's report as JSON: unrounded numbers, the runs behind them, and the tables."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..catalogue import in_order
from ..results.aggregation import MethodRow, TrialMean
from ..results.records import Failure
from ..results.selection import WORDS, Choice
from .grid import Grid
from .sweep import RuleReport, comparisons

# Increased when a name changes or is removed; new names can be added.
SCHEMA = 1


def as_data(reports: Iterable[RuleReport], failed: Iterable[Failure]) -> dict[str, Any]:
    """Return the reports of all rules and the failed runs; None for values that are not numbers.

    Accuracies, errors and scores are shares between 0 and 1. The tables are those of the other
    formats, with the methods' keys instead of their titles.
    """
    return {
        "schema": SCHEMA,
        "rules": [_report(one) for one in reports],
        "failures": [_failure(one) for one in in_order(failed)],
    }


def _report(report: RuleReport) -> dict[str, Any]:
    choices: dict[tuple[str, str], list[Choice]] = {}
    for choice in report.choices:
        choices.setdefault((choice.dataset, choice.algorithm), []).append(choice)
    return {
        "rule": report.rule,
        "how": WORDS[report.rule],
        "cautions": report.cautions,
        "notes": report.lines,
        "results": [
            _row(row, choices.get((row.dataset, row.algorithm), ())) for row in report.rows
        ],
        "paired": [
            found
            for one, other in report.pairs
            if (found := _paired(report.choices, one, other)) is not None
        ],
        "tables": [_table(table) for table in report.all_tables],
    }


def _table(table: Grid) -> dict[str, Any]:
    found = asdict(table)
    for line in found["lines"]:
        line["name"] = line.pop("key")
    return found


def _row(row: MethodRow, choices: Sequence[Choice]) -> dict[str, Any]:
    return {
        "dataset": row.dataset,
        "algorithm": row.algorithm,
        "average": _cell(row.average),
        "worst": _cell(row.worst),
        "calibration_error": _cell(row.calibration_error),
        "domains": {domain: _cell(cell) for domain, cell in row.domains.items()},
        "chosen": [_choice(choice) for choice in choices],
    }


def _cell(cell: TrialMean | None) -> dict[str, Any] | None:
    """Return mean, standard error and trials; a single trial has no error."""
    if cell is None or math.isnan(cell.mean):
        return None
    error = cell.error if cell.trials > 1 else None
    return {"mean": cell.mean, "error": error, "trials": cell.trials}


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "test_domain": choice.test_domain,
        "trial": choice.trial,
        "draw": choice.draw,
        "step": choice.step,
        "score": _number(choice.score),
        "accuracy": _number(choice.accuracy),
        "calibration_error": _number(choice.calibration_error),
        "training_accuracy": _number(choice.inside),
        "draws": choice.draws,
        "failed": choice.failed,
        "runs": len(choice.candidates),
        "folder": None if choice.run.path is None else str(choice.run.path),
    }


def _paired(choices: Sequence[Choice], one: str, other: str) -> dict[str, Any] | None:
    found, over_domains = comparisons(choices, one, other)
    if found is None:
        return None
    values = None
    if over_domains is not None:
        values = asdict(over_domains)
        values["domains"] = values.pop("pairs")
    return {
        "method": one,
        "other": other,
        **asdict(found),
        "p": found.p,
        "over_domains": values,
    }


def _failure(failed: Failure) -> dict[str, Any]:
    return {
        "dataset": failed.dataset,
        "algorithm": failed.algorithm,
        "test_domains": failed.test_domains,
        "trial": failed.trial,
        "draw": failed.draw,
        "reason": failed.reason,
        "folder": str(failed.path),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
