"""``shoal predict``: classify new files with a trained model."""

import argparse
import csv
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from .loading import report_unseen
from .options import add_device, device


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "predict",
        help="classify new images or rows with a trained model",
        description="Prints the class and its probability for every image or row. Unreadable "
        "inputs are reported on stderr and skipped; the exit status is then 1.",
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
    parser.add_argument(
        "--csv", action="store_true", help="print CSV with the probability of every class"
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="your own algorithm (path/to/file.py:Class), if the model was trained with one",
    )
    add_device(parser)
    parser.set_defaults(run=_run, after_interrupt="the predictions printed so far are complete")


def _run(options: argparse.Namespace) -> int:
    from ..fitting.predictor import load
    from .methods import with_settings

    method = with_settings(options.algorithm)[0] if options.algorithm else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load(options.model, device(options.device), method)
    for warning in caught:
        print(f"shoal: {warning.message}", file=sys.stderr)
    for folder in filter(Path.is_dir, options.files):
        _print_skipped(folder, model.takes_rows)
    failed, unseen, write = 0, Counter[str](), csv.writer(sys.stdout)
    if options.csv:
        write.writerow(["source", "class", "probability", *model.classes, "error"])
    for found in model.predictions(options.files):
        unseen.update(found.unseen)
        if found.error is not None:
            failed += 1
            print(f"shoal: {found.error}", file=sys.stderr)
        if options.csv:
            values = [
                f"{found.probabilities[name]:.6f}" for name in model.classes if not found.error
            ]
            values = values or [""] * len(model.classes)
            best = "" if found.probability is None else f"{found.probability:.6f}"
            write.writerow([found.source, found.label, best, *values, found.error])
        elif found.probability is not None:
            print(f"{found.source}: {found.label} ({100 * found.probability:.1f} %)")
    report_unseen(unseen)
    return 1 if failed else 0


def _print_skipped(folder: Path, rows: bool) -> None:
    """Print how many files of a folder are skipped because of their suffix."""
    from ..fitting.inputs import files_in

    others = files_in(folder, rows)[1]
    if others:
        files = "1 file" if others == 1 else f"{others:,} files"
        suffix = "not .csv, .tsv or .parquet" if rows else "without the suffix of an image"
        print(f"shoal: skipped {files} in {folder}, {suffix}", file=sys.stderr)
