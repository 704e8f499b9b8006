"""An attempt at one run of a sweep, under the lock of its folder; failures are written down."""

import errno
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

from ..distributed import processes
from ..documents import json_object
from ..files import JSON_BYTES, read_bytes
from ..results.index import RUNS
from ..results.records import BEGUN, DONE, FAILED, RUN, failure_of, reason_of
from ..runs.execute import execute
from ..runs.folder import CHECKPOINTS, InUse, RunFolder, open_run_folder
from ..runs.machine import Machine
from ..runs.run import Run
from ..storage import FolderLost, write_json
from ..training.checkpoints import Checkpoints
from ..training.watcher import SILENT, Watcher
from .plan import LoadedData, MethodChoice, folder_of
from .status import RunState

# A run has failed if its process died this often without an error, and the run got no further.
DEATHS, DEATH = 5, "death"
# Errors that would stop the next run as well. An error without a number is our own message for a
# file of the run that cannot be written.
DISK = (None, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Errors that come to all of several processes at once.
EVERYWHERE = (ValueError, FloatingPointError)
# Parts of torch's messages when memory runs out and it does not raise OutOfMemoryError.
EXHAUSTED = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


class Workspace(Protocol):
    """Methods and data by name, and the machine; every worker unpickles its own copy."""

    def method(self, name: str) -> MethodChoice: ...

    def data(self, name: str, trial: int) -> LoadedData: ...

    def machine(self) -> Machine: ...


class DeviceLost(RuntimeError):
    """The run is marked as failed, and this process cannot use its device any more."""


def try_again(path: Path, run: Run) -> None:
    """Clear the failure of a run, so that it is tried again; leave a run alone that is in use."""
    if not (path / FAILED).exists():
        return
    with suppress(ValueError), open_run_folder(path, run):  # a damaged folder stays failed
        (path / BEGUN).unlink(missing_ok=True)
        (path / FAILED).unlink(missing_ok=True)


def tidy_interrupted(out: Path) -> None:
    """Clear what interruptions left in ``out``, so that only runs at fault stay failed.

    A run whose process was killed too often, or whose folder was deleted or moved, is tried again.
    A finished one can have kept its count of starts when power was lost.
    """
    for path in (out / RUNS).glob("*"):
        if (path / DONE).exists():
            (path / BEGUN).unlink(missing_ok=True)
        elif (failure_of(path) or {}).get("kind") in (DEATH, FolderLost.__name__):
            with suppress(ValueError):  # a damaged folder stays failed
                try_again(path, RunFolder(path).run())


def attempt(
    run: Run,
    workspace: Workspace,
    out: Path,
    machine: Machine,
    retry_out_of_memory: bool = False,
    watcher: Watcher = SILENT,
) -> RunState:
    """Train a run of the sweep in ``out`` unless it is done, failed or in use; return its state.

    If the run fails, the reason is written to its folder, and the caller goes on with the next. A
    full disk does raise, because the next run would fail as well, and so does a device that a
    failure left unusable (``DeviceLost``).

    Args:
        workspace: asked for the method and the data only if the run is to be trained.
        machine: trains the run; the workspace's own machine is not used.
        retry_out_of_memory: whether to try a run again that failed for want of memory.
    """
    path = folder_of(out, run)
    whole = (path / DONE).exists() and (path / RUN).exists()
    if whole and not any((path / left).exists() for left in (CHECKPOINTS, BEGUN)):
        return RunState.DONE
    try:
        with open_run_folder(path, run) as folder:
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
    except FolderLost as error:
        if processes() > 1:
            raise
        return _fail_anew(path, run, error)
    except ValueError as error:  # the folder is another run's, or damaged
        return _fail(path, error)


def _fail_anew(path: Path, run: Run, error: FolderLost) -> RunState:
    """Make the folder again that was deleted or moved, with the failure of its run.

    So the status, a report and the same command agree on it.
    """
    try:
        with open_run_folder(path, run):
            return _fail(path, error)
    except InUse:
        return RunState.RUNNING


def _may_begin(folder: RunFolder) -> bool:
    """Count this start; a run whose process died too often at one checkpoint has failed."""
    path, at = folder.path, _last_checkpoint(folder)
    times = _starts(path / BEGUN, at)
    if times >= DEATHS:
        reason = (
            f"its process died {times} times without an error, and the run got no further; run the "
            "same command again to try it once more"
        )
        write_json(path / FAILED, {"kind": DEATH, "reason": reason, "memory": False})
        return False
    write_json(path / BEGUN, {"times": times + 1, "at": at})
    return True


def _starts(path: Path, at: str) -> int:
    """Return how often the run was begun at this checkpoint; 0 if the file is damaged."""
    try:
        begun = json_object(read_bytes(path, JSON_BYTES)) or {}
    except FileNotFoundError:
        return 0
    times = begun.get("times")
    return times if type(times) is int and begun.get("at") == at else 0


def _last_checkpoint(folder: RunFolder) -> str:
    return max((path.name for path in folder.checkpoints.glob("step-*")), default="")


def _train(
    run: Run, workspace: Workspace, folder: RunFolder, machine: Machine, watcher: Watcher
) -> RunState:
    try:
        dataset, cache = workspace.data(run.dataset, run.trial)
        if dataset.fingerprint != run.fingerprint:
            raise ValueError(f"{dataset.name} has changed since the sweep was planned")
        method, _ = workspace.method(run.algorithm)
        watcher.starts()
        execute(run, method, dataset, cache, folder, machine, watcher)
    except (KeyboardInterrupt, SystemExit, BrokenPipeError):  # the last: nobody reads the progress
        (folder.path / BEGUN).unlink(missing_ok=True)  # a request to end does not count as a death
        raise
    except FolderLost:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK:
            (folder.path / BEGUN).unlink(missing_ok=True)
            raise
        if processes() > 1 and not isinstance(error, EVERYWHERE):
            raise  # other processes may wait for this one, which would be for ever
        state = _fail(folder.path, error)
        if _is_lost(machine.device):
            raise DeviceLost(f"{machine.device} is lost after {error}") from error
        return state
    (folder.path / BEGUN).unlink(missing_ok=True)
    return RunState.DONE


def _fail(path: Path, error: Exception) -> RunState:
    memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in EXHAUSTED)
    )
    kind = type(error).__name__
    write_json(path / FAILED, {"kind": kind, "reason": reason_of(error), "memory": memory})
    return RunState.FAILED


def _is_lost(device: torch.device) -> bool:
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
