"""A sweep's report as plain data: every number unrounded, what is behind it, and the tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..catalogue import in_order
from ..results.aggregation import MethodRow, TrialMean, compare
from ..results.records import Failure
from ..results.selection import WORDS, Choice
from .sweep import RuleReport

__all__ = ["SCHEMA", "as_data"]

SCHEMA = 1
"""Counted up where a name changes or goes; names may be added."""


def as_data(chapters: Iterable[RuleReport], failed: Iterable[Failure]) -> dict[str, Any]:
    """Return the chapters and the failed runs; what is not a number is None.

    Accuracies, errors and scores are shares between 0 and 1. The tables are those of other formats.
    """
    return {
        "schema": SCHEMA,
        "rules": [_chapter(one) for one in chapters],
        "failures": [_failure(one) for one in in_order(failed)],
    }


def _chapter(chapter: RuleReport) -> dict[str, Any]:
    choices: dict[tuple[str, str], list[Choice]] = {}
    for choice in chapter.choices:
        choices.setdefault((choice.dataset, choice.algorithm), []).append(choice)
    return {
        "rule": chapter.rule,
        "how": WORDS[chapter.rule],
        "cautions": chapter.cautions,
        "notes": chapter.lines,
        "results": [
            _row(row, choices.get((row.dataset, row.algorithm), ())) for row in chapter.rows
        ],
        "paired": [
            found
            for one, other in chapter.pairs
            if (found := _paired(chapter.choices, one, other)) is not None
        ],
        "tables": [asdict(table) for table in chapter.all_tables],
    }


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
    """Return mean, standard error and trials; of a single trial there is no error."""
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
    try:
        found = compare(choices, one, other)
    except ValueError:  # they share one or none
        return None
    return {"method": one, "other": other, **asdict(found), "p": found.p}


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
