"""The Ray engine: one task for every run, on a cluster or on this machine.

Ray places tasks and starts them again if their worker dies; ``attempt`` does the rest, as in the
local engine. The folder of the sweep must be on a file system that all machines share.
"""

import logging
import os
import pickle
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..runs.run import Run
from .attempt import DeviceLost, Workspace
from .status import EVERY, SILENT, RunState, SweepStatus, SweepWatcher
from .worker import Stopped, Worker, ending_on_sigterm

# How often Ray starts a task again after its worker or machine died from outside. Deaths that the
# run itself causes are counted in its folder.
RETRIES = 20
# Seconds for a machine to answer.
PATIENCE = 10.0


def run_on_ray(
    out: Path,
    runs: Sequence[Run],
    workspace: Workspace,
    address: str | None = None,
    gpus_per_run: float | None = None,
    watcher: SweepWatcher = SILENT,
) -> Counter[RunState]:
    """Train these runs of the plan in ``out``; return the number in each state at the end.

    Args:
        address: of a cluster; by default $RAY_ADDRESS, or a cluster that is started here.
        gpus_per_run: the share of a GPU for a run; by default 1 if the cluster has any.
    """
    ray = _ray()
    # Send no usage statistics unless the user asks for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where = cluster_at(address)
    with ending_on_sigterm():
        _reach(where)
        try:
            ray.init(where, log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise Stopped(f"no Ray cluster answers at {where}: {_first(error)}") from error
        try:
            gpus = _gpus(ray, gpus_per_run, where)
            return _settled(out, runs, _Tasks(ray, out, workspace, gpus), watcher)
        finally:
            ray.shutdown()


def cluster_at(address: str | None) -> str:
    """Return the address of the cluster, or $RAY_ADDRESS; "local" is started here."""
    return address or os.environ.get("RAY_ADDRESS") or "local"


def _reach(where: str) -> None:
    """Raise at once if nothing listens at an address; Ray would try for minutes."""
    host, colon, port = where.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise Stopped(
                f"nothing listens at {where} ({error}); --address takes host:port, which "
                "'ray start' prints"
            ) from error


def _first(error: BaseException) -> str:
    """Return the first cause of an error; Ray itself only reports that it could not connect."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return str(error)


def _settled(
    out: Path, runs: Sequence[Run], tasks: "_Tasks", watcher: SweepWatcher
) -> Counter[RunState]:
    status, tried_alone = SweepStatus(out, runs), set[str]()
    while True:
        _until_settled(status, tasks, watcher)
        again = [*status.out_of_memory(), *tasks.lost.values()]
        again = [run for run in again if run.identity not in tried_alone]
        if not again:
            return status.refresh()
        tried_alone |= {run.identity for run in again}
        tasks.submit(again, alone=True)


def _until_settled(status: SweepStatus, tasks: "_Tasks", watcher: SweepWatcher) -> None:
    """Return when no run is trained, here or by another driver, and Ray has lost what waits."""

    def report(counts: Counter[RunState]) -> None:
        watcher.status(counts, tasks.at_once())

    while True:
        counts = status.refresh_if_due(report)
        if counts is not None:
            tasks.submit([run for run in status.waiting() if run.identity not in tasks.lost])
            if not tasks.pending and not counts[RunState.RUNNING]:
                return
        tasks.gather()


class _Tasks:
    """The tasks of this driver, and the runs whose tasks Ray has given up."""

    def __init__(self, ray: Any, out: Path, workspace: Workspace, gpus: float) -> None:
        self.ray, self.gpus = ray, gpus
        self.work = pickle.dumps((Path.cwd(), out.absolute(), workspace))
        self.pending: dict[Any, Run] = {}
        self.lost: dict[str, Run] = {}
        self.task = ray.remote(_attempt)

    def submit(self, runs: Sequence[Run], alone: bool = False) -> None:
        """Submit the runs that are not pending; alone, each with a whole GPU."""
        gpus = float(self.gpus > 0) if alone else self.gpus
        task = self.task.options(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        known = {run.identity for run in self.pending.values()}
        for run in runs:
            if run.identity not in known:
                self.pending[task.remote(self.work, run, alone)] = run

    def at_once(self) -> int:
        """Return how many tasks the cluster can run at once now."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return max(1, sum(_at_once(node, self.gpus) for node in nodes))

    def gather(self) -> None:
        """Wait a moment, and collect the tasks that have ended."""
        if not self.pending:
            time.sleep(EVERY)
            return
        failures = self.ray.exceptions
        ended, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=EVERY)
        for one in ended:
            run = self.pending.pop(one)
            try:
                self.ray.get(one)
            except failures.RayTaskError as error:
                raise Stopped(str(error.cause)) from error
            except failures.RayError:  # its worker or machine died too often
                self.lost[run.identity] = run


def _attempt(work: bytes, run: Run, alone: bool) -> str:
    """Attempt a run in a process of Ray's; return its state."""
    try:
        return _worker(work).attempt(run, alone).value
    except DeviceLost:
        os._exit(1)  # Ray starts the task again in another process, which finds the failure


@lru_cache(maxsize=1)
def _worker(work: bytes) -> Worker:
    """Return the worker for all runs of a sweep in this process."""
    place, out, workspace = pickle.loads(work)
    if place.is_dir():
        os.chdir(place)  # paths in the workspace can be relative to where the command was given
    return Worker(out, workspace)


def _at_once(there: Mapping[str, float], gpus: float) -> int:
    """Return how many runs a machine with these resources can train at once.

    Args:
        gpus: the share of a GPU for each run.
    """
    cpus = int(there.get("CPU", 0))
    return min(cpus, int(there.get("GPU", 0) * int(1 / gpus))) if gpus else cpus


def _gpus(ray: Any, asked: float | None, where: str) -> float:
    there = float(ray.cluster_resources().get("GPU", 0.0))
    if asked is None:
        return float(there > 0)
    if where == "local" and asked > there:
        raise Stopped(f"--gpus-per-run is {asked:g}, but Ray finds {there:g} GPUs here")
    return asked


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "the engine ray needs Ray, which is not installed: pip install 'shoal[ray]'",
            name="ray",
        ) from error
    return ray
