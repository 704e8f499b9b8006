"""Page content: everything that the page of a fit shows, as plain values."""

import base64
import io
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..catalogue import BASELINES, title_of
from ..datasets.images import read_image
from ..datasets.reading import Reading
from ..documents import damage_named, parse_json
from ..files import LIST_BYTES, read_text
from ..monitoring.expected_accuracy import AccuracyEstimator
from ..monitoring.reference import Reference
from ..results.aggregation import TrialMean
from ..results.metrics import METRICS, Metric, by_class
from ..results.records import RunResult, timing_of
from ..runs.folder import PREDICTIONS
from .adaptation_record import AdaptationRecord
from .decision import CandidateRow, Decision
from .estimates import BASELINE_FAMILIES
from .folds import Fold
from .inspection import FitData
from .paired import HALF
from .setup import FitSetup
from .shift_meter import MeasuredShifts
from .unstable_columns import ColumnStability
from .verdict import Verdict

# Unreadable files that the page lists.
NAMED = 50
# Which weights of a network are measured, by the run's ``stop``.
MEASURED = {
    "last": " (networks after the last update)",
    "held-out": " (networks with the weights that are best on held-out examples of the training "
    "domains)",
}
AVERAGED = " (whole networks with the mean of their weights over the second half of a run)"


def build_page_content(
    data: FitData,
    setup: FitSetup,
    verdict: Verdict,
    runs: Sequence[tuple[str, RunResult]],
    folds: Sequence[Fold],
    failures: Sequence[str],
    onnx: bool,
    stability: ColumnStability | None = None,
    reference: Reference | None = None,
    shifts: MeasuredShifts | None = None,
    adaptation: AdaptationRecord | None = None,
) -> dict[str, Any]:
    """Return the content for ``report.fit_page.fit_page``.

    Args:
        runs: the finished runs, each with the key of its candidate.
        failures: a line for each failed run.
        onnx: whether an ONNX file was written.
        stability: of the columns of a table.
        reference: of ``shoal monitor``.
        shifts: of the domains, if there are vectors to measure them on.
        adaptation: what adaptations did on the domains left out.
    """
    decision = verdict.decision
    estimates = decision.estimates
    deployed = estimates.candidate(verdict.deploy).title
    domains = [
        name for name in estimates.domains if any(name in row.cells for row in decision.rows)
    ]
    return {
        "title": data.dataset.name,
        "kind": setup.kind,
        "metric": _metric(estimates.measure),
        "half_weight": HALF,
        "baseline": decision.simplest.name,
        "deploy": deployed,
        "sure": decision.sure,
        "short": bool(decision.shortfalls),
        "sentences": verdict.sentences,
        "domains": domains,
        "methods": [_method(row, domains, decision) for row in decision.rows],
        "guess": {**_scores(decision.guess, domains, decision), "beaten": decision.beaten},
        "classes": _by_class(decision, data.dataset.classes),
        "unstable": _effects(stability, data.dataset.names),
        "shifts": None if shifts is None else _shifts(shifts),
        "monitor": None if reference is None else _monitor(reference.accuracy),
        "adaptation": None if adaptation is None else _adaptation(adaptation),
        "data": _data(data),
        "mistakes": find_mistakes(
            [(deployed, run) for key, run in runs if key == verdict.deploy], folds, data
        ),
        "measured": _measured(setup, decision),
        "how": _how(setup, decision, [run for _, run in runs]),
        "failures": list(failures),
        "onnx": onnx,
    }


def _monitor(found: AccuracyEstimator) -> dict[str, Any]:
    """Return what each estimator of accuracy without labels said of every domain left out."""
    return {
        "used": found.name,
        "estimators": list(found.tried),
        "rows": [
            {
                "name": domain,
                "accuracy": accuracy,
                "estimates": [mine[domain] for mine in found.tried.values()],
            }
            for domain, accuracy in found.accuracies.items()
        ],
    }


def _shifts(found: MeasuredShifts) -> dict[str, Any]:
    rows = [{"name": name, **one._asdict()} for name, one in found.domains.items()]
    return {"rows": rows, "mean": found.mean._asdict(), "notes": list(found.notes)}


def _adaptation(found: AdaptationRecord) -> dict[str, Any]:
    """Return what each adaptation did on every domain left out, in points."""
    names, gains = list(found.after), [found.gain(name) for name in found.after]
    return {
        "offered": found.offered,
        "metric": METRICS[found.metric].title,
        "names": names,
        "rows": [
            {
                "name": domain,
                "before": 100 * before,
                "gains": [100 * (found.after[name][domain] - before) for name in names],
            }
            for domain, before in found.before.items()
        ],
        "means": [{"mean": 100 * one.mean, "error": 100 * one.error} for one in gains],
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "title": metric.title,
        "unit": metric.unit,
        "digits": metric.digits,
        "most": metric.scale if metric.bounded else None,
    }


