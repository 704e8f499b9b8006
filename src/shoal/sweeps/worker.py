"""What carries out runs in one process, whichever engine started it."""

import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from ..runs.execute import execute
from ..runs.folder import RunFolder
from ..runs.machine import Machine, dealt, mark_of
from ..runs.run import Run
from ..storage import hold_lock
from ..training.loop import Progress
from .attempt import RunState, attempt
from .plan import LoadedData, MethodChoice, folder_of


class Workspace(Protocol):
    """Where names become methods and data, in every process anew; it must be picklable."""

    def method(self, name: str) -> MethodChoice: ...

    def data(self, name: str, trial: int) -> LoadedData: ...

    def machine(self) -> Machine: ...


class Stopped(ValueError):
    """The sweep cannot go on as things are; the same command does so when they have changed."""


class Worker:
    """Carries out one run after another of the sweep in ``out``, with the same data and machine.

    Args:
        worker: which of several on this machine it is, who share its GPUs; None where it is alone.
    """

    def __init__(self, out: Path, world: Workspace, worker: int | None = None) -> None:
        self.out, self.world = out, world
        self.data = lru_cache(maxsize=2)(world.data)
        self.broken: dict[tuple[str, int], str] = {}
        self.machine = world.machine()
        if worker is not None:
            self.machine = replace(self.machine, device=dealt(self.machine.device, worker))

    def __call__(
        self,
        run: Run,
        alone: bool = False,
        told: Callable[[Progress], object] = lambda _: None,
        begin: Callable[[], object] = lambda: None,
    ) -> RunState:
        """Return how the run stands after it, as ``attempt`` does.

        Args:
            alone: try again what ran out of memory, one at a time on a device.
            told: as in ``train``.
            begin: as in ``attempt``.
        """
        with self._alone() if alone else nullcontext():
            return attempt(
                run,
                lambda: self.world.method(run.algorithm)[0],
                lambda: self._data(run.dataset, run.trial),
                folder_of(self.out, run),
                self._machine(run),
                lambda failure: alone and bool(failure["memory"]),
                told,
                begin,
            )

    def _alone(self) -> AbstractContextManager[None]:
        """Keep all others off this device who are to be alone on it."""
        return hold_lock(self.out / f"alone-{platform.node()}-{mark_of(self.machine.device)}.lock")

    def assist(self, run: Run) -> None:
        """Take part in a run that the first of several processes carries out."""
        method, folder = self.world.method(run.algorithm)[0], RunFolder(folder_of(self.out, run))
        execute(run, method, *self._data(run.dataset, run.trial), folder, self._machine(run))

    def _machine(self, run: Run) -> Machine:
        machine = replace(self.machine, weights=run.protocol.weights)
        if len(run.test_domains) != 1:  # no rule chooses its weights
            machine = replace(machine, keep_best=())
        return machine

    def _data(self, name: str, trial: int) -> LoadedData:
        """Return the data; where an image is broken, the next runs need not find it again."""
        if (name, trial) in self.broken:
            raise ValueError(self.broken[name, trial])
        try:
            return self.data(name, trial)
        except ValueError as error:
            self.broken[name, trial] = str(error)
            raise


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is inside as an exception, so that it can tidy up behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
