"""Data of commands: options that name data sets and folders, loading with messages, caches."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..documents import damage_named, read_object
from ..escapes import brief
from ..storage import cache_root
from .notes import note
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
    from ..catalogue import DOMAINBED_DATASETS, own_dataset
    from ..datasets import is_folder, load_dataset
    from ..datasets.folders import empty_folders

    dataset = load_dataset(text, root, trial)
    if is_folder(text):
        if text in DOMAINBED_DATASETS:
            note(
                f"{text} is a folder here and is read as your own images; the published data set "
                f"is {own_dataset(text)}"
            )
        for name in empty_folders(Path(text)):
            note(f"skipped the domain {name!r} of {text}: it is empty")
    return dataset


def report_resizing(dataset: Any, network: str | None) -> None:
    """Print that a network for small images gets those of files in another size."""
    from ..networks.registry import BY_SIZE

    side = {name: size for size, name in BY_SIZE.items()}.get(network or "")
    if dataset.kind != "files" or side is None or side == dataset.input_shape[-1]:
        return
    got = dataset.input_shape[-1]
    note(
        f"{network} is made for {side} × {side} images, and gets these at {got} × {got}: images of "
        f"files are always resized so; for images of {side} × {side} as they are, give them as "
        "tensors in Python, for example to shoal.DomainClassifier"
    )


def decode_with_progress(dataset: Any, root: Path) -> Any:
    """Return the cache of a data set's files, built if there is none; None in memory."""
    from ..datasets.cache import open_or_build_cache

    if dataset.in_memory:
        return None
    with amounts("images") as shown:
        return open_or_build_cache(dataset, root, partial(shown, f"decoding {dataset.name}"))


def features_with_progress(
    dataset: Any, network: str | None, device: Any, cache: Path, out: Path | None = None
) -> Path:
    """Return the feature file of a data set's images, computed if there is none.

    Args:
        network: with ImageNet weights, as in ``--backbone`` of ``shoal fit``.
        cache: the folder of decoded images and feature files.
        out: the file; by default one in the cache, for these images and this network.
    """
    from ..catalogue import FIT_BACKBONE
    from ..datasets.cache import cache_folder
    from ..datasets.features import SUFFIX, write_features
    from ..fitting.frozen_features import compute_features
    from ..networks.registry import backbone_name

    backbone = backbone_name(network or FIT_BACKBONE)
    name = f"{dataset.name}-{backbone.replace(':', '-')}"
    folder = cache_folder(dataset, cache)
    path = out or folder.with_name(f"{folder.name}-{backbone.replace(':', '-')}{SUFFIX}")
    if out is None and path.exists():
        return path
    with amounts("images") as shown:
        found = compute_features(
            dataset,
            lambda: decode_with_progress(dataset, cache),
            backbone,
            device,
            partial(shown, f"features of {dataset.name}"),
        )
    domains = tuple(replace(one, images=found[one.name]) for one in dataset.domains)
    write_features(path, replace(dataset, name=name, domains=domains))
    return path


def add_columns(parser: Any) -> None:
    """Add the names of a table's columns."""
    parser.add_argument(
        "--class-column",
        metavar="NAME",
        help="the column of a table with the class (default: as in the fit)",
    )
    parser.add_argument(
        "--domain-column",
        nargs="+",
        metavar="NAME",
        help="the columns of a table with the domain, also as date:month (default: as in the fit)",
    )


def load_for_model(options: argparse.Namespace, card: Mapping[str, Any]) -> Any:
    """Return the data set of ``options`` as the model of this card takes it.

    Unreadable images are skipped and printed.
    """
    from ..datasets.encoding import Encoding
    from ..datasets.reading import Reading
    from ..datasets.tables import is_table
    from ..fitting.predictor import FIT_AGAIN

    inputs = card.get("inputs") or _inputs_of_fit(options.model, card)
    with damage_named(f"the card of {options.model}", FIT_AGAIN):
        # The columns of a fit are not always all those of its runs.
        encoding = Encoding.from_card(inputs, card["shape"] if card.get("inputs") else None)
        reading = Reading.from_json(inputs)
        label, domain = (_columns(inputs, kind) for kind in ("class_column", "domain_column"))
    if encoding is not None:
        return _load_table(options, label, domain, encoding)
    given = [kind for kind in ("class", "domain") if getattr(options, f"{kind}_column")]
    if len(card["shape"]) == 1 and (given or is_table(Path(options.dataset))):
        raise ValueError(
            f"{options.model} takes {card['shape'][0]} numbers, and only the fit that trained it "
            "knows their columns: give the run in the folder of its fit"
        )
    if given:
        raise ValueError(f"--{given[0]}-column is for tables, and this model takes images")
    dataset = load_and_report(options.dataset, options.data, options.trial)
    return _skip_broken_images(dataset, options, _reading_of(dataset, reading))


