"""How the runs of a plan are carried out: which engine, which share of them, on what."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalogue import STEP_KINDS
from .options import add_keep_best, add_log, device, positive, share
from .progress import QUIET
from .status import run_rows, run_table, show_standing, told_left


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add where runs go, and who carries them out."""
    how = parser.add_argument_group("how it is carried out")
    how.add_argument("--out", type=Path, required=True, metavar="DIR")
    how.add_argument("--engine", choices=("local", "ray"), default="local")
    how.add_argument(
        "--workers",
        type=positive,
        default=1,
        help="local: processes, dealt over this machine's GPUs in turn (default: 1)",
    )
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
    how.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 for one GPU, or auto")
    how.add_argument("--step", choices=("auto", *STEP_KINDS), default="auto")
    add_log(how)
    add_keep_best(how)
    how.add_argument(
        "--retry-failed", action="store_true", help="try runs again that failed before"
    )
    how.add_argument(
        "--plan-only",
        action="store_true",
        help="write and show the plan and what it costs, and train nothing",
    )


def world_of(options: argparse.Namespace, methods: Any, datasets: Any) -> Any:
    """Return what workers work on: these methods and data sets, by their names in runs."""

    return CommandWorkspace(
        methods,
        datasets,
        options.data,
        options.cache,
        options.device,
        options.step,
        options.log,
        tuple(options.keep_best),
    )


def run_sweep(options: argparse.Namespace, runs: Sequence[Any], world: Any) -> int:
    """Plan these runs in ``--out`` and carry out this shard of them; return the exit status."""
    from ..sweeps.attempt import RunState, try_again
    from ..sweeps.plan import folder_of, write_plan
    from ..sweeps.status import count_states

    shard = _shard(options.shard)
    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out is a folder, and {options.out} is a file; choose another")
    _check_networks(options, runs, world)
    write_plan(options.out, runs)
    plan = shard.of(runs)
    if options.retry_failed and not options.plan_only:
        for run in plan:
            try_again(folder_of(options.out, run), run)
    found = count_states(options.out, plan)
    _tell_plan(options, runs, plan, found)
    if found[RunState.DONE] < len(plan):
        _tell_cost(options, plan, world, found[RunState.RUNNING])
    if options.plan_only:
        return 0
    ended = _engine(options)(options.out, plan, world, _watcher(options, plan))
    show_standing(options.out, plan)
    return 0 if ended[RunState.DONE] == len(plan) else 1


def check_engine(options: argparse.Namespace) -> None:
    """Raise where the shard is none, or an option means nothing to the engine."""
    _shard(options.shard)
    given = {"--workers": options.workers != 1} if options.engine == "ray" else {}
    if options.engine == "local":
        given = {
            "--address": options.address is not None,
            "--gpus-per-run": options.gpus_per_run is not None,
        }
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"{name} says nothing to --engine {options.engine}; leave it out")


def _check_networks(options: argparse.Namespace, runs: Sequence[Any], world: Any) -> None:
    """Raise where runs on files would fail one by one, for want of their network."""
    from ..catalogue import scale_of
    from ..networks.registry import check_network
    from ..results.records import DONE
    from ..sweeps.plan import folder_of

    # Another machine may have packages that this one has not.
    here = not options.plan_only and bool(_here(options))
    ahead = [run for run in runs if not (folder_of(options.out, run) / DONE).exists()]
    asked = dict.fromkeys(
        (run.dataset, run.protocol.network, run.protocol.weights) for run in ahead
    )
    for name, network, weights in asked:
        small = scale_of(name) == "small"  # which need not be loaded to know it
        if small:
            continue
        dataset = world.dataset(name, 0)
        if not dataset.in_memory:
            check_network(dataset.input_shape, network, weights, here)


def _engine(options: argparse.Namespace) -> Any:
    """Return what carries out runs with the engine that was asked for."""
    if options.engine == "local":
        from ..sweeps.local import run_locally

        return lambda out, runs, world, watcher: run_locally(
            out, runs, world, options.workers, watcher
        )
    from ..sweeps.ray_engine import run_on_ray

    gpus = 0.0 if options.device == "cpu" else options.gpus_per_run
    return lambda out, runs, world, watcher: run_on_ray(
        out, runs, world, options.address, gpus, watcher
    )


def _shard(text: str) -> Any:
    from ..sweeps.plan import Shard

    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"--shard takes I/N with I from 0 to N − 1, got {text!r}")
    return Shard(int(index), int(count))


