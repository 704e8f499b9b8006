"""Models that were written to a folder, by this version of shoal or another."""

import warnings
from pathlib import Path

import torch

from .. import __version__
from ..algorithms.base import Algorithm
from ..protocol import model as models
from ..storage import read_json
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
    on = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Predictor(models.load(folder, on, method))


def _check_version(card: Path) -> None:
    if not card.is_file():
        return  # there is a better word for it where it is read
    found = read_json(card)
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
