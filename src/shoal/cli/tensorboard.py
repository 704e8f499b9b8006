"""Curves of a run for TensorBoard."""

import shutil
from pathlib import Path
from typing import Any


class Board:
    """Call with all records so far: the new ones are added to the curves."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError(
                "--tensorboard needs tensorboard: pip install 'shoal[tensorboard]'",
                name="tensorboard",
            ) from error
        shutil.rmtree(folder, ignore_errors=True)  # the first call brings all records again
        self._writer: Any = SummaryWriter(str(folder))
        self._seen = 0

    def __call__(self, records: list[dict[str, Any]]) -> None:
        for record in records[self._seen :]:
            for name, value in record["terms"].items():
                self._writer.add_scalar(f"terms/{name}", value, record["step"])
            for name, value in record.get("gaps", {}).items():
                self._writer.add_scalar(f"gaps/{name}", value, record["step"])
            for domain, value in record.get("cosine", {}).items():
                self._writer.add_scalar(f"cosine/{domain}", value, record["step"])
            for kind in ("accuracy", "calibration_error"):
                for domain, splits in record[kind].items():
                    for split, value in splits.items():
                        self._writer.add_scalar(f"{kind}/{domain}/{split}", value, record["step"])
        self._seen = len(records)
        self._writer.flush()
