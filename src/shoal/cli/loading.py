"""The data that a command works on: by name, a folder or a manifest, and its cache."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .amounts import amounts


def add_data_options(parser: Any) -> None:
    """Add what names a data set."""
    parser.add_argument(
        "--dataset",
        required=True,
        metavar="NAME",
        help="a name of 'shoal data list', a folder of domain/class/file, or a .csv, .tsv "
        "or .json manifest",
    )
    add_places(parser)


def add_data_folder(parser: Any) -> None:
    """Add where data sets lie."""
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SHOAL_DATA", "data")),
        metavar="DIR",
        help="the folder that holds the data sets (default: $SHOAL_DATA, or data)",
    )


def add_places(parser: Any) -> None:
    """Add where data sets and caches lie."""
    add_data_folder(parser)
    add_cache_folder(parser)


def add_cache_folder(parser: Any) -> None:
    """Add where decoded images lie."""
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal")),
        metavar="DIR",
        help="the folder of decoded images (default: $SHOAL_CACHE, or ~/.cache/shoal)",
    )


def dataset_of(options: argparse.Namespace, quiet: bool = False) -> Any:
    """Return the data set that ``--dataset`` names; a folder with its name is ``./name``.

    Empty folders of domains are left out, and told unless ``quiet``.
    """
    from ..datasets import DATASETS, find, image_folders, image_manifest
    from ..datasets.folders import empty_folders, name_of
    from ..datasets.manifest import is_manifest

    text, trial = options.dataset, getattr(options, "trial", 0)
    path = Path(text)
    if is_manifest(path):
        return image_manifest(path.stem, path)
    if "/" in text or (path.is_dir() and text not in DATASETS):
        dataset = image_folders(name_of(path), path)
        empty = [] if quiet else empty_folders(path)
        for name in empty:
            print(f"shoal: the domain {name!r} of {path} is empty, and left out", file=sys.stderr)
        return dataset
    return find(text)(options.data, trial)


def cache_of(dataset: Any, options: argparse.Namespace) -> Any:
    """Return the cache of a data set's files, built where there is none; None in memory."""
    from torch import Tensor

    from ..datasets.cache import build, cache_folder

    if isinstance(dataset.domains[0].images, Tensor):
        return None
    with amounts("images") as shown:
        told = partial(shown, f"decoding {dataset.name}")
        return build(dataset, cache_folder(dataset, options.cache), told)
