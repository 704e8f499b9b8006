"""One run of a sweep under the lock of its folder: all that can happen to it is decided here."""

import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from ..algorithms.base import Algorithm
from ..storage import read_json, write_json
from .execute import Machine, execute
from .folder import DONE, Folder, InUse, in_use, opened
from .plan import Data
from .run import Run

FAILED, BEGUN = "failed.json", "begun.json"
# A run whose process died so often, without a word, is taken for failed.
DEATHS = 5


class State(Enum):
    """How a run of a sweep stands."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    WAITING = "waiting"


def state_of(path: Path) -> State:
    """Return how the run in this folder stands; a killed one waits."""
    if (path / DONE).exists():
        return State.DONE
    if in_use(path):
        return State.RUNNING
    return State.FAILED if (path / FAILED).exists() else State.WAITING


def failure_of(path: Path) -> dict[str, Any]:
    """Return why the run in this folder failed."""
    found: dict[str, Any] = read_json(path / FAILED)
    return found


def attempt(
    run: Run,
    method: Callable[[], type[Algorithm]],
    data: Callable[[], Data],
    path: Path,
    machine: Machine,
    retry: Callable[[dict[str, Any]], bool] = lambda failure: False,
) -> State:
    """Carry out the run if nobody else does and it is not done; return how it stands then.

    What goes wrong with the run is written down and raises nothing: the next one goes on. What goes
    wrong with the folder (a full disk) does raise, because it would go wrong for the next one too.

    Args:
        method, data: called only where the run is to be carried out.
        retry: whether a run that failed in this way is tried again.
    """
    try:
        with opened(path, run) as folder:
            if folder.done:
                return State.DONE
            if (path / FAILED).exists():
                if not retry(failure_of(path)):
                    return State.FAILED
                (path / FAILED).unlink()
                (path / BEGUN).unlink(missing_ok=True)
            if not _may_begin(path):
                return State.FAILED
            return _carried_out(run, method, data, folder, machine)
    except InUse:
        return State.RUNNING


def _may_begin(path: Path) -> bool:
    """Count this beginning; a run whose process died too often has failed."""
    begun = read_json(path / BEGUN)["times"] if (path / BEGUN).exists() else 0
    if begun >= DEATHS:
        reason = f"its process died {begun} times without a word"
        write_json(path / FAILED, {"kind": "death", "reason": reason, "memory": False})
        return False
    write_json(path / BEGUN, {"times": begun + 1})
    return True


def _carried_out(
    run: Run,
    method: Callable[[], type[Algorithm]],
    data: Callable[[], Data],
    folder: Folder,
    machine: Machine,
) -> State:
    try:
        dataset, cache = data()
        if dataset.fingerprint != run.fingerprint:
            raise ValueError(f"{dataset.name} is not what it was when the sweep was planned")
        execute(run, method(), dataset, cache, folder, machine)
    except OSError:
        raise
    except Exception as error:
        memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        last = traceback.format_exception_only(error)[-1].strip()
        failure = {"kind": type(error).__name__, "reason": last, "memory": memory}
        write_json(folder.path / FAILED, failure)
        return State.FAILED
    (folder.path / BEGUN).unlink(missing_ok=True)
    return State.DONE
