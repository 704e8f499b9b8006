"""Data sets as ordered, named domains: one file and one line here for each; MNIST is embedded."""

from collections.abc import Callable
from pathlib import Path

from ..checks import choose
from . import colored_mnist, domainnet, office_home, pacs, rotated_mnist, terra_incognita, vlcs
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

DATASETS: dict[str, Loader] = {
    "colored-mnist": colored_mnist.load,
    "rotated-mnist": rotated_mnist.load,
    "vlcs": vlcs.load,
    "pacs": pacs.load,
    "office-home": office_home.load,
    "terra-incognita": terra_incognita.load,
    "domainnet": domainnet.load,
}

# How many images there should be, for ``verify``.
PUBLISHED: dict[str, Published] = {
    "vlcs": vlcs.PUBLISHED,
    "pacs": pacs.PUBLISHED,
    "office-home": office_home.PUBLISHED,
    "terra-incognita": terra_incognita.PUBLISHED,
    "domainnet": domainnet.PUBLISHED,
}


def find(name: str) -> Loader:
    """Return the loader of this name; an unknown one gets the nearest."""
    return DATASETS[choose("data set", name, DATASETS)]
