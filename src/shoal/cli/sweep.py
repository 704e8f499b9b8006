"""``shoal sweep``: many runs, planned once and carried out by whoever is there."""

import argparse
from typing import Any

from ..catalogue import TEST_DOMAINS
from .engine import add_engine_options, check_engine, run_sweep, world_of
from .loading import add_places
from .options import add_precision, add_settings, positive, settings


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep",
        help="train many methods, draws, trials and test domains; goes on where it was stopped",
        description="DomainBed's sweep. The same command goes on after any interruption; several "
        "at once, also on other machines with the same folder, share the work.",
    )
    what = parser.add_argument_group("what is trained")
    what.add_argument("--algorithms", nargs="+", required=True, metavar="NAME")
    what.add_argument(
        "--datasets", nargs="+", required=True, metavar="NAME", help="names, folders or manifests"
    )
    add_places(what)
    what.add_argument("--trials", type=positive, default=3, help="default: %(default)s")
    what.add_argument(
        "--draws",
        type=positive,
        default=20,
        help="of hyperparameters; the first is the defaults (default: %(default)s)",
    )
    what.add_argument(
        "--test-domains",
        choices=TEST_DOMAINS,
        default="singles",
        help="each domain in turn, or also every two, for leave-one-domain-out selection",
    )
    add_settings(what, "as in hparams")
    what.add_argument("--steps", type=positive, default=5001, help="default: %(default)s")
    what.add_argument("--record-every", type=positive, metavar="N")
    what.add_argument("--network", metavar="NAME", help="for large images, as in train")
    what.add_argument(
        "--weights",
        choices=("imagenet", "none"),
        help="what a large network begins with (default: imagenet, where it has such weights)",
    )
    add_precision(what)
    add_engine_options(parser)
    parser.set_defaults(run=_run, after_interrupt="the same command goes on from here")


def _run(options: argparse.Namespace) -> int:
    from ..sweeps.plan import runs_of

    check_engine(options)
    sweep, world = _sweep(options)
    return run_sweep(options, runs_of(sweep, world.method, world.dataset), world)


def _sweep(options: argparse.Namespace) -> tuple[Any, Any]:
    from ..networks.registry import DRAWN, check_name
    from ..runs.run import Protocol
    from ..sweeps.plan import Sweep
    from .loading import load_and_report
    from .methods import name_of, with_settings

    if options.network is not None:
        check_name(options.network)
    methods = {name_of(asked, with_settings(asked)[0]): asked for asked in options.algorithms}
    names: dict[str, str] = {}
    for asked in dict.fromkeys(options.datasets):
        name = load_and_report(asked, options.data).name
        if name in names:
            raise ValueError(
                f"{names[name]} and {asked} have one name, {name!r}, by which runs know their "
                "data; rename one of the folders, or sweep them apart"
            )
        names[name] = asked
    drawn = options.weights == "none" or (options.weights is None and options.network in DRAWN)
    weights = None if drawn else "imagenet"
    protocol = Protocol(
        options.steps, network=options.network, weights=weights, precision=options.precision
    )
    sweep = Sweep(
        tuple(methods),
        tuple(names),
        options.trials,
        options.draws,
        options.test_domains,
        settings(options.set),
        protocol,
        options.record_every,
    )
    return sweep, world_of(options, methods, names)
