"""``shoal sweep``: many runs, planned once and trained by any number of workers."""

import argparse
from typing import Any

from ..catalogue import FIT_BACKBONE, TEST_DOMAINS, own_method, title_of
from .engine import add_engine_options, check_engine, run_sweep, workspace_of
from .extras import for_images, for_weights
from .loading import add_places
from .options import (
    add_precision,
    add_search,
    add_settings,
    add_start,
    device,
    positive,
    settings,
)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep",
        help="train many methods, draws, trials and test domains; resumable",
        description="DomainBed's sweep. The same command resumes after any interruption. Several "
        "commands on the same folder, on this or on other machines, share the work.",
        examples="""
            shoal sweep --algorithms erm vrex fishr --datasets colored-mnist --out out/sweep
            shoal sweep --algorithms erm fishr --datasets pacs --data DIR --out out/pacs --workers 4
            shoal sweep --algorithms erm fishr --datasets pacs --data DIR --out out/pacs --plan-only
            shoal sweep --algorithms erm --datasets photos --train head --draws 5 --out out/heads
        """,
    )
    what = parser.add_argument_group("what to train")
    what.add_argument(
        "--algorithms",
        nargs="+",
        type=own_method,
        required=True,
        metavar="NAME",
        help="names from 'shoal list algorithms', or your own classes: package.module:Class or "
        "path/to/file.py:Class",
    )
    what.add_argument(
        "--datasets",
        nargs="+",
        required=True,
        metavar="NAME",
        help="names from 'shoal data list', folders of domain/class/file, manifests, or feature "
        "files of 'shoal data features'",
    )
    add_places(what)
    what.add_argument(
        "--trials",
        type=positive,
        default=3,
        metavar="N",
        help="random splits of the data, each with its own seeds (default: %(default)s)",
    )
    what.add_argument(
        "--draws",
        type=positive,
        default=20,
        metavar="N",
        help="draws of hyperparameters; the first has the defaults (default: %(default)s)",
    )
    what.add_argument(
        "--test-domains",
        choices=TEST_DOMAINS,
        default="singles",
        help="singles: each domain in turn; pairs: also every two domains, which "
        "leave-one-domain-out selection needs (default: %(default)s)",
    )
    add_search(what)
    add_settings(what, "fix hyperparameters in all runs, for example lr=0.01")
    what.add_argument(
        "--steps",
        type=positive,
        default=5001,
        metavar="N",
        help="number of updates of a run (default: %(default)s, as DomainBed)",
    )
    what.add_argument(
        "--record-every",
        type=positive,
        metavar="N",
        help="updates between two evaluations (default: as DomainBed, by data set)",
    )
    what.add_argument(
        "--network",
        metavar="NAME",
        help="network for large images, as in 'shoal train' (default: resnet50)",
    )
    what.add_argument(
        "--weights",
        choices=("imagenet", "none"),
        help="initial weights of a large network (default: imagenet, if it has such weights)",
    )
    what.add_argument(
        "--train",
        choices=("all", "head"),
        default="all",
        help="head: train only linear heads, on features of the network with ImageNet weights "
        f"(default network: {FIT_BACKBONE}) that are computed once; no published number is "
        "comparable (default: %(default)s weights)",
    )
    add_start(what)
    add_precision(what)
    add_engine_options(parser)
    parser.set_defaults(run=_run, after_interrupt="the same command resumes from here")


def _run(options: argparse.Namespace) -> int:
    images = dict.fromkeys(name for text in options.datasets for name in for_images(text))
    weights = for_weights(options.network) if images and options.train == "head" else ()
    check_engine(options, *images, *weights)
    from ..sweeps.plan import runs_of

    sweep, workspace = _sweep(options)
    runs = runs_of(sweep, workspace.method, workspace.dataset)
    return run_sweep(options, runs, workspace)


def _sweep(options: argparse.Namespace) -> tuple[Any, Any]:
    from ..fitting.frozen_features import check_frozen
    from ..networks.registry import DRAWN, check_name
    from ..runs.run import Protocol
    from ..sweeps.plan import Sweep
    from .loading import features_with_progress, load_and_report, report_resizing
    from .methods import name_of, with_settings

    if options.network is not None:
        check_name(options.network)
    methods = {name_of(asked, with_settings(asked)[0]): asked for asked in options.algorithms}
    if options.train == "head":
        for name, asked in methods.items():
            check_frozen(title_of(name), with_settings(asked)[0])
    names: dict[str, str] = {}
    for asked in dict.fromkeys(options.datasets):
        dataset = load_and_report(asked, options.data)
        if options.train == "head" and not dataset.in_memory:
            on = device(options.device)
            asked = str(features_with_progress(dataset, options.network, on, options.cache))
            dataset = load_and_report(asked, options.data)
        report_resizing(dataset, options.network)
        name = dataset.name
        if name in names:
            raise ValueError(
                f"{names[name]} and {asked} have the same name, {name!r}, and a sweep knows data "
                "sets by name; rename one of the folders, or use two sweeps"
            )
        names[name] = asked
    drawn = options.weights == "none" or (options.weights is None and options.network in DRAWN)
    weights = None if drawn else "imagenet"
    protocol = Protocol(
        steps=options.steps,
        network=options.network,
        weights=weights,
        precision=options.precision,
        start=options.start,
    )
    sweep = Sweep(
        algorithms=tuple(methods),
        datasets=tuple(names),
        trials=options.trials,
        draws=options.draws,
        test_domains=options.test_domains,
        search=options.search,
        settings=settings(options.set),
        protocol=protocol,
        record_every=options.record_every,
    )
    return sweep, workspace_of(options, methods, names, options.network)
