"""The model as an ONNX file, compared with the model itself before anyone relies on it."""

import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..storage import write_aside
from .predictor import Predictor

ONNX = "model.onnx"
# Largest difference between two probabilities; float32 sums in another order give some 1e-6.
TOLERANCE = 1e-4


def onnx_missing() -> str | None:
    """Return which package ONNX files need and is not there; None where all are."""
    from importlib.util import find_spec

    for name in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(name) is None:
            return name
    return None


def write_onnx(path: Path, predictor: Predictor, inputs: Tensor) -> float:
    """Write the model and return how far its probabilities are from the model's own at most.

    The file takes ``inputs`` as ``Predictor.probabilities`` does, any number of them, and gives
    ``probabilities``. Nothing is written where the two differ by more than rounding.

    Args:
        inputs: some examples to compare with.
    """
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / ONNX
        _export(predictor, inputs, made)
        content = made.read_bytes()
    gap = float((_run(content, inputs) - predictor.probabilities(inputs)).abs().max())
    if not gap <= TOLERANCE:
        raise ValueError(
            f"the ONNX file gives probabilities that are {gap:.2g} away from the model's, expected "
            f"{TOLERANCE:g} or less; it was not written"
        )
    write_aside(path, lambda file: file.write(content))
    return gap


def _export(predictor: Predictor, inputs: Tensor, path: Path) -> None:
    # Two or more: one example would be taken for a constant.
    example = inputs[:2].to(predictor.device)
    logger, level = logging.getLogger("torch.onnx"), logging.getLogger("torch.onnx").level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter's own deprecations
            torch.onnx.export(
                predictor.module,
                (example,),
                path,
                input_names=["inputs"],
                output_names=["probabilities"],
                dynamic_shapes={"inputs": {0: torch.export.Dim("n")}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)


def _run(content: bytes, inputs: Tensor) -> Tensor:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found = session.run(["probabilities"], {"inputs": inputs.numpy()})[0]
    return torch.from_numpy(found)
