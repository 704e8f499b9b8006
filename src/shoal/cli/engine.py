"""The engine options of ``sweep`` and ``reproduce ablation``: plan runs, estimate, train them."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalogue import STEP_KINDS, scale_of, title_of
from ..results.records import DONE
from ..runs.machine import COMPILING_PAYS, Machine, choose_step, hardware_for
from ..runs.run import Run
from ..sweeps.cost import read_rates, remaining_work, runs_to_probe, write_rates
from ..sweeps.plan import LoadedData, MethodChoice, Shard, folder_of, write_plan
from ..sweeps.status import RunState, SweepWatcher, count_states, read_status
from ..training.watcher import Watcher
from .extras import require
from .notes import add_quiet, note, progress_console, quietly, say
from .options import (
    add_averages,
    add_device,
    add_keep_best,
    add_log,
    add_predictions,
    averages_of,
    device,
    positive,
    share,
)
from .status import describe_time_left, show_status, status_rows, status_table
from .terminal import QUIET, describe_steps


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and by how many workers runs are trained."""
    group = parser.add_argument_group("where to run and what to write")
    group.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the sweep's folder; an existing one is extended, and its unfinished runs resume",
    )
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local: processes on this machine; ray: a Ray cluster (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="local: processes that train at once; they take this machine's GPUs in turn "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--address",
        help="ray: host:port of the cluster (default: $RAY_ADDRESS, or a cluster started here)",
    )
    group.add_argument(
        "--gpus-per-run",
        type=share,
        metavar="X",
        help="ray: share of a GPU for each run; with 0.25, four runs share one (default: 1 if "
        "there are GPUs)",
    )
    group.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="train only part I of N, counted from 0, for the jobs of a batch queue (default: "
        "all runs)",
    )
    add_device(group)
    group.add_argument(
        "--step",
        choices=("auto", *STEP_KINDS),
        default="auto",
        help="how an update runs, as in 'shoal train' (default: auto: on a GPU compiled, "
        "or graph for networks with kernels of their own; on a CPU eager)",
    )
    add_log(group)
    add_keep_best(group)
    add_averages(group)
    add_predictions(group)
    group.add_argument(
        "--retry-failed", action="store_true", help="try runs again that failed before"
    )
    group.add_argument(
        "--plan-only",
        action="store_true",
        help="write and print the plan and the estimated time, and train nothing",
    )
    add_quiet(group)


def check_engine(options: argparse.Namespace, *packages: str) -> None:
    """Raise if a package is missing, ``--shard`` is malformed or an option not for the engine.

    Args:
        packages: those that the command needs besides.
    """
    require("rich", "safetensors", *packages, *(["ray"] if options.engine == "ray" else []))
    _shard(options.shard)
    if options.engine == "ray":
        given = {"--workers": options.workers != 1}
    else:
        given = {
            "--address": options.address is not None,
            "--gpus-per-run": options.gpus_per_run is not None,
        }
    for name, is_given in given.items():
        if is_given:
            raise ValueError(f"--engine {options.engine} has no option {name}; leave it out")


def workspace_of(
    options: argparse.Namespace,
    methods: dict[str, str],
    datasets: dict[str, str],
    network: str | None = None,
) -> "CommandWorkspace":
    """Return the workspace of these methods and data sets, by their names in runs."""
    return CommandWorkspace(
        algorithms=methods,
        datasets=datasets,
        data_folder=options.data,
        cache_folder=options.cache,
        device=options.device,
        step=options.step,
        network=network,
        log=options.log,
        keep_best=tuple(options.keep_best),
        averages=averages_of(options.average),
        predictions=options.predictions,
        quiet=options.quiet,
    )


