"""A worker: one process that trains runs of a sweep, whichever engine started it."""

import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..runs.execute import execute
from ..runs.folder import RunFolder
from ..runs.machine import Machine, device_id, worker_device
from ..runs.run import Run
from ..storage import hold_lock
from ..training.watcher import SILENT, Watcher
from .attempt import Workspace, attempt
from .plan import LoadedData, folder_of
from .status import RunState


class Stopped(ValueError):
    """The sweep cannot go on as things are; the same command resumes it when they have changed."""


class LoadedOnce:
    """A workspace that keeps the data of the last two trials, and remembers what is broken."""

    def __init__(self, workspace: Workspace) -> None:
        self.method, self.machine = workspace.method, workspace.machine
        self._load = lru_cache(maxsize=2)(workspace.data)
        self._broken: dict[tuple[str, int], str] = {}

    def data(self, name: str, trial: int) -> LoadedData:
        """Return the data; if an image is broken, the next runs need not find it again."""
        if (name, trial) in self._broken:
            raise ValueError(self._broken[name, trial])
        try:
            return self._load(name, trial)
        except ValueError as error:
            self._broken[name, trial] = str(error)
            raise


class Worker:
    """Trains one run of the sweep in ``out`` after another, with the same data and machine.

    Args:
        number: of this worker among those that share the GPUs of this machine; None if alone.
    """

    def __init__(self, out: Path, workspace: Workspace, number: int | None = None) -> None:
        self.out, self.workspace = out, LoadedOnce(workspace)
        self.machine = workspace.machine()
        if number is not None:
            self.machine = replace(self.machine, device=worker_device(self.machine.device, number))

    def attempt(self, run: Run, alone: bool = False, watcher: Watcher = SILENT) -> RunState:
        """Return the state of the run after ``attempt``.

        Args:
            alone: also try again what ran out of memory, one run at a time on a device.
        """
        with self._alone() if alone else nullcontext():
            return attempt(
                run,
                self.workspace,
                self.out,
                self._machine(run),
                retry_out_of_memory=alone,
                watcher=watcher,
            )

    def _alone(self) -> AbstractContextManager[None]:
        """Keep all other workers off this device that want to be alone on it."""
        name = f"alone-{platform.node()}-{device_id(self.machine.device)}.lock"
        return hold_lock(self.out / name)

    def assist(self, run: Run) -> None:
        """Take part in a run that the first of several processes trains."""
        method, _ = self.workspace.method(run.algorithm)
        dataset, cache = self.workspace.data(run.dataset, run.trial)
        folder = RunFolder(folder_of(self.out, run))
        execute(run, method, dataset, cache, folder, self._machine(run))

    def _machine(self, run: Run) -> Machine:
        machine = replace(self.machine, weights=run.protocol.weights)
        if len(run.test_domains) != 1:  # no rule chooses its weights
            machine = replace(machine, keep_best=())
        return machine


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception inside the block, so that it can clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
