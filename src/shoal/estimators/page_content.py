"""All that the page of a fit shows, as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..results.aggregation import Cell, Row
from ..results.records import Finished, timing_of
from .inspection import Material
from .setup import Setup
from .verdict import BASELINE, Verdict

# Broken files that are named.
NAMED = 50


def page_content(
    material: Material,
    setup: Setup,
    verdict: Verdict,
    mistakes: Sequence[Mapping[str, Any]],
    runs: Sequence[Finished],
    failures: Sequence[str],
    onnx: bool,
) -> dict[str, Any]:
    """Return the page's content.

    Args:
        onnx: whether there is such a file.
    """
    domains = [
        name for name in material.dataset.names if any(name in r.domains for r in verdict.rows)
    ]
    return {
        "title": material.dataset.name,
        "kind": setup.kind,
        "baseline": BASELINE,
        "deploy": verdict.deploy,
        "sure": verdict.sure,
        "sentences": verdict.sentences,
        "domains": domains,
        "methods": [_method(row, domains, verdict) for row in verdict.rows],
        "guess": {**_accuracies(verdict.guess.row, domains), "beaten": verdict.guess.beaten},
        "data": _data(material),
        "mistakes": mistakes,
        "how": _how(setup, verdict, runs),
        "failures": list(failures),
        "onnx": onnx,
    }


def _method(row: Row, domains: Sequence[str], verdict: Verdict) -> dict[str, Any]:
    one, inside = verdict.comparisons.get(row.algorithm), verdict.inside[row.algorithm]
    return {
        **_accuracies(row, domains),
        "inside": None if inside is None else 100 * inside,
        "calibration": row.calibration_error.mean if row.calibration_error else None,
        "difference": None
        if one is None
        else {
            "mean": 100 * one.difference,
            "error": 100 * one.error,
            "wins": one.wins,
            "pairs": one.pairs,
        },
    }


def _accuracies(row: Row, domains: Sequence[str]) -> dict[str, Any]:
    return {
        "name": row.algorithm,
        "cells": [_cell(row.domains.get(domain)) for domain in domains],
        "average": _cell(row.average),
        "worst": _cell(row.worst),
    }


def _cell(cell: Cell | None) -> dict[str, Any] | None:
    """Return a cell in percent; one trial has no error."""
    if cell is None:
        return None
    error = 100 * cell.error if cell.trials > 1 else None
    return {"mean": 100 * cell.mean, "error": error, "trials": cell.trials}


def _data(material: Material) -> dict[str, Any]:
    dataset = material.dataset
    counts = dataset.counts()
    table = material.table
    return {
        "classes": list(dataset.classes),
        "rows": [
            {
                "name": name,
                "counts": [counts[name][kind] for kind in dataset.classes],
                "total": sum(counts[name].values()),
            }
            for name in dataset.names
        ],
        "total": sum(map(len, dataset.domains)),
        "notes": material.notes,
        "broken": [{"path": str(one.path), "why": one.why} for one in material.broken[:NAMED]],
        "broken_count": len(material.broken),
        "columns": [] if table is None else [_column(one) for one in table.encoding.as_json()],
        "left_out": [] if table is None else list(table.encoding.left_out),
    }


def _column(one: Mapping[str, Any]) -> str:
    if one["kind"] == "number":
        return f"{one['name']} (number{', with gaps' if one['gaps'] else ''})"
    return f"{one['name']} ({len(one['values'])} categories)"


def _how(setup: Setup, verdict: Verdict, runs: Sequence[Finished]) -> list[tuple[str, str]]:
    timings = [timing for timing in map(timing_of, runs) if timing is not None]
    seconds = sum(timing.seconds for timing in timings)
    network = setup.backbone or "MLP"
    if setup.frozen:
        network += ", its features as they are; a linear head is trained"
    found = [
        ("Network", network),
        ("Updates of each run", f"{setup.steps:,}"),
        ("Runs", f"{len(runs)}: each method without each domain, {_times(verdict.trials)}"),
        ("Time of these runs", f"{seconds / 60:.1f} min"),
    ]
    machines = list(dict.fromkeys(timing.machine for timing in timings if timing.machine))
    return [*found, *(("Machine", machine) for machine in machines)]


def _times(trials: int) -> str:
    return "one split" if trials == 1 else f"{trials} splits"
