"""Which runs of a plan still count, and what those left behind whose data have changed."""

from collections.abc import Sequence
from pathlib import Path

from .attempt import State, state_of
from .plan import folder_of, read_plan, replaced
from .run import Run


def current(out: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the runs but for those of data that have changed since, which nobody will finish.

    What is done stays, whatever became of its data, and so does what somebody is at.
    """
    gone = {run.identity for run in _gone(out, runs)}
    return [run for run in runs if run.identity not in gone]


def left_behind(out: Path) -> list[Path]:
    """Return the folders in which runs of the plan in ``out`` were begun that are not current."""
    folders = (folder_of(out, run) for run in _gone(out, read_plan(out)))
    return sorted(folder for folder in folders if folder.is_dir())


def _gone(out: Path, runs: Sequence[Run]) -> list[Run]:
    lost = (State.FAILED, State.WAITING)
    return [run for run in replaced(runs) if state_of(folder_of(out, run)) in lost]