def run_sweep(
    options: argparse.Namespace, runs: Sequence[Run], workspace: "CommandWorkspace"
) -> int:
    """Plan these runs in ``--out`` and train this shard of them; return the exit status."""
    from ..sweeps.attempt import try_again

    shard = _shard(options.shard)
    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, but {options.out} is a file; choose another")
    _check_networks(options, runs, workspace)
    write_plan(options.out, runs)
    plan = shard.of(runs)
    if options.retry_failed and not options.plan_only:
        for run in plan:
            try_again(folder_of(options.out, run), run)
    counts = count_states(options.out, plan)
    with quietly(options.quiet and not options.plan_only):  # where the plan is the result
        _print_plan(options, runs, plan, counts)
        if counts[RunState.DONE] < len(plan):
            _print_cost(options, plan, workspace, counts[RunState.RUNNING])
            say(*_steps_here(options, plan, workspace))
    if options.plan_only:
        return 0
    counts = _train(options, plan, workspace)
    show_status(options.out, plan)
    return 0 if counts[RunState.DONE] == len(plan) else 1


def _steps_here(
    options: argparse.Namespace, plan: Sequence[Run], workspace: "CommandWorkspace"
) -> list[str]:
    """Return lines on how updates run on this machine, where there is something to say."""
    from ..training.step import step_kind

    if options.engine != "local":
        return []
    machine = workspace.machine()
    kinds = {
        title_of(name): step_kind(
            machine.step, workspace.method(name)[0].capture, machine.device, machine.micro_batch
        )
        for name in dict.fromkeys(run.algorithm for run in plan)
    }
    told = machine.device.type == "cuda" or "compiled" in kinds.values()
    return describe_steps(kinds) if told else []


def _train(
    options: argparse.Namespace, plan: Sequence[Run], workspace: "CommandWorkspace"
) -> Counter[RunState]:
    """Train the runs with the engine that was asked for; return their states."""
    watcher = StatusLines(options, plan)
    if options.engine == "local":
        from ..sweeps.local import run_locally

        return run_locally(options.out, plan, workspace, options.workers, watcher)
    from ..sweeps.ray_engine import run_on_ray

    gpus = 0.0 if options.device == "cpu" else options.gpus_per_run
    return run_on_ray(options.out, plan, workspace, options.address, gpus, watcher)


def _check_networks(
    options: argparse.Namespace, runs: Sequence[Run], workspace: "CommandWorkspace"
) -> None:
    """Raise if a network is missing, for want of which runs on files would fail one by one."""
    from ..networks.registry import check_network

    # Another machine may have packages that this one has not.
    here = not options.plan_only and bool(_hardware(options))
    unfinished = [run for run in runs if not (folder_of(options.out, run) / DONE).exists()]
    networks = dict.fromkeys(
        (run.dataset, run.protocol.network, run.protocol.weights) for run in unfinished
    )
    for name, network, weights in networks:
        if scale_of(name) == "small":
            continue  # without loading it
        dataset = workspace.dataset(name, 0)
        if not dataset.in_memory:
            check_network(dataset.input_shape, network, weights, here)


def _shard(text: str) -> Shard:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"--shard takes I/N with I from 0 to N − 1, got {text!r}")
    return Shard(int(index), int(count))


class StatusLines(SweepWatcher):
    """Prints the states of runs and the time left, every 15 s."""

    def __init__(self, options: argparse.Namespace, plan: Sequence[Run]) -> None:
        self.options, self.plan, self.printed = options, plan, time.monotonic()

    def status(self, counts: Counter[RunState], workers: int) -> None:
        if time.monotonic() - self.printed < QUIET:
            return
        self.printed = time.monotonic()
        left = remaining_work(self.options.out, self.plan, _hardware(self.options))
        time_left = describe_time_left(left, max(workers, counts[RunState.RUNNING]))
        say(". ".join(filter(None, [_format_counts(counts), time_left])))