def _columns(inputs: Mapping[str, Any], kind: str) -> Any:
    """Return the name of a column of the fit's table, or several; raise if they are no names."""
    found = inputs.get(kind, kind.removesuffix("_column"))
    names = found if kind == "domain_column" and isinstance(found, list) else [found]
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{kind} is {brief(found)}")
    return found


def _reading_of(dataset: Any, reading: Any) -> Any:
    """Return how a model reads the images of a data set.

    Only images that are not stored upright make a difference, so without one the cache of the
    images as they are stored serves.
    """
    from ..datasets.images import is_turned

    if not reading.upright or dataset.in_memory:
        return reading
    turned = any(is_turned(path) for domain in dataset.domains for path in domain.files)
    return replace(reading, upright=turned)


def _inputs_of_fit(model: Path, card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of the fit that the model is a run of; nothing if it is no such run.

    A run on a table knows the number of its columns, and the fit their names. A run on images
    does not know how they were read.
    """
    from ..fitting.setup import INSPECTION
    from ..results.records import CARD, FIT_SETUP, MODEL

    run = (model.parent if model.name == MODEL else model).resolve()
    fit = run.parent.parent
    if not (fit / FIT_SETUP).exists():
        return {}
    if len(card["shape"]) != 1:
        known = read_object(fit / INSPECTION) if (fit / INSPECTION).exists() else {}
        with damage_named(fit / INSPECTION):
            reading: Mapping[str, Any] = dict(known.get("reading", {}))
        return {**reading, "orientation": "exif"} if reading else {}
    if read_object(fit / FIT_SETUP, ("kind",))["kind"] != "table":
        raise ValueError(
            f"{model} takes {card['shape'][0]} features that the fit computes from images; "
            f"evaluate the fit instead: shoal eval {fit}"
        )
    if not (fit / CARD).exists():
        raise ValueError(
            f"the fit {fit} is not finished: the columns of its runs are not known yet"
        )
    found: Mapping[str, Any] = read_object(fit / CARD, ("inputs",))["inputs"]
    return found


def report_unseen(unseen: Mapping[str, int]) -> None:
    """Print the number of categories that did not occur in training, by column."""
    for column, count in unseen.items():
        subject, verb = ("1 value", "is") if count == 1 else (f"{count:,} values", "are")
        note(f"{subject} of {column!r} did not occur in training and {verb} ignored")


def _load_table(
    options: argparse.Namespace, class_column: str, domain_column: Any, encoding: Any
) -> Any:
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
        options.class_column or class_column,
        options.domain_column or domain_column,
    )
    report_unseen(unseen)
    return dataset


def _skip_broken_images(dataset: Any, options: argparse.Namespace, reading: Any) -> Any:
    """Return the data set without unreadable files; a fit has listed those of its own data.

    The others are read as ``reading`` says.
    """
    from ..datasets.cache import cache_folder
    from ..fitting.image_survey import broken_files
    from ..fitting.inspection import without

    if dataset.in_memory:
        return dataset
    read = replace(dataset, reading=reading)
    record, as_before = _inspection_of_fit(dataset, options.model), " as in the fit"
    if record is None:
        if _is_decoded(read, options.cache):
            return read
        # Next to the cache, so that the next command need not read all files again.
        decoded = cache_folder(read, options.cache)
        record, as_before = decoded.with_name(f"broken-{decoded.name}.json"), ""
    with amounts("images") as shown:
        progress = partial(shown, f"reading {dataset.name}")
        broken = broken_files(dataset, progress, record, reading)
    for line in broken:
        note(f"skipped{as_before}: {line.path}: {line.why}")
    if broken:
        count = sum(map(len, dataset.domains))
        note(f"{len(broken):,} of {count:,} images cannot be read and are skipped")
    return without(read, {line.path for line in broken})


def _inspection_of_fit(dataset: Any, model: Path) -> Path | None:
    """Return the inspection file of the model's fit if it is of this data set, otherwise None."""
    from ..fitting.setup import INSPECTION
    from ..results.records import MODEL

    record = (model.parent if model.name == MODEL else model) / INSPECTION
    same = record.exists() and read_object(record).get("fingerprint") == dataset.fingerprint
    return record if same else None


def _is_decoded(dataset: Any, root: Path) -> bool:
    """Return whether the cache of the data set is complete."""
    from ..datasets.cache import cache_folder, open_cache

    try:
        open_cache(dataset, cache_folder(dataset, root))
    except ValueError:
        return False
    return True
