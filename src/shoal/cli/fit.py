"""``shoal fit``: from a user's data to a model for a domain that it never saw."""

import argparse
import time
from pathlib import Path
from typing import Any

from .arguments import device, name_domains, positive, settings
from .durations import duration, shown
from .fit_progress import fit_progress
from .fit_results import show_material, show_verdict
from .loading import add_cache_folder

# Always compared: what is to be beaten, and what is proposed.
ALWAYS = ("erm", "fishr")
TIME, TRIALS = 600.0, 3


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fit",
        help="your own data: estimate, choose and train a model for a domain it never saw",
        description="Inspects the data, leaves each domain out in turn to estimate how methods do "
        "on one they never saw, says which to deploy, trains it on all domains and writes a folder "
        "with the model, its card, an ONNX file and a report page. The same command goes on after "
        "any interruption.",
    )
    name_domains(parser)
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of domain/class/file images, a .csv or .json manifest of images, or a table "
        "(.csv, .parquet) with a column of domains",
    )
    what = parser.add_argument_group("what is tried")
    what.add_argument(
        "--algorithms",
        nargs="+",
        default=[],
        metavar="NAME",
        help="more methods, beside erm and fishr; see 'shoal list algorithms'",
    )
    what.add_argument(
        "--time",
        type=duration,
        metavar="T",
        help="for all of it: 90s, 10min, 2h (default: 10min, where no --runs are given)",
    )
    what.add_argument("--runs", type=positive, metavar="N", help="at most, to estimate with")
    what.add_argument(
        "--trials",
        type=positive,
        default=TRIALS,
        metavar="N",
        help="splits of the data, at most (default: %(default)s)",
    )
    what.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="as in train"
    )
    _add_how(parser.add_argument_group("how"))
    _add_reading(parser.add_argument_group("how the data is read"))
    parser.set_defaults(run=_run, after_interrupt="the same command goes on from here")


def _add_how(group: Any) -> None:
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write (default: out/NAME-fit)"
    )
    group.add_argument(
        "--backbone",
        default="efficientnet-lite0",
        metavar="NAME",
        help="the network for images: also any of torchvision's or timm's (default: %(default)s)",
    )
    group.add_argument(
        "--train",
        choices=("auto", "all", "head"),
        default="auto",
        help="all weights, or only a head on the network's features as they are, which a CPU can "
        "do in minutes (default: all on a GPU, head without)",
    )
    group.add_argument(
        "--steps", type=positive, metavar="N", help="updates of each run (default: 600 to 1000)"
    )
    group.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    add_cache_folder(group)


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--layout",
        choices=("domain/class", "class/domain"),
        help="of the folders (default: domain/class)",
    )
    group.add_argument(
        "--class-column", default="class", metavar="NAME", help="of a table (default: class)"
    )
    group.add_argument(
        "--domain-column", default="domain", metavar="NAME", help="of a table (default: domain)"
    )
    group.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="of a table, that a model must not see",
    )


def _run(options: argparse.Namespace) -> int:
    from ..estimators.budget import Budget
    from ..estimators.fitting import Told, fit
    from ..estimators.inspection import material_of
    from ..estimators.setup import check_settings
    from ..own import name_of, with_settings
    from ..protocol.hand import ending_on_sigterm
    from ..protocol.machine import Machine
    from .loading import cache_folder

    seconds = options.time or (None if options.runs else TIME)
    budget, begin = Budget(seconds, options.runs), time.monotonic()
    on = device(options.device)
    asked = dict.fromkeys([*ALWAYS, *options.algorithms])
    methods = {name_of(one, with_settings(one)[0]): with_settings(one) for one in asked}
    check_settings(settings(options.set), methods)
    out = options.out or Path("out") / f"{options.data.resolve().stem}-fit"
    with ending_on_sigterm(), fit_progress() as progress:
        material = material_of(
            options.data,
            options.layout,
            options.class_column,
            options.domain_column,
            options.leave_out,
            lambda *at: progress.amount("reading", *at),
            out / "inspection.json",
        )
        show_material(material)
        setup = _setup(options, material, on, out)
        _tell(options, setup, on, material, len(methods), seconds)
        fitted = fit(
            material,
            setup,
            methods,
            out,
            Machine(on, "graph" if on.type == "cuda" else "eager"),
            cache_folder(material.dataset, options.cache),
            budget,
            options.trials,
            Told(progress.amount, progress.run, progress.note),
        )
    show_verdict(fitted, out, time.monotonic() - begin)
    return 0


def _setup(options: argparse.Namespace, material: Any, on: Any, out: Path) -> Any:
    """Return how the model is fitted; what was chosen in ``out`` before stays."""
    from ..estimators.frozen import pretrained
    from ..estimators.setup import STEPS, Setup, kept_setup
    from ..networks.naming import backbone_name

    before = kept_setup(out) or {}
    kind = "images" if material.table is None else "table"
    gpu = on.type == "cuda"
    trained = options.train
    if trained == "auto":
        trained = before.get("trained", "all" if gpu or kind == "table" else "head")
    usual = STEPS["table" if kind == "table" else trained]
    backbone = None
    if kind == "images":
        backbone = backbone_name(options.backbone)
        # Now, because what is not installed would be a failure of every run.
        pretrained(backbone, len(material.dataset.classes), on)
    return Setup(
        material.dataset.name,
        material.dataset.fingerprint,
        kind,
        trained,
        backbone,
        options.steps or before.get("steps", usual),
        before.get("precision", "bf16" if gpu and trained == "all" else "float32"),
        settings(options.set),
    )


def _tell(
    options: argparse.Namespace,
    setup: Any,
    on: Any,
    material: Any,
    methods: int,
    seconds: float | None,
) -> None:
    """Say what will be done, and why."""
    if setup.kind == "table":
        print(f"An MLP of {setup.steps:,} updates in every run.")
    elif setup.frozen:
        why = "There is no GPU, so " if options.train == "auto" and on.type == "cpu" else ""
        print(
            f"{why}{'t' if why else 'T'}he features of {setup.backbone} stay as they are, and a "
            "head is trained on them (--train all for the whole network, which takes hours on a "
            "CPU)."
        )
    else:
        print(f"All weights of {setup.backbone} are trained, {setup.steps:,} updates a run.")
    most = methods * len(material.dataset.names) * options.trials
    limits = [f"{options.runs} runs"] if options.runs else []
    limits += [shown(seconds)] if seconds else []
    print(f"Up to {most} runs leave each domain out in turn, within {' and '.join(limits)}.")
