"""Runs as the page of a sweep draws them: hyperparameters; accuracies, terms and gaps by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..results.records import Finished, Measured

__all__ = ["SCALE", "accuracy", "curves_of"]

SCALE = 10_000
"""Accuracies are whole numbers of this part: four digits, and few bytes."""
MOST_VALUES = 1_600_000
"""Of all curves together; with more, curves are thinned."""


def curves_of(runs: Sequence[Finished]) -> tuple[list[dict[str, Any]], list[tuple[int, ...]]]:
    """Return the runs with their curves, and the lists of steps that these go by."""
    steps: dict[tuple[int, ...], int] = {}
    most = _most_points(runs)
    return [_run(run, most, steps) for run in runs], list(steps)


def accuracy(value: float) -> int | None:
    """Return the accuracy as a whole number; None where it is no number."""
    return round(value * SCALE) if math.isfinite(value) else None


def _run(run: Finished, most: int, steps: dict[tuple[int, ...], int]) -> dict[str, Any]:
    kept = _thinned(run.measured, most)
    at = tuple(one.step for one in kept)
    return {
        "dataset": run.dataset,
        "method": run.algorithm,
        "test": run.test_domains,
        "trial": run.trial,
        "draw": run.draw,
        "hparams": {name: _plain(value) for name, value in run.hparams.items()},
        "warmup": _warmup(run.hparams),
        "steps": steps.setdefault(at, len(steps)),
        "accuracy": {
            domain: {split: [accuracy(one.of(domain, split)) for one in kept] for split in splits}
            for domain, splits in kept[0].accuracy.items()
        },
        "terms": {
            name: [_number(one.terms.get(name, math.nan)) for one in kept] for name in kept[0].terms
        },
        "gaps": {
            name: [_number(one.gaps.get(name, math.nan)) for one in kept]
            for name in dict.fromkeys(name for one in kept for name in one.gaps)
        },
    }


def _most_points(runs: Sequence[Finished]) -> int:
    series = 0
    for run in runs:
        first = run.measured[0]
        series += len(first.terms) + len(run.measured[-1].gaps)
        series += sum(len(splits) for splits in first.accuracy.values())
    return max(2, MOST_VALUES // max(series, 1))


def _thinned(measured: Sequence[Measured], most: int) -> Sequence[Measured]:
    """Return so many records, evenly spaced, the first and the last among them."""
    if len(measured) <= most:
        return measured
    last = len(measured) - 1
    return [measured[round(k * last / (most - 1))] for k in range(most)]


def _warmup(hparams: Mapping[str, Any]) -> float | None:
    """Return the step from which the penalty acts; DomainBed's name for it ends so."""
    for name, value in hparams.items():
        named = name == "warmup_steps" or name.endswith("penalty_anneal_iters")
        if named and isinstance(value, (int, float)):
            return value
    return None


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Return a value that JSON knows; what it does not know, as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (bool, int, str)) else str(value)
