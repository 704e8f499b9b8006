"""The model to deploy: all domains, one folder, and a card that says what can be expected of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..algorithms.base import Algorithm
from ..datasets import DomainDataset
from ..runs import model as models
from ..runs.model import CARD
from ..runs.run import Run
from ..storage import read_json, write_json
from ..sweeps.plan import Method, folder_of
from ..training.pillow import exact_evaluation
from .frozen import SHAPE, whole_network
from .inspection import Material
from .loading import load
from .onnx_file import ONNX, described, onnx_missing, write_onnx
from .predictor import Predictor
from .setup import Setup
from .verdict import Verdict

# Examples that the ONNX file is compared on.
COMPARED = 8


def write_model(
    out: Path,
    run: Run,
    method: Method,
    setup: Setup,
    material: Material,
    verdict: Verdict,
) -> None:
    """Write the model of ``run``, which was trained on all domains, and its card to ``out``."""
    trained = models.load(folder_of(out, run), torch.device("cpu"), method[0])
    algorithm, card = trained.algorithm, trained.card
    shape: tuple[int, ...] = tuple(card["shape"])
    domains = card["training_domains"]
    if setup.frozen and setup.backbone is not None:
        shape = SHAPE
        algorithm, run = whole_network(
            algorithm, run, setup.fingerprint, setup.backbone, len(domains)
        )
    about: dict[str, Any] = {
        "shoal": __version__,
        "trained": setup.trained,
        "inputs": _inputs(material),
        "estimate": verdict.as_json(),
    }
    (out / ONNX).unlink(missing_ok=True)  # it may be of another model
    models.save(out, algorithm, run, shape, material.dataset.classes, domains, card, about)


def write_checked_onnx(out: Path, method: type[Algorithm], material: Material) -> str:
    """Write the ONNX file of the model in ``out``, and to its card what it takes; return a line.

    Not every network of other packages can be written so; the model is there all the same.
    """
    lacking = onnx_missing()
    if lacking is not None:
        return (
            f"no {ONNX}: it needs {lacking}; pip install 'shoal[onnx]' and give the command again"
        )
    predictor = load(out, "cpu", method)
    inputs = examples_of(predictor, material.dataset)
    try:
        gap = write_onnx(out / ONNX, predictor, inputs)
    except Exception as error:  # the exporter raises whatever a network drives it to
        if isinstance(error, OSError):
            raise
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"no {ONNX}: {why}"
    card = read_json(out / CARD)
    encoding = None if material.table is None else material.table.encoding
    told = described(card["shape"], material.dataset.classes, encoding)
    write_json(out / CARD, {**card, "onnx": told})
    return f"{ONNX} agrees with the model to {gap:.1g} in every probability"


def examples_of(predictor: Predictor, dataset: DomainDataset) -> Tensor:
    """Return some inputs of the model, of all domains in turn."""
    found = []
    for k in range(COMPARED):
        images = dataset.domains[k % len(dataset.domains)].images
        one = images[k // len(dataset.domains) % len(images)]
        found.append(one if isinstance(one, Tensor) else exact_evaluation(one))
    return torch.stack(found)


def _inputs(material: Material) -> Mapping[str, Any]:
    if material.table is None:
        return {"kind": "images", "size": "any; resized to 224 × 224"}
    class_column, domain_column = material.table.answers
    return {
        "kind": "table",
        "columns": material.table.encoding.as_json(),
        "class_column": class_column,
        "domain_column": domain_column,
    }
