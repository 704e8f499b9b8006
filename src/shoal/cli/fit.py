"""``shoal fit``: from a user's data to a model for a domain that it never saw."""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from .fit_tables import show_material, show_verdict
from .loading import add_cache_folder
from .options import add_settings, device, name_domains, positive, settings
from .progress import fit_progress
from .terminal import format_duration, parse_duration

TRIALS = 3


BACKBONE = "efficientnet-lite0"


def add_fit_options(parser: Any) -> None:
    """Add the data and all that can be chosen."""
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of domain/class/file images, a .csv, .tsv or .json manifest of images, or a "
        "table (.csv, .tsv, .parquet) with a column of domains",
    )
    _add_what(parser.add_argument_group("what is tried"))
    _add_how(parser.add_argument_group("how"))
    _add_reading(parser.add_argument_group("how the data is read"))


def _add_what(group: Any) -> None:
    group.add_argument(
        "--algorithms",
        nargs="+",
        default=[],
        metavar="NAME",
        help="more methods, beside erm and fishr; see 'shoal list algorithms'",
    )
    group.add_argument(
        "--time",
        type=parse_duration,
        metavar="T",
        help="for all of it: 90s, 10min, 2h; a bare number is minutes (default: 10min, where no "
        "--runs are given)",
    )
    group.add_argument("--runs", type=positive, metavar="N", help="to estimate with, at most")
    group.add_argument(
        "--trials",
        type=positive,
        default=TRIALS,
        metavar="N",
        help="splits of the data, at most (default: %(default)s)",
    )
    add_settings(group, "hyperparameters, for the methods that have them; see 'shoal hparams'")


