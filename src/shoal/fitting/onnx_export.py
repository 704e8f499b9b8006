"""ONNX export: write the model as an ONNX file and check that both give the same probabilities."""

import json
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..datasets.encoding import MISSING, Column, Encoding
from ..datasets.reading import Window
from ..files import TENSOR_BYTES, read_bytes
from ..monitoring.reference import ENTRY as REFERENCE
from ..runs.fitted import Fitted
from ..storage import write_aside
from .onnx_fitted import fitted_bytes
from .predictor import Predictor

ONNX = "model.onnx"
INPUT, OUTPUT, BATCH = "inputs", "probabilities", "n"
# Largest accepted difference of a probability; float32 sums in another order give about 1e-6.
TOLERANCE = 1e-4


def onnx_missing() -> str | None:
    """Return the first package that the export needs and that is not installed, or None."""
    from importlib.util import find_spec

    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            return name
    return None


def describe_onnx(
    shape: Sequence[int],
    classes: Sequence[str],
    encoding: Encoding | None,
    window: Window | None = None,
) -> dict[str, Any]:
    """Return a description of the file's inputs and outputs, enough to use it without shoal.

    Args:
        shape: of one input.
        encoding: of a table's rows; None for images.
        window: of images with more than 8 bits.
    """
    if encoding is None:
        taken: dict[str, Any] = {"type": "uint8", "encoding": _image(shape, window)}
    else:
        vector = [entry for column in encoding.columns for entry in _entries(column)]
        taken = {"type": "float32", "encoding": _row(), "vector": vector}
    return {
        "file": ONNX,
        "input": {"name": INPUT, "shape": [BATCH, *shape], **taken},
        "output": {
            "name": OUTPUT,
            "shape": [BATCH, len(classes)],
            "type": "float32",
            "classes": list(classes),
            "encoding": "probabilities of the classes, in this order; each row sums to 1",
        },
    }


def _image(shape: Sequence[int], window: Window | None) -> str:
    _, height, width = shape
    deep = ""
    if window is not None:
        deep = (
            f"grey values v of more than 8 bits become 255 · (v − {window.low:g}) / "
            f"{window.high - window.low:g}, limited to 0 to 255 and rounded, before all else; "
        )
    return (
        f"RGB, 0 to 255, channels first; {deep}the image is turned as its EXIF orientation says; "
        f"the whole image is resized to {width} × {height} whatever its proportions, bilinear with "
        "antialiasing as in Pillow's resize; nothing is cropped, transparency is dropped; the file "
        "includes the normalisation"
    )


def _row() -> str:
    missing = ", ".join(repr(text) for text in sorted(MISSING))
    return (
        "one number for each entry of vector, in this order. number: the column's number, NaN if "
        "it is missing; missing: 1 if the column's number is missing, else 0; category: 1 if the "
        "column's text equals value, else 0, so a text without an entry is 0 in all of them. Strip "
        f"spaces around texts; {missing}, in any case, mean a missing value, which as a category "
        "is the empty text. The file includes the standardisation"
    )


def _entries(column: Column) -> list[dict[str, str]]:
    """Return the meaning of a column's numbers in the vector, in the order of ``Column.encode``."""
    if column.values is not None:
        return [
            {"column": column.name, "holds": "category", "value": value} for value in column.values
        ]
    holds = ("number", "missing") if column.gaps else ("number",)
    return [{"column": column.name, "holds": one} for one in holds]


def write_onnx(path: Path, predictor: Predictor, inputs: Tensor) -> float:
    """Write the file and return the largest difference of a probability from the model's.

    ``describe_onnx`` describes the file. Nothing is written if the two differ by more than
    rounding.

    Args:
        inputs: examples to compare on.
    """
    algorithm = predictor.module.algorithm
    if isinstance(algorithm, Fitted):
        names = (INPUT, OUTPUT, BATCH)
        temperature = predictor.module.temperature
        content = fitted_bytes(algorithm, inputs.shape[1], names, temperature)
    else:
        with TemporaryDirectory() as scratch:
            exported = Path(scratch) / ONNX
            _export(predictor, inputs, exported)
            content = read_bytes(exported, TENSOR_BYTES)
    gap = float((_run(content, inputs) - predictor.probabilities(inputs)).abs().max())
    if not gap <= TOLERANCE:
        raise ValueError(
            f"the ONNX file's probabilities differ from the model's by {gap:.2g}, expected "
            f"{TOLERANCE:g} or less; it was not written"
        )
    described = _with_metadata(content, predictor)
    write_aside(path, lambda file: file.write(described))
    return gap


def _export(predictor: Predictor, inputs: Tensor, path: Path) -> None:
    # Two examples, because the exporter takes a batch of one for a constant.
    example = inputs[:2].to(predictor.device)
    logger, level = logging.getLogger("torch.onnx"), logging.getLogger("torch.onnx").level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own deprecations
            torch.onnx.export(
                predictor.module,
                (example,),
                path,
                input_names=[INPUT],
                output_names=[OUTPUT],
                # Keyed by the name of the module's argument.
                dynamic_shapes={"inputs": {0: torch.export.Dim(BATCH)}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)


def _with_metadata(content: bytes, predictor: Predictor) -> bytes:
    """Return the file with what its user needs, and without the exporter's notes on its source.

    The limit is of probabilities: an input may have every class that reaches it.
    """
    import onnx

    model = onnx.load_from_string(content)
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    about = {"classes": json.dumps(predictor.classes)}
    about["temperature"] = f"{predictor.module.temperature:.6g}"
    if REFERENCE in predictor.card:
        about["likely_from_probability"] = f"{math.exp(-predictor.reference.sets.single):.6g}"
    onnx.helper.set_model_props(model, {f"shoal.{name}": text for name, text in about.items()})
    return bytes(model.SerializeToString())


def _run(content: bytes, inputs: Tensor) -> Tensor:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found = session.run([OUTPUT], {INPUT: inputs.numpy()})[0]
    return torch.from_numpy(found)
