"""Data sets: ordered, named domains with shared classes.

A published data set is one file, with a ``load`` and a ``SOURCE``, and one line in
``shoal.catalogue.DATASETS``.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .. import catalogue
from ..catalogue import DATASETS_NOT_HERE, module_of, own_dataset
from ..choices import choose
from .base import Domain, DomainDataset, Split, split, splits
from .features import is_feature_file, load_features
from .folders import folder_name, image_folders
from .images import Published, Verification, decode, verify
from .manifest import image_manifest, is_manifest
from .mnist import Digits, test_digits, train_digits
from .sources import DatasetSource

__all__ = [
    "DATASETS",
    "PUBLISHED",
    "SOURCES",
    "DatasetSource",
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
    "is_folder",
    "load_dataset",
    "split",
    "splits",
    "test_digits",
    "train_digits",
    "verify",
]

#: A function of the folder that holds all data sets (None if the set is embedded) and the trial.
Loader = Callable[[Path | None, int], DomainDataset]

_MODULES = {name: import_module(f".{module_of(name)}", __name__) for name in catalogue.DATASETS}

#: The published data sets: a loader for each name.
DATASETS: dict[str, Loader] = {name: module.load for name, module in _MODULES.items()}

#: Where each data set comes from.
SOURCES: dict[str, DatasetSource] = {name: module.SOURCE for name, module in _MODULES.items()}

#: The number of images that ``verify`` expects of each set that is downloaded.
PUBLISHED: dict[str, Published] = {
    name: source.published for name, source in SOURCES.items() if not source.embedded
}


def find(name: str) -> Loader:
    """Return the loader of this name or of DomainBed's; for an unknown one, raise the nearest."""
    if name in DATASETS_NOT_HERE:
        raise ValueError(
            f"{name} of DomainBed is not among the published data sets here; give the path of its "
            "images as domain/class/file"
        )
    return DATASETS[choose("data set", own_dataset(name), DATASETS)]


def load_dataset(text: str, root: Path | None, trial: int = 0) -> DomainDataset:
    """Return a published data set, or one of a folder, a manifest of images or a feature file.

    Args:
        text: a name of ``DATASETS``, or a path; a folder that has such a name is ``./name``.
            DomainBed's names are understood unless a folder here has one.
        root: the folder that holds the published data sets.
        trial: seeds the data sets that are drawn, such as Colored MNIST.
    """
    path = Path(text)
    if is_manifest(path):
        return image_manifest(path.stem, path)
    if is_feature_file(path):
        return load_features(path)
    if is_folder(text):
        return image_folders(folder_name(path), path)
    return find(text)(root, trial)


def is_folder(text: str) -> bool:
    """Return whether ``load_dataset`` reads a text as a folder, not as a name or a file."""
    if is_manifest(Path(text)) or is_feature_file(Path(text)):
        return False
    return "/" in text or (Path(text).is_dir() and text not in DATASETS)