def _watcher(options: argparse.Namespace, plan: Any) -> Any:
    """Return a watcher that prints the states of runs and the time left, every 15 s."""
    from ..sweeps.attempt import RunState
    from ..sweeps.cost import left_of
    from ..sweeps.status import SweepWatcher

    printed = time.monotonic()

    class StatusLines(SweepWatcher):
        def status(self, counts: Any, workers: int) -> None:
            nonlocal printed
            if time.monotonic() - printed < QUIET:
                return
            printed = time.monotonic()
            left = left_of(options.out, plan, _here(options))
            line = [_counts(counts), told_left(left, max(workers, counts[RunState.RUNNING]))]
            print(". ".join(filter(None, line)), file=sys.stderr)

    return StatusLines()


def _here(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hardware of this machine that runs are carried out on; a cluster has its own."""
    from ..runs.machine import hardware_here
    from ..sweeps.ray_engine import cluster_at

    elsewhere = options.engine == "ray" and cluster_at(options.address) != "local"
    return () if elsewhere else hardware_here(options.device)


def _tell_plan(options: argparse.Namespace, runs: Any, plan: Any, found: Any) -> None:
    """Show a row for every data set and method, and what they are in all."""
    from rich.console import Console

    rows = run_rows(options.out, plan)
    console = Console(stderr=True)
    if rows:
        console.print(run_table(f"Plan of {options.out}", rows, console, planned=True))
    updates = sum(run.protocol.steps for run in plan)
    print(
        f"{len(runs):,} runs ({len(plan):,} of this shard), {updates:,} updates in all: "
        f"{_counts(found) or 'nothing to do'}",
        file=sys.stderr,
    )


def _tell_cost(options: argparse.Namespace, plan: Any, world: Any, others: int) -> None:
    """Tell how long it takes; ``others`` are at it already."""
    from ..sweeps.cost import find_rates, left_of, unknown_kinds

    here = _here(options)
    unknown = unknown_kinds(options.out, plan, here)
    if unknown:
        find_rates(options.out, unknown, world, world.dataset, _tell)
    left = left_of(options.out, plan, here)
    told = told_left(left, options.workers + others)
    print(
        told or "What it costs is known when the first runs are done: shoal status", file=sys.stderr
    )


def _tell(line: str) -> None:
    print(f"shoal: {line}", file=sys.stderr)


def _counts(found: Any) -> str:
    ordered = sorted(found.items(), key=lambda item: item[0].value)
    return ", ".join(f"{number:,} {state.value}" for state, number in ordered)


@dataclass(frozen=True)
class CommandWorkspace:
    """Names become methods and data as on the command line; made anew in every worker."""

    algorithms: dict[str, str]  # what each method was called there, by its name in runs
    datasets: dict[str, str]  # and each data set
    data_folder: Path
    cache_folder: Path
    device: str
    step: str
    log: str | None = None
    keep_best: tuple[str, ...] = ()

    def method(self, name: str) -> Any:
        from ..runs.model import registered
        from .methods import with_settings

        # A name that only stands in a plan must not import anything.
        if name not in self.algorithms:
            return registered(name), {}
        return with_settings(self.algorithms[name])

    def dataset(self, name: str, trial: int) -> Any:
        """Return the data set alone."""
        from ..datasets import load_dataset

        return load_dataset(self.datasets[name], self.data_folder, trial)

    def data(self, name: str, trial: int) -> Any:
        from ..datasets.cache import cache_folder, open_cache
        from ..storage import hold_lock
        from .loading import decode_with_progress

        dataset = self.dataset(name, trial)
        if dataset.in_memory:
            return dataset, None
        folder = cache_folder(dataset, self.cache_folder)
        with suppress(ValueError):  # a whole one may lie where nothing can be written
            return dataset, open_cache(dataset, folder)
        # Building refuses company: workers that need the same images wait for who builds them.
        with hold_lock(folder.with_name(f"{folder.name}.lock")):
            return dataset, decode_with_progress(dataset, self.cache_folder)

    def machine(self) -> Any:
        from ..runs.machine import Machine

        on = device(self.device)
        # What is compiled once serves all runs of a worker.
        kind: Any = self.step
        if kind == "auto":
            kind = "compiled" if on.type == "cuda" else "eager"
        return Machine(on, kind, log=self.log, keep_best=self.keep_best)
