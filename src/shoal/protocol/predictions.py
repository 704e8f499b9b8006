"""What a run's model says of every image that was evaluated."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from ..datasets import DomainDataset
from ..storage import write_json, write_text
from ..training.evaluation import Outcome, Part, Place
from .folder import Folder

PREDICTIONS, CONFUSION = "predictions.jsonl", "confusion.json"


def write_predictions(
    folder: Folder, dataset: DomainDataset, parts: Mapping[Place, Part], found: dict[Place, Outcome]
) -> None:
    """Write what the model says of every image that was evaluated, and how it confuses classes."""
    lines: list[str] = []
    confusion: dict[str, dict[str, Any]] = {}
    for (domain, split), outcome in found.items():
        images = dataset[domain].images
        for k, index in enumerate(parts[domain, split].indices.tolist()):
            line: dict[str, Any] = {"domain": domain, "split": split, "index": index}
            if not isinstance(images, torch.Tensor):
                line["file"] = images[index].name
            line["label"] = dataset.classes[int(outcome.labels[k])]
            line["prediction"] = dataset.classes[int(outcome.predictions[k])]
            line["probability"] = float(outcome.confidences[k])
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        table = outcome.confusion(len(dataset.classes)).tolist()
        confusion.setdefault(domain, {})[split] = table
    write_text(folder.path / PREDICTIONS, "".join(lines))
    write_json(folder.path / CONFUSION, {"classes": list(dataset.classes), "counts": confusion})
