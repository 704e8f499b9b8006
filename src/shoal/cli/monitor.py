"""``shoal monitor``: what to expect of a model on data from a new place, before it is labelled."""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .loading import report_unseen
from .options import add_device, device

if TYPE_CHECKING:
    from ..fitting.predictor import Prediction, Predictor
    from ..monitoring.place import PlaceReport

# Classes that are listed in a line; the others are counted.
LISTED = 8


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "monitor",
        help="estimate how well a model does at a new place, without labels",
        description="Estimates how often the model is right on new data from one place, and says "
        "which inputs a person should look at. How far off such an estimate is was measured by "
        "'shoal fit', on the domains that it left out. If the labels are known, the estimate is "
        "compared with them: a column of a table, or folders of images with the names of classes.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the folder of a fit")
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILES",
        help="data of one place: image files or folders of images; for a model of a table, .csv, "
        ".tsv or .parquet files or folders of them",
    )
    parser.add_argument(
        "--class-column", metavar="NAME", help="the column of a table with the true classes"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv",
        action="store_true",
        help="print every input with its class and all that it may have, as CSV",
    )
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="your own algorithm (path/to/file.py:Class), if the model was trained with one",
    )
    add_device(parser)
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..fitting.predictor import load
    from .methods import with_settings

    method = with_settings(options.algorithm)[0] if options.algorithm else None
    model = load(options.model, device(options.device), method)
    if options.class_column is not None and not model.takes_rows:
        raise ValueError(
            "--class-column is for tables; images are labelled by folders with the names of classes"
        )
    files = _files(model, options.files)
    predictions = list(model.predictions(files))
    labels = _labels(model, files, predictions, options.class_column)
    good = [one for one in predictions if one.error is None]
    for one in predictions:
        if one.error is not None:
            print(f"shoal: {one.error}", file=sys.stderr)
    if labels is not None:
        pairs = zip(labels, predictions, strict=True)
        labels = [label for label, one in pairs if one.error is None]
    report = model.report_on(good, labels)
    unusual = sum(bool(one.unusual) for one in good)
    if options.json:
        more = {"unsure": report.unsure, "held": report.held, "unusual": unusual}
        print(json.dumps({**asdict(report), **more}))
    elif options.csv:
        _print_csv(good, report)
    else:
        _print(model, report)
        if unusual:
            has = "1 row has" if unusual == 1 else f"{unusual:,} rows have"
            print(f"{has} numbers far from all in training; 'shoal predict' names them.")
    report_unseen(Counter(name for one in good for name in one.unseen))
    return 1 if len(good) < len(predictions) else 0


def _files(model: "Predictor", given: Sequence[Path]) -> list[Path]:
    """Return the files of all folders; a folder without any is kept, and reading it says why."""
    from ..fitting.inputs import files_in

    found: list[Path] = []
    for path in given:
        found += (files_in(path, model.takes_rows)[0] or [path]) if path.is_dir() else [path]
    return found


def _labels(
    model: "Predictor",
    files: Sequence[Path],
    predictions: Sequence["Prediction"],
    column: str | None,
) -> list[str] | None:
    """Return the true class of every prediction, "" for one with an error; None if not known."""
    if model.takes_rows:
        if column is None:
            return None
        found = [label for path in files for label in _column(path, column)]
        if len(found) != len(predictions):  # a whole file was refused
            raise ValueError(next(one.error for one in predictions if one.error) or "")
        return found
    folders = [path.parent.name for path in files]
    return folders if set(folders) <= set(model.classes) else None


def _column(path: Path, column: str) -> list[str]:
    from ..choices import choose
    from ..datasets.domain_columns import texts_of
    from ..datasets.tables import read_table

    unread: dict[int, str] = {}
    values = read_table(path, unread)
    found = values[choose(f"column of {path}", column, values)]
    readable = {column: [one for row, one in enumerate(found) if row not in unread]}
    texts = iter(texts_of(readable, column, path))
    return ["" if row in unread else next(texts) for row in range(len(found))]


def _print_csv(predictions: Sequence["Prediction"], report: "PlaceReport") -> None:
    write = csv.writer(sys.stdout)
    write.writerow(["source", "class", "probability", "likely"])
    for one, likely in zip(predictions, report.likely, strict=True):
        write.writerow([one.source, one.label, f"{one.probability:.6f}", "; ".join(likely)])


def _print(model: "Predictor", report: "PlaceReport") -> None:
    kind = "rows" if model.takes_rows else "images"
    print(
        f"Expected accuracy on these {report.inputs:,} {kind}: {_percent(report.expected)}", end=""
    )
    if report.interval is None:
        print(". Two domains are too few to say how far off that may be.")
    else:
        low, high = map(_percent, report.interval)
        print(f", and between {low} and {high} with a probability of 90 %.")
    least, most = map(_percent, report.usual)
    print(
        f"On the domains that were left out, accuracies were {least} to {most}, and such estimates "
        f"were off by {100 * report.error:.1f} points on average."
    )
    if report.measured is not None:
        held = {True: ", as expected", False: ", which is not what was expected", None: ""}
        print(f"Measured accuracy, by the labels: {_percent(report.measured)}{held[report.held]}.")
    shares = sorted(report.shares.items(), key=lambda one: -one[1])
    usual = model.card["monitor"]["shares"]
    listed = [f"{name} {_percent(share)} ({_percent(usual[name])})" for name, share in shares]
    more = f", and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    print(f"Predicted classes (share in training): {', '.join(listed[:LISTED])}{more}.")
    print(
        f"{report.unsure:,} {kind} may have more than one class; a person should look at them. "
        f"--csv lists the likely classes of all {kind}. {_trust(model, report)}"
    )


def _trust(model: "Predictor", report: "PlaceReport") -> str:
    lists = f"At a new place, {_percent(report.level)} of these lists should hold the true class"
    if report.trust >= report.level:
        return f"{lists}."
    few = model.card["monitor"]["sets"]["domains"]
    return (
        f"{lists}, with a probability of {_percent(report.trust)}: {few} domains guarantee nothing."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
