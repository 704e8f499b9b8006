"""The data that a model was fitted to, without the files that the fit left out."""

import argparse
import sys
from pathlib import Path
from typing import Any


def readable(dataset: Any, options: argparse.Namespace) -> Any:
    """Return the data set as the fit of ``options.model`` saw it, and name what is left out.

    Data that is no fit's, or has changed since, comes back as it is.
    """
    from ..estimators.inspection import material_of
    from ..estimators.place import INSPECTION
    from ..protocol.model import MODEL
    from ..storage import read_json

    folder, data = options.model, Path(options.dataset)
    record = (folder.parent if folder.name == MODEL else folder) / INSPECTION
    if not (record.exists() and data.exists()):
        return dataset
    if read_json(record)["fingerprint"] != dataset.fingerprint:
        return dataset
    material = material_of(data, record=record)
    for line in material.broken:
        print(f"shoal: left out, as by the fit: {line.path}: {line.why}", file=sys.stderr)
    return material.dataset