def _add_how(group: Any) -> None:
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write (default: out/NAME-fit)"
    )
    group.add_argument(
        "--backbone",
        default=BACKBONE,
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
        "--steps",
        type=positive,
        metavar="N",
        help="updates of each run (default: 600 of a head, 200 to 1000 of an MLP by the rows, and "
        "of a whole network 300 to 5000, as the time allows)",
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


def with_length(
    options: argparse.Namespace,
    setup: Any,
    world: Any,
    out: Path,
    seconds: float | None,
    note: Callable[[str], object],
) -> Any:
    """Return the setup with as many updates as there is time for, where that is left open.

    Where the time is too short for even the fewest of them, that is told with what to do. Heads and
    MLPs take seconds anyway; several processes would have to agree.
    """
    from ..distributed import processes
    from ..fitting.lengths import length_within
    from ..fitting.setup import saved_setup

    chosen = options.steps is not None or saved_setup(out) is not None
    large = setup.kind == "images" and not setup.frozen
    if seconds is None or chosen or not large or processes() > 1:
        return setup
    note("timing a few updates, to see how long runs can be")
    steps, least = length_within(seconds, setup, world)
    if least > seconds:
        note(
            f"the time is too short: two domains left out for each method and the model itself "
            f"take about {format_duration(least)} even with {steps:,} updates a run, and "
            f"{format_duration(max(seconds, 0))} are left; it goes on all the same. What helps: a "
            "longer --time, --train head, or fewer --steps"
        )
    return replace(setup, steps=steps)


def check_kind(options: argparse.Namespace) -> None:
    """Raise where an option is for the other kind of data, and would do nothing."""
    from ..fitting.inspection import is_table

    columns = {
        "--class-column": options.class_column != "class",
        "--domain-column": options.domain_column != "domain",
        "--leave-out": bool(options.leave_out),
    }
    images = {
        "--layout": options.layout is not None,
        "--train": options.train != "auto",
        "--backbone": options.backbone != BACKBONE,
    }
    if options.data.is_dir():
        given, other, what = columns, "a table", "a folder of images"
    elif not options.data.is_file():
        return  # which is told when it is read
    elif is_table(options.data):
        given, other, what = images, "images", "a table"
    else:
        given, other, what = columns, "a table", "a manifest of images"
    for name, is_given in given.items():
        if is_given:
            hint = "; to do without a domain, take it out of there" if name == "--leave-out" else ""
            raise ValueError(f"{name} is for {other}, and {options.data} is {what}{hint}")


def check_backbone(options: argparse.Namespace) -> None:
    """Raise where images are to be read and there is no such network.

    Before they are, because that takes long; what is not installed would fail every run.
    """
    from ..fitting.frozen_features import SHAPE
    from ..fitting.inspection import is_table
    from ..networks.registry import backbone_name, check_network

    if not is_table(options.data):
        check_network(SHAPE, backbone_name(options.backbone), "imagenet")


def tell(
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
        print(
            f"All weights of {setup.backbone} are trained, {setup.steps:,} updates a run (--steps "
            "for more or fewer)."
        )
    domains = len(material.dataset.names)
    whole = methods * domains
    most = min(whole * options.trials, options.runs or 10**9)
    if most < whole:
        print(f"Up to {most} runs leave {most // methods} of {domains} domains out ({whole} all).")
    elif seconds:
        print(
            f"Up to {most} runs leave each domain out in turn, as many as "
            f"{format_duration(seconds)} allow and at least two domains."
        )
    else:
        print(f"Up to {most} runs leave each domain out in turn.")


# Always compared: what is to be beaten, and what is proposed.
ALWAYS = ("erm", "fishr")
TIME = 600.0


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "fit",
        help="your own data: estimate, choose and train a model for a domain it never saw",
        description="Inspects the data, leaves each domain out in turn to estimate how methods do "
        "on one they never saw, says which to deploy, trains it on all domains and writes a folder "
        "with the model, its card, an ONNX file and a report page. The same command goes on after "
        "any interruption. Under torchrun, several processes share the batches: torchrun "
        "--nproc-per-node 2 -m shoal fit …",
    )
    name_domains(parser)
    add_fit_options(parser)
    parser.set_defaults(run=_run, after_interrupt="the same command goes on from here")


def _run(options: argparse.Namespace) -> int:
    from ..sweeps.worker import ending_on_sigterm
    from .torchrun import joined

    with joined(device(options.device)) as on, ending_on_sigterm():
        _fit(options, on)
    return 0


def _fit(options: argparse.Namespace, on: Any) -> None:
    from ..datasets.cache import cache_folder
    from ..distributed import first_rank_first, rank
    from ..fitting.budget import Budget
    from ..fitting.fit import fit
    from ..fitting.inspection import inspect_data
    from ..fitting.leave_one_out import FitWatcher, FitWorkspace
    from ..fitting.setup import (
        INSPECTION,
        check_folder,
        check_settings,
        choose_setup,
        default_folder,
    )
    from ..runs.machine import Machine

    seconds = options.time or (None if options.runs else TIME)
    budget, begin = Budget(seconds, options.runs), time.monotonic()
    methods = _methods(options)
    check_settings(settings(options.set), methods)
    out = options.out or default_folder(options.data)
    first = rank() == 0
    with fit_progress() if first else nullcontext() as progress:
        with first_rank_first():
            if first:
                check_folder(out, options.data)
            check_kind(options)
            check_backbone(options)
            material = inspect_data(
                options.data,
                options.layout,
                options.class_column,
                options.domain_column,
                options.leave_out,
                (lambda *at: progress.amount("reading", *at)) if progress else None,
                out / INSPECTION,
            )
        if first:
            show_material(material)
        machine = Machine(on, "graph" if on.type == "cuda" else "eager")
        left = None if seconds is None else seconds - (time.monotonic() - begin)
        setup = choose_setup(
            material,
            out,
            on,
            train=options.train,
            backbone=options.backbone,
            steps=options.steps,
            settings=settings(options.set),
        )
        world = FitWorkspace(methods, material.dataset, None, machine)
        watcher = progress or FitWatcher()
        setup = with_length(options, setup, world, out, left, watcher.note)
        if first:
            tell(options, setup, on, material, len(methods), seconds)
        fitted = fit(
            material,
            setup,
            methods,
            out,
            machine,
            cache_folder(material.dataset, options.cache),
            budget,
            options.trials,
            watcher,
        )
    if fitted is not None:
        show_verdict(fitted, out, time.monotonic() - begin)


def _methods(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is compared, by the names that runs have."""
    from ..fitting.budget import LEAST
    from .methods import name_of, with_settings

    asked = dict.fromkeys([*ALWAYS, *options.algorithms])
    found = {name_of(one, with_settings(one)[0]): with_settings(one) for one in asked}
    least = LEAST * len(found)
    if options.runs is not None and options.runs < least:
        raise ValueError(
            f"--runs must be {least} or more, to leave two domains out for each of "
            f"{', '.join(found)}, got {options.runs}"
        )
    return found
