"""``shoal sweep``: many runs, planned once and carried out by whoever is there."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from .arguments import add_keep_best, positive, settings, share
from .loading import add_places
from .run_options import add_log
from .status import show_standing, time_left


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
        "--draws", type=positive, default=20, help="hyperparameters; the first are the defaults"
    )
    what.add_argument(
        "--test-domains",
        choices=("singles", "pairs"),
        default="singles",
        help="each domain in turn, or also every two, for leave-one-domain-out selection",
    )
    what.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="as in hparams"
    )
    what.add_argument("--steps", type=positive, default=5001, help="default: %(default)s")
    what.add_argument("--record-every", type=positive, metavar="N")
    what.add_argument("--network", metavar="NAME", help="for large images, as in train")
    what.add_argument("--weights", choices=("imagenet", "none"), default="imagenet")
    what.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    how = parser.add_argument_group("how it is carried out")
    how.add_argument("--out", type=Path, required=True, metavar="DIR")
    how.add_argument("--engine", choices=("local", "ray"), default="local")
    how.add_argument("--workers", type=positive, default=1, help="local: processes (default: 1)")
    how.add_argument(
        "--address", help="ray: of a cluster (default: RAY_ADDRESS, or one is started)"
    )
    how.add_argument(
        "--gpus-per-run",
        type=share,
        metavar="X",
        help="ray: 0.25 lets four runs share a GPU (default: 1 where there are GPUs)",
    )
    how.add_argument("--shard", default="0/1", metavar="I/N", help="for batch queues, from 0")
    how.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    how.add_argument("--step", choices=("auto", "compiled", "graph", "eager"), default="auto")
    add_log(how)
    add_keep_best(how)
    how.add_argument(
        "--plan-only",
        action="store_true",
        help="write and show the plan and what it costs, no more",
    )
    parser.set_defaults(run=_run, after_interrupt="the same command goes on from here")


def _run(options: argparse.Namespace) -> int:
    from ..protocol.attempt import State
    from ..protocol.plan import runs_of, write_plan
    from ..protocol.standing import standing

    _refuse_of_another_engine(options)
    shard = _shard(options.shard)
    sweep, world = _sweep(options)
    datasets: dict[str, Any] = {}

    def dataset(name: str, trial: int) -> Any:
        datasets[name] = world.dataset(name, trial)
        return datasets[name]

    runs = runs_of(sweep, world.method, dataset)
    write_plan(options.out, runs)
    plan = shard.of(runs)
    _tell_plan(options, runs, plan)
    if any(state is not State.DONE for state in standing(options.out, plan)):
        _tell_cost(options, plan, world, datasets)
    if options.plan_only:
        return 0
    told = time.monotonic()

    def tell(found: Any) -> None:
        nonlocal told
        if time.monotonic() - told > 15:
            told = time.monotonic()
            left = time_left(options.out, plan)
            print(f"{_counts(found)}{left and f'; about {left} left'}", file=sys.stderr)

    found = _engine(options)(options.out, plan, world, tell)
    show_standing(options.out, plan)
    return 0 if found[State.DONE] == len(plan) else 1


def _refuse_of_another_engine(options: argparse.Namespace) -> None:
    given = {"--workers": options.workers != 1} if options.engine == "ray" else {}
    if options.engine == "local":
        given = {
            "--address": options.address is not None,
            "--gpus-per-run": options.gpus_per_run is not None,
        }
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} says nothing to --engine {options.engine}; leave it out")


def _engine(options: argparse.Namespace) -> Any:
    """Return what carries out runs with the engine that was asked for."""
    if options.engine == "local":
        from ..protocol.workers import carry_out

        return lambda out, runs, world, told: carry_out(out, runs, world, options.workers, told)
    from ..protocol.ray_engine import carry_out_on_ray

    gpus = 0.0 if options.device == "cpu" else options.gpus_per_run
    return lambda out, runs, world, told: carry_out_on_ray(
        out, runs, world, options.address, gpus, told
    )


def _sweep(options: argparse.Namespace) -> tuple[Any, Any]:
    from ..own import name_of, with_settings
    from ..protocol.plan import Sweep
    from ..protocol.run import Protocol
    from .loading import dataset_of
    from .world import CommandWorld

    methods = {name_of(asked, with_settings(asked)[0]): asked for asked in options.algorithms}
    names = {}
    for asked in options.datasets:
        one = argparse.Namespace(dataset=asked, data=options.data, trial=0)
        names[dataset_of(one).name] = asked
    weights = None if options.weights == "none" else "imagenet"
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
    places = (options.data, options.cache)
    gaps, keep = options.log == "gaps", tuple(options.keep_best)
    world = CommandWorld(methods, names, *places, options.device, options.step, gaps, keep)
    return sweep, world


def _shard(text: str) -> Any:
    from ..protocol.plan import Shard

    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"--shard takes I/N with I from 0 to N − 1, got {text!r}")
    return Shard(int(index), int(count))


def _tell_plan(options: argparse.Namespace, runs: Any, plan: Any) -> None:
    from ..protocol.standing import standing

    updates = sum(run.protocol.steps for run in plan)
    print(
        f"{len(runs):,} runs ({len(plan):,} of this shard), {updates:,} updates in all: "
        f"{_counts(standing(options.out, plan))}",
        file=sys.stderr,
    )


def _tell_cost(options: argparse.Namespace, plan: Any, world: Any, datasets: Any) -> None:
    from ..protocol.estimate import find_rates, unknown_kinds

    unknown = unknown_kinds(options.out, plan)
    if unknown:
        find_rates(options.out, unknown, world, datasets)
    left = time_left(options.out, plan)
    if not left:
        told = "What it costs is known when the first runs are done: shoal status"
    elif unknown:
        told = (
            f"About {left} of work for one worker on this machine, by a few updates of each method "
            "(loading and compiling not counted); better known when the first runs are done"
        )
    else:
        told = f"About {left} left, with one worker"
    print(told, file=sys.stderr)


def _counts(found: Any) -> str:
    ordered = sorted(found.items(), key=lambda item: item[0].value)
    return ", ".join(f"{number:,} {state.value}" for state, number in ordered)
