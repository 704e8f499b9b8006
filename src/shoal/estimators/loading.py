"""Models that were written to a folder, by this version of shoal or another."""

import json
import warnings
from pathlib import Path

import torch

from .. import __version__
from ..algorithms.base import Algorithm
from ..runs import model as models
from .predictor import Predictor


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    method: type[Algorithm] | None = None,
) -> Predictor:
    """Return the model that ``shoal fit`` or ``shoal train`` wrote to a folder.

    Args:
        device: where it predicts; by default a GPU where there is one.
        method: the class of your own method, which a file cannot name.
    """
    folder = Path(path)
    folder = folder.parent if folder.name == models.MODEL else folder
    _check_version(folder / models.CARD)
    return Predictor(models.load(folder, device_of(device), method))


def device_of(asked: str | torch.device | None) -> torch.device:
    """Return the device that was asked for, or a GPU where there is one."""
    there = torch.cuda.is_available()
    try:
        found = torch.device(asked or ("cuda" if there else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"unknown device {asked!r}; one of: cpu, cuda, cuda:0 …") from error
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and not there):
        usable = "cpu or cuda" if there else "cpu"
        raise ValueError(f"device {asked!r} cannot be used; {usable} can")
    return found


def _check_version(card: Path) -> None:
    if not card.is_file():
        return  # there is a better word for it where it is read
    try:
        found = json.loads(card.read_text("utf-8"))
    except ValueError:
        return
    if not isinstance(found, dict):
        return
    writer = f"shoal {found['shoal']}" if "shoal" in found else "another version of shoal"
    if found.get("schema") != models.SCHEMA:
        raise ValueError(
            f"{card} was written by {writer} (schema {found.get('schema')!r}), and this is shoal "
            f"{__version__}, which reads schema {models.SCHEMA}; install the version that wrote "
            "it, or fit the model again"
        )
    if found.get("shoal", __version__) != __version__:
        warnings.warn(
            f"{card} was written by {writer}, and this is shoal {__version__}; both write models "
            "alike, so it is used",
            stacklevel=3,
        )
