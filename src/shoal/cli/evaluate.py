"""``shoal eval``: measure a trained model on any data set."""

import argparse
from pathlib import Path
from typing import Any

from ..report.screen import open_console, print_json
from .extras import for_images, require
from .loading import add_columns, add_data_options, decode_with_progress, load_for_model
from .notes import add_quiet
from .options import add_device, device, name_domains, whole


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "eval",
        help="measure the accuracy of a trained model on a data set",
        description="Prints the accuracy of a model on every domain of a data set; for a model of "
        "a table, of another table. Unreadable images are reported and skipped.",
        examples="""
            shoal eval out/sketch --dataset pacs --data DIR --domain sketch
            shoal eval out/sketch/averages/sma --dataset pacs --data DIR
            shoal eval out/patients-fit --dataset new.csv --json
        """,
    )
    name_domains(parser)
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN",
        help="the folder of a run or a fit, or of an average: RUN/averages/sma",
    )
    add_data_options(parser)
    add_columns(parser)
    parser.add_argument(
        "--trial",
        type=whole,
        metavar="T",
        help="trial of a data set with random content, such as Colored MNIST (default: the run's)",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="your own algorithm (path/to/file.py:Class), if the model was trained with one",
    )
    parser.add_argument(
        "--domain", nargs="+", metavar="DOMAIN", help="domains to measure (default: all)"
    )
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    require("rich", "safetensors", *for_images(options.dataset))

    from ..runs.model import load, measure
    from .methods import with_settings

    on = device(options.device)
    method = with_settings(options.algorithm)[0] if options.algorithm else None
    model = load(options.model, on, method)
    options.trial = model.run.trial if options.trial is None else options.trial
    dataset = load_for_model(options, model.card)
    cache = decode_with_progress(dataset, options.cache)
    found = measure(model, dataset, cache, options.domain or dataset.names)
    if options.json:
        print_json(found, indent=2)
        return 0

    from ..catalogue import title_of
    from .terminal import table

    # A fitted model says what was deployed: a head that was fitted is stored as one of ERM.
    deployed = (model.card.get("estimate") or {}).get("deploy", model.row)
    grid = table(f"{title_of(deployed)}: {options.model} on {dataset.name}", None)
    examples = "images" if len(model.card["shape"]) == 3 else "rows"
    for head in ("Domain", examples, "accuracy %", "calibration error"):
        grid.add_column(head, justify="left" if head == "Domain" else "right")
    trained = model.card["training_domains"] if dataset.name == model.run.dataset else ()
    for domain, values in found.items():
        seen = " (trained on)" if domain in trained else ""
        accuracy, error = 100 * values["accuracy"], values["calibration_error"]
        grid.add_row(f"{domain}{seen}", f"{values['images']:,}", f"{accuracy:.1f}", f"{error:.3f}")
    open_console().print(grid)
    return 0
