"""``shoal fit``: from a user's data to a model for a domain that it never saw."""

import argparse
import time
from contextlib import nullcontext
from typing import Any

from .arguments import device, name_domains, settings
from .fit_options import add_fit_options
from .fit_progress import fit_progress
from .fit_results import show_material, show_verdict
from .fit_setup import check_backbone, check_kind, setup_of, tell, with_length

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
    from .processes import joined

    with joined(device(options.device)) as on, ending_on_sigterm():
        _fit(options, on)
    return 0


def _fit(options: argparse.Namespace, on: Any) -> None:
    from ..datasets.cache import cache_folder
    from ..distributed import in_turn, rank
    from ..fitting.budget import Budget
    from ..fitting.fit import Told, fit
    from ..fitting.inspection import material_of
    from ..fitting.leave_one_out import Surroundings
    from ..fitting.setup import INSPECTION, check_place, check_settings, folder_for
    from ..runs.machine import Machine

    seconds = options.time or (None if options.runs else TIME)
    budget, begin = Budget(seconds, options.runs), time.monotonic()
    methods = _methods(options)
    check_settings(settings(options.set), methods)
    out = options.out or folder_for(options.data)
    first = rank() == 0
    with fit_progress() if first else nullcontext() as progress:
        with in_turn():
            if first:
                check_place(out, options.data)
            check_kind(options)
            check_backbone(options, on)
            material = material_of(
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
        setup = setup_of(options, material, on, out)
        world, told = Surroundings(methods, material.dataset, None, machine), Told()
        if progress:
            told = Told(progress.amount, progress.run, progress.note)
        setup = with_length(options, setup, world, out, left, told.note)
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
            told,
        )
    if fitted is not None:
        show_verdict(fitted, out, time.monotonic() - begin)


def _methods(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is compared, by the names that runs have."""
    from ..fitting.budget import LEAST
    from ..own import name_of, with_settings

    asked = dict.fromkeys([*ALWAYS, *options.algorithms])
    found = {name_of(one, with_settings(one)[0]): with_settings(one) for one in asked}
    least = LEAST * len(found)
    if options.runs is not None and options.runs < least:
        raise ValueError(
            f"--runs must be {least} or more, to leave two domains out for each of "
            f"{', '.join(found)}, got {options.runs}"
        )
    return found