def _method(row: CandidateRow, domains: Sequence[str], decision: Decision) -> dict[str, Any]:
    one, scale = decision.differences.get(row.key), decision.estimates.measure.scale
    variants = {each.key for each in decision.estimates.candidates if each.variant}
    return {
        **_scores(row, domains, decision),
        # Other settings of a method stand in the table alone.
        "drawn": row.key not in variants or row.key == decision.deploy,
        "inside": None if row.inside is None else scale * row.inside,
        "calibration": row.calibration_error,
        "difference": None
        if one is None
        else {
            "mean": scale * one.difference,
            "error": scale * one.error,
            "wins": one.wins,
            "pairs": one.pairs,
        },
    }


def _scores(row: CandidateRow, domains: Sequence[str], decision: Decision) -> dict[str, Any]:
    """Return a line of the table; cells of the deployed candidate that fall short are marked."""
    scale = decision.estimates.measure.scale
    short = {one.domain for one in decision.shortfalls if row.key == decision.deploy}
    return {
        "name": row.title,
        "cells": [_cell(row.cells.get(name), scale, name in short) for name in domains],
        "average": None if row.average is None else _number(scale * row.average),
        "worst": None if row.worst is None else _number(scale * row.worst),
    }


def _cell(cell: TrialMean | None, scale: int, short: bool) -> dict[str, Any] | None:
    """Return a cell as it is written; a single trial has no error."""
    if cell is None:
        return None
    error = scale * cell.error if cell.trials > 1 else None
    return _number(scale * cell.mean) | {"error": error, "trials": cell.trials, "short": short}


def _number(mean: float) -> dict[str, Any]:
    return {"mean": mean, "error": None, "short": False}


def _data(data: FitData) -> dict[str, Any]:
    dataset, table = data.dataset, data.table
    counts = dataset.counts()
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
        "notes": data.notes,
        "broken": [{"path": str(one.path), "why": one.why} for one in data.broken[:NAMED]],
        "broken_count": len(data.broken),
        "columns": [] if table is None else [_column(one) for one in table.encoding.as_json()],
        "left_out": [] if table is None else list(table.encoding.left_out),
    }


def _column(one: Mapping[str, Any]) -> str:
    if one["kind"] == "number":
        return f"{one['name']} (number{', some missing' if one['gaps'] else ''})"
    return f"{one['name']} ({len(one['values'])} categories)"


def _networks(decision: Decision) -> bool:
    """Return whether networks were trained, and not only baselines fitted."""
    families = (decision.estimates.candidate(row.key).family for row in decision.rows)
    return not all(family in BASELINE_FAMILIES for family in families)


def _measured(setup: FitSetup, decision: Decision) -> str:
    if not _networks(decision):
        return ""
    return AVERAGED if setup.average else MEASURED[setup.protocol.stop]


