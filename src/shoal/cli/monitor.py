"""``shoal monitor``: what to expect of a model on data from a new place, before it is labelled."""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.screen import csv_printer, print_json, print_lines
from .extras import require
from .loading import report_unseen
from .notes import add_quiet, note, report_error
from .options import add_device, device

if TYPE_CHECKING:
    from ..fitting.predictor import Prediction, Predictor
    from ..monitoring.place import PlaceReport


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "monitor",
        help="estimate how well a model does at a new place, without labels",
        description="Estimates how often the model is right on new data from one place, says how "
        "far the data are from all that it has seen, and which inputs a person should look at. How "
        "far off such an estimate is was measured by 'shoal fit', on the domains that it left out. "
        "If the labels are known, the estimate is compared with them: a column of a table, or "
        "folders of images with the names of classes.",
        examples="""
            shoal monitor out/photos-fit new-photos
            shoal monitor out/photos-fit new-photos --page new-place.html
            shoal monitor out/patients-fit new.csv --class-column outcome --json
        """,
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
        "--page",
        type=Path,
        metavar="FILE",
        help="write the report as a page, too, with the inputs that a person should look at",
    )
    parser.add_argument(
        "--abstain",
        action="store_true",
        help="with --csv or --json: give no class to inputs that may have more than one",
    )
    parser.add_argument(
        "--correct-shares",
        action="store_true",
        help="with --csv or --json: probabilities and classes as they are if only the shares of "
        "the classes differ from those in training. On PACS, Office31 and gas drift this made "
        "predictions worse",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="your own algorithm (path/to/file.py:Class), if the model was trained with one",
    )
    add_device(parser)
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    require("safetensors", *(["jinja2"] if options.page else []))
    from ..fitting.adaptation_record import ENTRY as ADAPTATION
    from ..fitting.place_content import place_content
    from ..fitting.predictor import load
    from ..monitoring.sentences import sentences
    from ..report.monitor_page import monitor_page
    from ..storage import write_text
    from .methods import with_settings

    for name in ("abstain", "correct_shares"):
        if getattr(options, name) and not (options.csv or options.json):
            option = name.replace("_", "-")
            raise ValueError(f"--{option} changes the classes that --csv or --json print; add one")
    method = with_settings(options.algorithm)[0] if options.algorithm else None
    model = load(options.model, device(options.device), method)
    if options.class_column is not None and not model.takes_rows:
        raise ValueError(
            "--class-column is for tables; images are labelled by folders with the names of classes"
        )
    if options.class_column is not None and model.encoding is not None:
        # New data may call it otherwise than the training table.
        ignored = model.encoding.ignored
        also = None if ignored is None else (*ignored, options.class_column)
        model.encoding = replace(model.encoding, ignored=also)
    files = _files(model, options.files)
    predictions = list(model.observations(files))
    labels = _labels(model, files, predictions, options.class_column)
    good = [one for one in predictions if one.error is None]
    for one in predictions:
        if one.error is not None:
            report_error(one.error)
    if labels is not None:
        pairs = zip(labels, predictions, strict=True)
        labels = [label for label, one in pairs if one.error is None]
    report = model.report_on(good, labels)
    unusual = sum(bool(one.unusual) for one in good)
    kind = "rows" if model.takes_rows else "images"
    said = sentences(report, kind, model.reference.shares)
    if unusual:
        count = f"1 {kind[:-1]} is" if unusual == 1 else f"{unusual:,} {kind} are"
        said.append(f"{count} unlike all in training; 'shoal predict' says why.")
    if model.card.get(ADAPTATION) and (offered := model.adaptation.offered):
        gain = model.adaptation.gain(offered)
        said.append(f"'shoal predict --adapt' can adapt to these {kind} ({offered}): {gain}.")
    if options.page is not None:
        content = place_content(model, good, report, said, _title(options.files))
        write_text(options.page, monitor_page(content))
    classes = _classes(model, good, report, options)
    if options.json:
        print_json({**report.as_json(), "unusual": unusual, **_by_input(good, classes)})
    elif options.csv:
        _print_csv(good, classes, report)
    else:
        for sentence in said:
            print_lines(sentence)
        if options.page is not None:
            print_lines(f"Wrote {options.page}.")
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
    folders = [path.absolute().parent.name for path in files]
    others = sorted(set(folders) - set(model.classes))
    if others and len(others) < len(set(folders)):
        note(
            f"there is no class {others[0]!r}, so the folders are not taken for labels; the "
            f"classes are {', '.join(model.classes)}"
        )
    return None if others else folders


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


def _title(files: Sequence[Path]) -> str:
    """Return a name for the place: the file or folder, or how many there are."""
    return files[0].resolve().name if len(files) == 1 else f"{len(files):,} files and folders"


def _classes(
    model: "Predictor",
    predictions: Sequence["Prediction"],
    report: "PlaceReport",
    options: argparse.Namespace,
) -> list[tuple[str | None, float]]:
    """Return the class of every input, None where the model abstains, and its probability."""
    if options.correct_shares:
        best = report.corrected.argmax(1)
        names = [model.classes[k] for k in best]
        found = list(zip(names, report.corrected.max(1).tolist(), strict=True))
    else:
        found = [(one.label or "", one.probability or 0.0) for one in predictions]
    unsure = [options.abstain and len(one) > 1 for one in report.likely]
    return [
        (None if skipped else name, probability)
        for (name, probability), skipped in zip(found, unsure, strict=True)
    ]


def _by_input(
    predictions: Sequence["Prediction"], classes: Sequence[tuple[str | None, float]]
) -> dict[str, Any]:
    return {
        "sources": [one.source for one in predictions],
        "classes": [name for name, _ in classes],
        "probabilities": [probability for _, probability in classes],
    }


def _print_csv(
    predictions: Sequence["Prediction"],
    classes: Sequence[tuple[str | None, float]],
    report: "PlaceReport",
) -> None:
    write = csv_printer()
    write(["source", "class", "probability", "likely", "distance"])
    far = [None] * len(predictions) if report.drift is None else report.drift.distances.tolist()
    for one, (name, probability), likely, distance in zip(
        predictions, classes, report.likely, far, strict=True
    ):
        apart = "" if distance is None else f"{math.sqrt(distance):.2f}"
        write([one.source, name or "", f"{probability:.6f}", "; ".join(likely), apart])
