"""``shoal predict``: classify new files with a trained model."""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..report.screen import csv_printer, print_json, print_lines
from .extras import require
from .loading import report_unseen
from .notes import add_quiet, note, report_error
from .options import add_device, device

# Inputs unlike all in training that are listed on stderr; the others are counted.
NAMED = 10
# What only ``shoal monitor`` looks at.
OBSERVED = ("features", "energy")


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "predict",
        help="classify new images or rows with a trained model",
        description="Prints the class and its probability for every image or row. Unreadable "
        "inputs are reported on stderr and skipped; the exit status is then 1. Rows with numbers "
        "far from all in training, or without a value that no row in training lacked, are "
        "reported, too, because their probability means little; so are images with much less or "
        "more contrast, sharpness or colour than all in training.",
        examples="""
            shoal predict out/photos-fit new-photos
            shoal predict out/photos-fit new-photos --csv -q > classes.csv
            shoal predict out/patients-fit new.csv --json
            shoal predict out/photos-fit new-photos --adapt
        """,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a fit or a run")
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILES",
        help="image files or folders of images; for a model of a table, .csv, .tsv or .parquet "
        "files or folders of them",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv",
        action="store_true",
        help="print CSV with the probability of every class; a name that a spreadsheet would take "
        "for a formula, such as =1, gets an apostrophe before it",
    )
    form.add_argument(
        "--json", action="store_true", help="print the same as JSON, one object on each line"
    )
    parser.add_argument(
        "--adapt",
        action="store_true",
        help="adapt the model to all these inputs together, without labels; they should come from "
        "one place. Refused if no adaptation helped on the domains that 'shoal fit' left out",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="your own algorithm (path/to/file.py:Class), if the model was trained with one",
    )
    add_device(parser)
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="the predictions printed so far are complete")


def _run(options: argparse.Namespace) -> int:
    require("safetensors")
    from ..fitting.predictor import load
    from .methods import with_settings

    method = with_settings(options.algorithm)[0] if options.algorithm else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = load(options.model, device(options.device), method)
        predictions = model.adapted if options.adapt else model.predictions
        every = predictions(options.files)  # before anything is printed, because it can be refused
    for warning in caught:
        note(str(warning.message))
    for folder in filter(Path.is_dir, options.files):
        _print_skipped(folder, model.takes_rows)
    failed, unusual, unseen = 0, 0, Counter[str]()
    show = _csv_writer(model.classes) if options.csv else _print_json if options.json else _print
    for found in every:
        unseen.update(found.unseen)
        if found.error is not None:
            failed += 1
            if failed <= NAMED:
                report_error(found.error)
        if found.unusual:
            unusual += 1
            if unusual <= NAMED:
                note(_caution(found))
        show(found)
    kind = "rows" if model.takes_rows else "images"
    if failed > NAMED:
        note(f"{failed:,} {kind} in all cannot be classified; --csv and --json say why for each")
    if unusual > NAMED:
        note(f"{unusual:,} {kind} are unlike all in training; --csv and --json mark them")
    report_unseen(unseen)
    return 1 if failed else 0


def _caution(found: Any) -> str:
    return f"{found.source} is unlike all in training: {'; '.join(found.unusual)}"


def _print(found: Any) -> None:
    if found.probability is not None:
        print_lines(f"{found.source}: {found.label} ({100 * found.probability:.1f} %)")


def _print_json(found: Any) -> None:
    shown = {name: value for name, value in asdict(found).items() if name not in OBSERVED}
    print_json(shown)


def _csv_writer(classes: Sequence[str]) -> Callable[[Any], None]:
    """Print the head of a CSV file, and return a function that prints a prediction."""
    write = csv_printer()
    write(["source", "class", "probability", *classes, "error", "unusual"])

    def show(found: Any) -> None:
        values = [found.probability, *(found.probabilities.get(name) for name in classes)]
        texts = ["" if value is None else f"{value:.6f}" for value in values]
        last = found.error, "; ".join(found.unusual)
        write([found.source, found.label, *texts, *last])

    return show


def _print_skipped(folder: Path, rows: bool) -> None:
    """Print how many files of a folder are skipped because of their suffix."""
    from ..fitting.inputs import files_in

    others = files_in(folder, rows)[1]
    if others:
        files = "1 file" if others == 1 else f"{others:,} files"
        suffix = "not .csv, .tsv or .parquet" if rows else "without the suffix of an image"
        note(f"skipped {files} in {folder}, {suffix}")
