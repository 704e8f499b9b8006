"""Data of commands: options that name data sets and folders, loading with messages, caches."""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..storage import cache_root, read_json
from .progress import amounts


def add_data_options(parser: Any) -> None:
    """Add the options that name a data set and its folders."""
    parser.add_argument(
        "--dataset",
        required=True,
        metavar="NAME",
        help="a name from 'shoal data list', a folder of domain/class/file, or a .csv, .tsv or "
        ".json file that lists images",
    )
    add_places(parser)


def add_data_folder(parser: Any) -> None:
    """Add the folder of the data sets."""
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SHOAL_DATA", "data")),
        metavar="DIR",
        help="the folder that contains the data sets (default: $SHOAL_DATA, or ./data)",
    )


def add_places(parser: Any) -> None:
    """Add the folders of data sets and caches."""
    add_data_folder(parser)
    add_cache_folder(parser)


def add_cache_folder(parser: Any) -> None:
    """Add the folder of decoded images."""
    parser.add_argument(
        "--cache",
        type=Path,
        default=cache_root(),
        metavar="DIR",
        help="the folder for decoded images (default: $SHOAL_CACHE, or ~/.cache/shoal)",
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
    """Add the names of a table's columns."""
    for kind in ("class", "domain"):
        parser.add_argument(
            f"--{kind}-column",
            metavar="NAME",
            help=f"the column of a table with the {kind} (default: as in the fit)",
        )


def load_for_model(options: argparse.Namespace, card: Mapping[str, Any]) -> Any:
    """Return the data set of ``options`` as the model of this card takes it.

    Unreadable images are skipped and printed.
    """
    from ..datasets.encoding import Encoding
    from ..datasets.tables import is_table

    inputs = card.get("inputs") or _inputs_of_fit(options.model, card)
    encoding = Encoding.from_card(inputs)
    if encoding is not None:
        return _load_table(options, inputs, encoding)
    given = [kind for kind in ("class", "domain") if getattr(options, f"{kind}_column")]
    if len(card["shape"]) == 1 and (given or is_table(Path(options.dataset))):
        raise ValueError(
            f"{options.model} takes {card['shape'][0]} numbers, and only the fit that trained it "
            "knows their columns: give the run in the folder of its fit"
        )
    if given:
        raise ValueError(f"--{given[0]}-column is for tables, and this model takes images")
    dataset = load_and_report(options.dataset, options.data, options.trial)
    return _skip_broken_images(dataset, options)


def _inputs_of_fit(model: Path, card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of the fit that the model is a run of; nothing if it is no such run.

    A run on a table knows the number of its columns, and the fit their names.
    """
    from ..results.records import CARD, FIT_SETUP, MODEL

    run = (model.parent if model.name == MODEL else model).resolve()
    fit = run.parent.parent
    if len(card["shape"]) != 1 or not (fit / FIT_SETUP).exists():
        return {}
    if read_json(fit / FIT_SETUP)["kind"] != "table":
        raise ValueError(
            f"{model} takes {card['shape'][0]} features that the fit computes from images; "
            f"evaluate the fit instead: shoal eval {fit}"
        )
    if not (fit / CARD).exists():
        raise ValueError(
            f"the fit {fit} is not finished: the columns of its runs are not known yet"
        )
    found: Mapping[str, Any] = read_json(fit / CARD)["inputs"]
    return found


def report_unseen(unseen: Mapping[str, int]) -> None:
    """Print the number of categories that did not occur in training, by column."""
    for column, count in unseen.items():
        subject, verb = ("1 value", "is") if count == 1 else (f"{count:,} values", "are")
        print(
            f"shoal: {subject} of {column!r} did not occur in training and {verb} ignored",
            file=sys.stderr,
        )


def _load_table(options: argparse.Namespace, inputs: Mapping[str, Any], encoding: Any) -> Any:
    from ..datasets.tables import SUFFIXES, encode_table, is_table

    path = Path(options.dataset)
    if not is_table(path):
        raise ValueError(
            f"the model takes rows of a table, and {path} is not a table: give a file that ends in "
            f"one of {', '.join(SUFFIXES)}"
        )
    dataset, unseen = encode_table(
        path,
        encoding,
        options.class_column or inputs.get("class_column", "class"),
        options.domain_column or inputs.get("domain_column", "domain"),
    )
    report_unseen(unseen)
    return dataset


def _skip_broken_images(dataset: Any, options: argparse.Namespace) -> Any:
    """Return the data set without unreadable files; a fit has listed those of its own data."""
    from ..datasets.cache import cache_folder
    from ..fitting.inspection import broken_files, without

    if dataset.in_memory:
        return dataset
    record, as_before = _inspection_of_fit(dataset, options.model), " as in the fit"
    if record is None:
        if _is_decoded(dataset, options.cache):
            return dataset
        # Next to the cache, so that the next command need not read all files again.
        decoded = cache_folder(dataset, options.cache)
        record, as_before = decoded.with_name(f"broken-{decoded.name}.json"), ""
    with amounts("images") as shown:
        broken = broken_files(dataset, partial(shown, f"reading {dataset.name}"), record)
    for line in broken:
        print(f"shoal: skipped{as_before}: {line.path}: {line.why}", file=sys.stderr)
    if broken:
        count = sum(map(len, dataset.domains))
        print(
            f"shoal: {len(broken):,} of {count:,} images cannot be read and are skipped",
            file=sys.stderr,
        )
    return without(dataset, {line.path for line in broken})


def _inspection_of_fit(dataset: Any, model: Path) -> Path | None:
    """Return the inspection file of the model's fit if it is of this data set, otherwise None."""
    from ..fitting.setup import INSPECTION
    from ..results.records import MODEL

    record = (model.parent if model.name == MODEL else model) / INSPECTION
    same = record.exists() and read_json(record)["fingerprint"] == dataset.fingerprint
    return record if same else None


def _is_decoded(dataset: Any, root: Path) -> bool:
    """Return whether the cache of the data set is complete."""
    from ..datasets.cache import cache_folder, open_cache

    try:
        open_cache(dataset, cache_folder(dataset, root))
    except ValueError:
        return False
    return True
