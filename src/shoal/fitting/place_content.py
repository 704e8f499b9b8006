"""Content of a monitoring page: a report on a place, with inputs that a person should look at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..monitoring.place import PlaceReport
from .page_content import small_picture
from .predictor import Prediction, Predictor

# Inputs that are shown of each kind, and columns of a row.
SHOWN, COLUMNS = 12, 6


def place_content(
    model: Predictor,
    found: Sequence[Prediction],
    report: PlaceReport,
    sentences: Sequence[str],
    title: str,
) -> dict[str, Any]:
    """Return the content for ``report.monitor_page.monitor_page``.

    Args:
        found: the predictions that the report is on.
        title: of the place.
    """
    drift = report.drift
    unsure = sorted(
        (k for k, one in enumerate(report.likely) if len(one) > 1),
        key=lambda k: (-len(report.likely[k]), found[k].probability or 0.0),
    )
    return {
        "title": title,
        "kind": "rows" if model.takes_rows else "images",
        "inputs": report.inputs,
        "sentences": list(sentences),
        "sure": "useless" if drift is not None and drift.alarm else "clear",
        "alarm": None if drift is None else drift.alarm,
        "threshold": None if drift is None else drift.threshold,
        "domains": [
            {
                "name": name,
                "accuracy": accuracy,
                "estimate": report.estimates[name],
                "shift": None if drift is None else drift.shifts.get(name),
                "energy": report.energies.get(name),
            }
            for name, accuracy in report.known_accuracies.items()
        ],
        "energy": report.energy,
        "measured": report.measured,
        "expected": report.expected,
        "classes": [
            {
                "name": name,
                "training": model.reference.shares[name],
                "predicted": share,
                "corrected": report.corrected_shares[name],
            }
            for name, share in report.shares.items()
        ],
        "moved": list(report.moved.items()),
        "far": [_shown(model, found[k], report.likely[k]) for k in report.least_like(SHOWN)],
        "unsure": [_shown(model, found[k], report.likely[k]) for k in unsure[:SHOWN]],
        "unsure_count": len(unsure),
    }


def _shown(model: Predictor, one: Prediction, likely: Sequence[str]) -> dict[str, Any]:
    """Return an input with its picture, or its values."""
    shown = {"what": Path(one.source).name, "likely": list(likely), "picture": None, "row": ""}
    if model.encoding is None:
        return shown | {"picture": small_picture(Path(one.source), model.reading)}
    features = np.zeros(0) if one.features is None else one.features
    values = model.encoding.values_of(torch.from_numpy(features))
    listed = [f"{name} {value}" for name, value in values.items()][:COLUMNS]
    return shown | {"row": ", ".join(listed)}
