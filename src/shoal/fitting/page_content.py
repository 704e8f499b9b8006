"""All that the page of a fit shows, as plain values."""

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..datasets.images import read_image
from ..results.aggregation import MethodRow, TrialMean
from ..results.records import RunResult, timing_of
from ..runs.folder import PREDICTIONS
from .inspection import FitData
from .setup import FitSetup
from .verdict import BASELINE, Verdict

# Broken files that are named.
NAMED = 50


def page_content(
    material: FitData,
    setup: FitSetup,
    verdict: Verdict,
    mistakes: Sequence[Mapping[str, Any]],
    runs: Sequence[RunResult],
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


def _method(row: MethodRow, domains: Sequence[str], verdict: Verdict) -> dict[str, Any]:
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


def _accuracies(row: MethodRow, domains: Sequence[str]) -> dict[str, Any]:
    return {
        "name": row.algorithm,
        "cells": [_cell(row.domains.get(domain)) for domain in domains],
        "average": _cell(row.average),
        "worst": _cell(row.worst),
    }


def _cell(cell: TrialMean | None) -> dict[str, Any] | None:
    """Return a cell in percent; one trial has no error."""
    if cell is None:
        return None
    error = 100 * cell.error if cell.trials > 1 else None
    return {"mean": 100 * cell.mean, "error": error, "trials": cell.trials}


def _data(material: FitData) -> dict[str, Any]:
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


def _how(setup: FitSetup, verdict: Verdict, runs: Sequence[RunResult]) -> list[tuple[str, str]]:
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


# Pictures of each method and domain, their side in pixels, and how many confusions are told.
SHOWN, SIDE, TOLD = 12, 112, 5


def mistakes_of(runs: Sequence[RunResult], material: FitData) -> list[dict[str, Any]]:
    """Return, for every method and domain left out in the first trial, what it took for what.

    The mistakes that the method was surest of come first, with a small picture or the table's row.
    """
    pictures: dict[Path, str | None] = {}
    found = []
    for run in runs:
        if run.trial != 0 or len(run.test_domains) != 1 or run.path is None:
            continue
        lines = _lines(run.path / PREDICTIONS, run.test_domains[0])
        wrong = [line for line in lines if line["prediction"] != line["label"]]
        wrong.sort(key=lambda line: -line["probability"])
        pairs = Counter((line["label"], line["prediction"]) for line in wrong)
        found.append(
            {
                "method": run.algorithm,
                "domain": run.test_domains[0],
                "examples": len(lines),
                "wrong": len(wrong),
                "confusions": [
                    {"label": label, "prediction": prediction, "times": times}
                    for (label, prediction), times in pairs.most_common(TOLD)
                ],
                "shown": [_shown(line, material, pictures) for line in wrong[:SHOWN]],
            }
        )
    return found


def _lines(path: Path, domain: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line["domain"] == domain]


def _shown(
    line: Mapping[str, Any], material: FitData, pictures: dict[Path, str | None]
) -> dict[str, Any]:
    shown = {key: line[key] for key in ("label", "prediction", "probability")}
    domain = material.dataset[line["domain"]]
    if domain.in_memory:
        rows = material.table.rows if material.table else {}
        place = rows[line["domain"]][line["index"]] if rows else line["index"]
        return shown | {"what": f"row {place}", "picture": None}
    path = domain.files[line["index"]]
    if path not in pictures:
        pictures[path] = _picture(path)
    return shown | {"what": path.name, "picture": pictures[path]}


def _picture(path: Path) -> str | None:
    """Return a small square picture as the address of a page's image; None without its file."""
    try:
        image = read_image(path)
    except (ValueError, OSError):  # it may be gone by now: the runs saw a cache of it
        return None
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
