"""``shoal predict``: what a fitted model says of new files."""

import argparse
import csv
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from .loading import tell_unseen
from .options import device


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "predict",
        help="classify new images or rows with a fitted model",
        description="Class and probability of every image or row. What cannot be read is told on "
        "stderr and does not stop the rest; the exit status is then 1.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a fit or a run")
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILES",
        help="images, or folders of them; for a model of a table, .csv, .tsv or .parquet files",
    )
    parser.add_argument(
        "--csv", action="store_true", help="print CSV, with the probability of every class"
    )
    parser.add_argument(
        "--algorithm", metavar="NAME", help="your own method, where the model is of one"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.set_defaults(run=_run, after_interrupt="what was printed stands")


def _run(options: argparse.Namespace) -> int:
    from ..fitting.predictor import load
    from .methods import with_settings

    method = with_settings(options.algorithm)[0] if options.algorithm else None
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model = load(options.model, device(options.device), method)
    for note in noted:
        print(f"shoal: {note.message}", file=sys.stderr)
    for folder in filter(Path.is_dir, options.files):
        _tell_of_others(folder, model.takes_rows)
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
    tell_unseen(unseen)
    return 1 if failed else 0


def _tell_of_others(folder: Path, rows: bool) -> None:
    """Say how many files of a folder are not looked at, because they are something else."""
    from ..fitting.inputs import files_in

    others = files_in(folder, rows)[1]
    if others:
        files = "1 file" if others == 1 else f"{others:,} files"
        kind = "no tables (.csv, .tsv, .parquet)" if rows else "no images"
        print(f"shoal: passed over {files} of {folder}, {kind} by suffix", file=sys.stderr)
