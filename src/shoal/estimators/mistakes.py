"""What a method gets wrong on a domain that it never saw, worst first, with pictures."""

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..datasets.images import read_image
from ..results.records import Finished
from ..runs.folder import PREDICTIONS
from .inspection import Material

# Pictures of each method and domain, their side in pixels, and how many confusions are told.
SHOWN, SIDE, TOLD = 12, 112, 5


def mistakes_of(runs: Sequence[Finished], material: Material) -> list[dict[str, Any]]:
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
    line: Mapping[str, Any], material: Material, pictures: dict[Path, str | None]
) -> dict[str, Any]:
    shown = {key: line[key] for key in ("label", "prediction", "probability")}
    images = material.dataset[line["domain"]].images
    if isinstance(images, Tensor):
        rows = material.table.rows if material.table else {}
        place = rows[line["domain"]][line["index"]] if rows else line["index"]
        return shown | {"what": f"row {place}", "picture": None}
    path = images[line["index"]]
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