def _hardware(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hardware of this machine that trains runs; a cluster has its own."""
    from ..sweeps.ray_engine import cluster_at

    elsewhere = options.engine == "ray" and cluster_at(options.address) != "local"
    return () if elsewhere else hardware_for(options.device)


def _print_plan(
    options: argparse.Namespace,
    runs: Sequence[Run],
    plan: Sequence[Run],
    counts: Counter[RunState],
) -> None:
    """Print a row for every data set and method, and the totals."""

    rows = status_rows(read_status(options.out, plan))
    screen = progress_console()
    if rows:
        screen.print(status_table(f"Plan of {options.out}", rows, screen, planned=True))
    updates = sum(run.protocol.steps for run in plan)
    shard = "" if len(plan) == len(runs) else f" ({len(plan):,} in this shard)"
    say(
        f"{len(runs):,} runs{shard}, {updates:,} updates in all: "
        f"{_format_counts(counts) or 'nothing to do'}"
    )


def _print_cost(
    options: argparse.Namespace,
    plan: Sequence[Run],
    workspace: "CommandWorkspace",
    running: int,
) -> None:
    """Print the estimated time; other commands are training ``running`` runs."""
    from ..sweeps.probe import probe_rates

    hardware = _hardware(options)
    if probed := runs_to_probe(options.out, plan, hardware):
        rates = probe_rates(probed, workspace, workspace.dataset, PrintNotes())
        write_rates(options.out, read_rates(options.out) | rates)
    left = remaining_work(options.out, plan, hardware)
    say(
        describe_time_left(left, options.workers + running)
        or "The time left is known when the first runs are done: shoal status"
    )


class PrintNotes(Watcher):
    """Prints notes on stderr."""

    def note(self, line: str) -> None:
        note(line)


def _format_counts(counts: Counter[RunState]) -> str:
    ordered = sorted(counts.items(), key=lambda item: item[0].value)
    return ", ".join(f"{number:,} {state.value}" for state, number in ordered)


@dataclass(frozen=True, kw_only=True)
class CommandWorkspace:
    """Methods and data by the names of the command line, loaded in every worker again.

    Args:
        algorithms: what the user typed for each method, by its name in runs.
        datasets: what the user typed for each data set, by its name in runs.
    """

    algorithms: dict[str, str]
    datasets: dict[str, str]
    data_folder: Path
    cache_folder: Path
    device: str
    step: str
    network: str | None = None
    log: str | None = None
    keep_best: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    predictions: bool = False
    quiet: bool = False

    def method(self, name: str) -> MethodChoice:
        """Return a method and the settings that its name has."""
        from ..runs.model import registered
        from .methods import with_settings

        # A name that is only in a plan must not import anything.
        if name not in self.algorithms:
            return registered(name), {}
        return with_settings(self.algorithms[name])

    def dataset(self, name: str, trial: int) -> Any:
        """Return the data set without its cache."""
        from ..datasets import load_dataset

        return load_dataset(self.datasets[name], self.data_folder, trial)

    def data(self, name: str, trial: int) -> LoadedData:
        """Return the data set and the cache of its images, which is built if it does not exist."""
        from ..datasets.cache import cache_folder, open_cache
        from ..storage import hold_lock
        from .loading import decode_with_progress

        dataset = self.dataset(name, trial)
        if dataset.in_memory:
            return dataset, None
        folder = cache_folder(dataset, self.cache_folder)
        with suppress(ValueError):  # a whole cache can be in a folder that cannot be written
            return dataset, open_cache(dataset, folder)
        # Only one process can build it; the other workers that need these images wait.
        with hold_lock(folder.with_name(f"{folder.name}.lock")), quietly(self.quiet):
            return dataset, decode_with_progress(dataset, self.cache_folder)

    def machine(self) -> Machine:
        """Return the machine of a worker."""
        on = device(self.device)
        # What is compiled once serves all runs of a worker, of which a sweep usually has many.
        scale = "small" if "small" in map(scale_of, self.datasets) else "large"
        return Machine(
            device=on,
            step=choose_step(self.step, on, scale, self.network, COMPILING_PAYS[scale]),
            log=self.log,
            keep_best=self.keep_best,
            averages=self.averages,
            predictions=self.predictions,
        )