def _how(setup: FitSetup, decision: Decision, runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    timings = [timing for timing in map(timing_of, runs) if timing is not None]
    seconds = sum(timing.seconds for timing in timings)
    network = setup.backbone or "MLP"
    if setup.frozen:
        network += ", frozen; only a linear head on its features is trained"
    fewest, most = decision.estimates.trials
    splits = (
        "1 split" if most == 1 else f"{most if fewest == most else f'{fewest} to {most}'} splits"
    )
    baselines = [title_of(row.key) for row in decision.rows if row.key in BASELINES]
    found = []
    if baselines:
        found.append(("Fitted by scikit-learn", ", ".join(baselines)))
    if _networks(decision):
        found += [("Network", network), ("Updates per run", f"{setup.steps:,}")]
    pairs = "; then with two at a time" if decision.estimates.pairs else ""
    found += [
        ("Runs", f"{len(runs)}: each method with each domain held out, {splits}{pairs}"),
        ("Time for these runs", f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"),
    ]
    machines = list(dict.fromkeys(timing.machine for timing in timings if timing.machine))
    return [*found, *(("Machine", machine) for machine in machines)]


# Images shown for each method and domain, their side in pixels, and confusions listed.
SHOWN, SIDE, CONFUSIONS = 12, 112, 5
# Columns of a row that are shown, and the most classes whose confusion is.
COLUMNS, CLASSES = 12, 20


def find_mistakes(
    runs: Sequence[tuple[str, RunResult]], folds: Sequence[Fold], data: FitData
) -> list[dict[str, Any]]:
    """Return the errors on each fold left out, in the first trial.

    The most confident errors come first, each with a small picture or the row of the table.

    Args:
        runs: each with the title of its candidate.
    """
    pictures: dict[Path, str | None] = {}
    names = {frozenset(fold.domains): fold.name for fold in folds}
    found = []
    for title, run in runs:
        left_out = frozenset(run.test_domains)
        if run.trial != 0 or left_out not in names or run.path is None:
            continue
        lines = _read_predictions(run.path / PREDICTIONS, left_out)
        wrong = [line for line in lines if line["prediction"] != line["label"]]
        wrong.sort(key=lambda line: -line["probability"])
        pairs = Counter((line["label"], line["prediction"]) for line in wrong)
        found.append(
            {
                "method": title,
                "domain": names[left_out],
                "examples": len(lines),
                "wrong": len(wrong),
                "confusions": [
                    {"label": label, "prediction": prediction, "times": times}
                    for (label, prediction), times in pairs.most_common(CONFUSIONS)
                ],
                "shown": [_mistake(line, data, pictures) for line in wrong[:SHOWN]],
            }
        )
    return found


def _read_predictions(path: Path, domains: Collection[str]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # Not str.splitlines, which also splits within names.
    lines = filter(None, read_text(path, LIST_BYTES).split("\n"))
    with damage_named(path):
        found = (parse_json(line, path) for line in lines)
        return [line for line in found if line["domain"] in domains]


def _mistake(
    line: Mapping[str, Any], data: FitData, pictures: dict[Path, str | None]
) -> dict[str, Any]:
    mistake = {key: line[key] for key in ("label", "prediction", "probability")}
    domain = data.dataset[line["domain"]]
    if domain.in_memory:
        what, values = f"row {line['index']}", ""
        if data.table is not None:
            what = f"row {data.table.rows[line['domain']][line['index']]}"
            values = _values(data.table.encoding.values_of(domain.tensor[line["index"]]))
        return mistake | {"what": what, "row": values, "picture": None}
    path = domain.files[line["index"]]
    if path not in pictures:
        pictures[path] = small_picture(path, data.dataset.reading)
    return mistake | {"what": path.name, "row": "", "picture": pictures[path]}


def _values(row: Mapping[str, str]) -> str:
    """Return the values of a row as text; of a wide table, those of the first columns."""
    shown = [f"{name} {value}" for name, value in list(row.items())[:COLUMNS]]
    return ", ".join([*shown, "…"] if len(row) > COLUMNS else shown)


def _by_class(decision: Decision, classes: Sequence[str]) -> dict[str, Any] | None:
    """Return the scores of each class, of the deployed candidate on all domains left out.

    Every domain is predicted by the run that left it out. None without predictions.
    """
    found = decision.estimates.predictions.get(decision.deploy, {})
    mine = {name: found[name] for name in decision.estimates.domains if name in found}
    if not mine:
        return None
    together = by_class(
        np.concatenate([np.exp(one.log_probabilities) for one in mine.values()]),
        np.concatenate([one.labels for one in mine.values()]),
    )
    each = {name: by_class(np.exp(p.log_probabilities), p.labels) for name, p in mine.items()}
    counts = together.confusion.sum(1)
    return {
        "domains": list(mine),
        "rows": [
            {
                "name": name,
                "examples": int(counts[k]),
                "recall": _known(together.recall[k]),
                "precision": _known(together.precision[k]),
                "auroc": _known(together.auroc[k]),
                "recalls": [_known(one.recall[k]) for one in each.values()],
            }
            for k, name in enumerate(classes)
        ],
        "confusion": together.confusion.tolist() if len(classes) <= CLASSES else None,
    }


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _effects(stability: ColumnStability | None, domains: Sequence[str]) -> list[dict[str, Any]]:
    """Return the effects of the unstable columns by domain."""
    if stability is None:
        return []
    return [
        {
            "name": ", ".join(one.names),
            "rows": [
                {"domain": domains[k], "effect": effect, "error": one.errors[k]}
                for k, effect in one.effects.items()
            ],
        }
        for one in stability.groups
        if one.flagged
    ]


def small_picture(path: Path, reading: Reading) -> str | None:
    """Return a small square picture as a data URL; None if the file cannot be read."""
    try:
        image = read_image(path, reading)
    except (ValueError, OSError):  # the runs read a cache, so the file can be gone by now
        return None
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
