"""The data that a model is measured on: tables as it reads them, and images that can be read."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .amounts import amounts
from .loading import dataset_of


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
    return _images(dataset_of(options), options)


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
    from torch import Tensor

    from ..datasets.cache import cache_folder
    from ..fitting.inspection import broken_files, without

    if isinstance(dataset.domains[0].images, Tensor):
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
