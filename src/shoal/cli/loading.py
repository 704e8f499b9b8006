"""The data that a command works on: by name, a folder or a manifest, and its cache."""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .progress import amounts


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
    from ..storage import cache_root

    parser.add_argument(
        "--cache",
        type=Path,
        default=cache_root(),
        metavar="DIR",
        help="the folder of decoded images (default: $SHOAL_CACHE, or ~/.cache/shoal)",
    )


def load_and_report(text: str, root: Path, trial: int = 0) -> Any:
    """Return the data set of a name or path, and print which folders of domains are skipped."""
    from ..datasets import is_folder, load_dataset
    from ..datasets.folders import empty_folders

    dataset = load_dataset(text, root, trial)
    if is_folder(text):
        for name in empty_folders(Path(text)):
            print(f"shoal: skipped the domain {name!r} of {text}: it is empty", file=sys.stderr)
    return dataset


def decode_with_progress(dataset: Any, root: Path) -> Any:
    """Return the cache of a data set's files, built if there is none; None in memory."""
    from ..datasets.cache import open_or_build_cache

    if dataset.in_memory:
        return None
    with amounts("images") as shown:
        return open_or_build_cache(dataset, root, partial(shown, f"decoding {dataset.name}"))


def add_columns(parser: Any) -> None:
    """Add what the columns of a table are called."""
    for kind in ("class", "domain"):
        parser.add_argument(
            f"--{kind}-column", metavar="NAME", help="of a table (default: the fit's)"
        )


def readable(options: argparse.Namespace, card: Mapping[str, Any]) -> Any:
    """Return the data set of ``options``, for the model of this card, and name what is left out."""
    from ..datasets.tables import is_table

    inputs = card.get("inputs") or _of_the_fit(options.model, card)
    if "columns" in inputs:
        return _table(options, inputs)
    given = [kind for kind in ("class", "domain") if getattr(options, f"{kind}_column")]
    if len(card["shape"]) == 1 and (given or is_table(Path(options.dataset))):
        raise ValueError(
            f"{options.model} takes {card['shape'][0]} numbers and does not say of which columns: "
            "that is known to the fit which made it, in whose folder it must lie"
        )
    if given:
        raise ValueError(f"--{given[0]}-column is for a table, and the model takes images")
    return _images(load_and_report(options.dataset, options.data, options.trial), options)


def _of_the_fit(model: Path, card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the fit takes that this is a run of; nothing where it is of none.

    A run on a table knows the number of its columns, and the fit their names.
    """
    from ..fitting.setup import SETUP
    from ..runs.model import CARD, MODEL
    from ..storage import read_json

    run = (model.parent if model.name == MODEL else model).resolve()
    fit = run.parent.parent
    if len(card["shape"]) != 1 or not (fit / SETUP).exists():
        return {}
    if read_json(fit / SETUP)["kind"] != "table":
        raise ValueError(
            f"{model} takes {card['shape'][0]} features that the fit computes of images; measure "
            f"the fit: shoal eval {fit}"
        )
    if not (fit / CARD).exists():
        raise ValueError(f"the fit {fit} has not ended, and says then which columns its runs take")
    found: Mapping[str, Any] = read_json(fit / CARD)["inputs"]
    return found


def tell_unseen(unseen: Mapping[str, int]) -> None:
    """Say how many values of a table the model has never seen, by column."""
    if unseen:
        rows = ", ".join(f"{count:,} of {column!r}" for column, count in unseen.items())
        print(
            f"shoal: values that were never seen in training, and count as none: {rows}",
            file=sys.stderr,
        )


def _table(options: argparse.Namespace, inputs: Mapping[str, Any]) -> Any:
    from ..datasets.encoding import Encoding
    from ..datasets.tables import SUFFIXES, is_table, known_table

    path = Path(options.dataset)
    if not is_table(path):
        raise ValueError(
            f"the model is of a table, and {path} is none: give a file that ends in one of "
            f"{', '.join(SUFFIXES)}"
        )
    dataset, unseen = known_table(
        path,
        Encoding.from_json(inputs["columns"]),
        options.class_column or inputs.get("class_column", "class"),
        options.domain_column or inputs.get("domain_column", "domain"),
    )
    tell_unseen(unseen)
    return dataset


def _images(dataset: Any, options: argparse.Namespace) -> Any:
    """Return the data set without the files that cannot be read; those of a fit are known to it."""
    from ..datasets.cache import cache_folder
    from ..fitting.inspection import broken_files, without

    if dataset.in_memory:
        return dataset
    record, by_whom = _record(dataset, options.model), ", as by the fit"
    if record is None:
        if _is_decoded(dataset, options.cache):
            return dataset
        # Beside what is decoded of the others, so that the next command need not read all again.
        decoded = cache_folder(dataset, options.cache)
        record, by_whom = decoded.with_name(f"broken-{decoded.name}.json"), ""
    with amounts("images") as shown:
        broken = broken_files(dataset, partial(shown, f"reading {dataset.name}"), record)
    for line in broken:
        print(f"shoal: left out{by_whom}: {line.path}: {line.why}", file=sys.stderr)
    if broken:
        count = sum(map(len, dataset.domains))
        print(
            f"shoal: {len(broken):,} of {count:,} images cannot be read; this is of the others",
            file=sys.stderr,
        )
    return without(dataset, {line.path for line in broken})


def _record(dataset: Any, model: Path) -> Path | None:
    """Return what the fit of a model has written of these images; None where they are others."""
    from ..fitting.setup import INSPECTION
    from ..runs.model import MODEL
    from ..storage import read_json

    record = (model.parent if model.name == MODEL else model) / INSPECTION
    same = record.exists() and read_json(record)["fingerprint"] == dataset.fingerprint
    return record if same else None


def _is_decoded(dataset: Any, root: Path) -> bool:
    """Return whether all images were read before, and are kept."""
    from ..datasets.cache import cache_folder, open_cache

    try:
        open_cache(dataset, cache_folder(dataset, root))
    except ValueError:
        return False
    return True
