"""Data sets as ordered, named domains: one file and one line here for each; MNIST is embedded."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .. import catalogue
from ..catalogue import module_of
from ..choices import choose
from .base import Domain, DomainDataset, Split, split, splits
from .folders import image_folders
from .images import Published, Verification, decode, verify
from .manifest import image_manifest
from .mnist import Digits, test_digits, train_digits

__all__ = [
    "DATASETS",
    "PUBLISHED",
    "Digits",
    "Domain",
    "DomainDataset",
    "Loader",
    "Split",
    "Verification",
    "decode",
    "find",
    "image_folders",
    "image_manifest",
    "split",
    "splits",
    "test_digits",
    "train_digits",
    "verify",
]

# From the folder that holds all data sets (None where it is embedded) and the trial.
Loader = Callable[[Path | None, int], DomainDataset]

_MODULES = {name: import_module(f".{module_of(name)}", __name__) for name in catalogue.DATASETS}

DATASETS: dict[str, Loader] = {name: module.load for name, module in _MODULES.items()}

# How many images there should be, for ``verify``.
PUBLISHED: dict[str, Published] = {
    name: module.PUBLISHED for name, module in _MODULES.items() if hasattr(module, "PUBLISHED")
}


def find(name: str) -> Loader:
    """Return the loader of this name; an unknown one gets the nearest."""
    return DATASETS[choose("data set", name, DATASETS)]
