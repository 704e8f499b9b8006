"""One run of a sweep under the lock of its folder: all that can happen to it is decided here."""

import errno
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch

from ..distributed import processes
from ..results.records import BEGUN, DONE, FAILED, failure_of, reason_of
from ..runs.execute import execute
from ..runs.folder import CHECKPOINTS, InUse, RunFolder, in_use, opened
from ..runs.machine import Machine
from ..runs.run import Run
from ..storage import read_json, write_json
from ..training.checkpoints import Checkpoints
from ..training.watcher import SILENT, Watcher
from .plan import LoadedData, MethodChoice, folder_of

# A run whose process died so often without a word, and got no further, is taken for failed.
DEATHS = 5
# What would go wrong for the next run, too. An error without a number is our own word for a file
# of the run that cannot be written.
DISK = (None, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# What goes wrong in one of several processes goes wrong in all of them.
EVERYWHERE = (ValueError, FloatingPointError)
# How torch says it where it does not raise OutOfMemoryError.
EXHAUSTED = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


class RunState(Enum):
    """How a run of a sweep stands."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    WAITING = "waiting"


class Workspace(Protocol):
    """Methods and data by name, and the machine; every worker unpickles its own."""

    def method(self, name: str) -> MethodChoice: ...

    def data(self, name: str, trial: int) -> LoadedData: ...

    def machine(self) -> Machine: ...


class DeviceLost(RuntimeError):
    """The run is written down as failed, and this process can use its device no more."""


def state_of(path: Path) -> RunState:
    """Return how the run in this folder stands; a killed one waits."""
    if (path / DONE).exists():
        return RunState.DONE
    if in_use(path):
        return RunState.RUNNING
    return RunState.FAILED if (path / FAILED).exists() else RunState.WAITING


def try_again(path: Path, run: Run) -> None:
    """Let a run that failed be carried out once more; one that somebody is at is left to him."""
    if not (path / FAILED).exists():
        return
    with suppress(ValueError), opened(path, run):  # a damaged folder stays failed
        (path / BEGUN).unlink(missing_ok=True)
        (path / FAILED).unlink(missing_ok=True)


def attempt(
    run: Run,
    workspace: Workspace,
    out: Path,
    machine: Machine,
    retry_out_of_memory: bool = False,
    watcher: Watcher = SILENT,
) -> RunState:
    """Train a run of the sweep in ``out`` unless it is done, failed or in use; return its state.

    If the run itself fails, the reason is written to its folder, and the next run can go on. A
    full disk does raise, because the next run would fail as well, and so does a device that a
    failure left unusable (``DeviceLost``).

    Args:
        workspace: asked for the method and the data only if the run is to be trained.
        machine: where it is trained; the workspace's own machine is not used.
        retry_out_of_memory: whether to try a run again that failed for want of memory.
    """
    path = folder_of(out, run)
    if (path / DONE).exists() and not (path / CHECKPOINTS).exists():
        return RunState.DONE
    try:
        with opened(path, run) as folder:
            if folder.done:
                _tidy(run, folder)  # a kill may have come before it
                return RunState.DONE
            failure = failure_of(path)
            if failure is not None:
                if not (retry_out_of_memory and failure["memory"]):
                    return RunState.FAILED
                (path / BEGUN).unlink(missing_ok=True)
                (path / FAILED).unlink()
            if not _may_begin(folder):
                return RunState.FAILED
            return _train(run, workspace, folder, machine, watcher)
    except InUse:
        return RunState.RUNNING
    except ValueError as error:  # a folder that is not the run's, or damaged
        return _failed(path, error)


def _may_begin(folder: RunFolder) -> bool:
    """Count this beginning; a run whose process died too often at one place has failed."""
    path, at = folder.path, _place(folder)
    begun = read_json(path / BEGUN) if (path / BEGUN).exists() else {}
    times = begun["times"] if begun.get("at") == at else 0
    if times >= DEATHS:
        reason = f"its process died {times} times without a word, and got no further"
        write_json(path / FAILED, {"kind": "death", "reason": reason, "memory": False})
        return False
    write_json(path / BEGUN, {"times": times + 1, "at": at})
    return True


def _place(folder: RunFolder) -> str:
    """Return the name of the last checkpoint: how far the run has come."""
    return max((path.name for path in folder.checkpoints.glob("step-*")), default="")


def _train(
    run: Run, workspace: Workspace, folder: RunFolder, machine: Machine, watcher: Watcher
) -> RunState:
    try:
        dataset, cache = workspace.data(run.dataset, run.trial)
        if dataset.fingerprint != run.fingerprint:
            raise ValueError(f"{dataset.name} is not what it was when the sweep was planned")
        method, _ = workspace.method(run.algorithm)
        watcher.starts()
        execute(run, method, dataset, cache, folder, machine, watcher)
    except (KeyboardInterrupt, SystemExit):
        (folder.path / BEGUN).unlink(missing_ok=True)  # it was asked to end, and is no death
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK:
            (folder.path / BEGUN).unlink(missing_ok=True)
            raise
        if processes() > 1 and not isinstance(error, EVERYWHERE):
            raise  # the others may wait for this process, which would be for ever
        state = _failed(folder.path, error)
        if _lost(machine.device):
            raise DeviceLost(f"{machine.device} is lost after {error}") from error
        return state
    (folder.path / BEGUN).unlink(missing_ok=True)
    return RunState.DONE


def _failed(path: Path, error: Exception) -> RunState:
    memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in EXHAUSTED)
    )
    kind = type(error).__name__
    write_json(path / FAILED, {"kind": kind, "reason": reason_of(error), "memory": memory})
    return RunState.FAILED


def _lost(device: torch.device) -> bool:
    """Return whether every further call fails, as after an illegal access in a kernel."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _tidy(run: Run, folder: RunFolder) -> None:
    Checkpoints(folder.checkpoints, run.identity).delete()
    (folder.path / BEGUN).unlink(missing_ok=True)
