"""``shoal diagnose``: how far a model's domains are apart, in risk, variance and curvature."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from .arguments import device, name_domains, positive, whole
from .loading import add_places, cache_of
from .readable import add_columns, readable


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "diagnose",
        help="compare the domains of a model: risks, gradient variances, Hessians, NTK",
        description="Risks, gradient variances, Fisher and Hessian diagonals of every domain, "
        "their gaps, the inconsistency of every pair, and the top of the spectra.",
    )
    name_domains(parser)
    parser.add_argument("model", type=Path, metavar="RUN|MODEL", help="of a run, or its model file")
    parser.add_argument(
        "dataset",
        nargs="?",
        metavar="DATA",
        help="a name of 'shoal data list', a folder of domain/class/file, or a manifest; a table "
        "for a model of one (default: the run's, where it has a name)",
    )
    add_places(parser)
    add_columns(parser)
    parser.add_argument(
        "--trial", type=whole, metavar="T", help="of data that is drawn (default: the run's)"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="your own method, where it is of one")
    parser.add_argument(
        "--domain", nargs="+", metavar="DOMAIN", help="only these (default: all domains)"
    )
    parser.add_argument(
        "--images", type=positive, metavar="N", help="of each domain (default: all)"
    )
    parser.add_argument(
        "--parameters",
        default="head",
        metavar="WHICH",
        help="head (default), all, or names and prefixes of weights with commas",
    )
    parser.add_argument(
        "--hessian",
        choices=("auto", "gauss-newton", "func", "backpack"),
        default="auto",
        help="how, beyond the head (default: exact, or an error where that takes too long)",
    )
    parser.add_argument(
        "--epsilon", type=float, default=0.1, help="of the inconsistency (default: %(default)s)"
    )
    parser.add_argument(
        "--floor",
        type=float,
        default=1e-3,
        help="of curvatures in it, a share of the largest (default: %(default)s)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write figures, PNG and PDF")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from ..own import with_settings
    from ..runs.diagnosis import Question, diagnose
    from ..runs.model import load
    from ..storage import write_json
    from .diagnosis_tables import show

    if options.figures:
        from ..report.diagnosis import check_drawing

        check_drawing()
    on = device(options.device)
    method = with_settings(options.algorithm)[0] if options.algorithm else None
    model = load(options.model, on, method)
    options.trial = model.run.trial if options.trial is None else options.trial
    _name_data(options, model.run)
    dataset = readable(options, model.card)
    question = Question(
        options.parameters, options.epsilon, options.floor, options.images, options.hessian
    )
    cache = cache_of(dataset, options)
    found = diagnose(model, dataset, cache, options.domain or dataset.names, question)
    show(found, f"{model.run.algorithm}: {options.model} on {dataset.name}")
    if options.json:
        write_json(options.json, found)
        print(f"Everything: {options.json}")
    if options.figures:
        from ..report.diagnosis import draw

        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always", UserWarning)
            written = draw(found, options.figures)
        for note in noted:
            print(f"shoal: {note.message}", file=sys.stderr)
        for path in written:
            print(f"Figure: {path}")
    return 0


def _name_data(options: argparse.Namespace, run: Any) -> None:
    """Take the run's data where none is named; raise where it has no name."""
    from ..datasets import DATASETS

    if options.dataset is None:
        if run.dataset not in DATASETS:
            raise ValueError(
                f"the run is of {run.dataset}, a data set of your own: name its folder, manifest "
                "or table after the run"
            )
        options.dataset = run.dataset
