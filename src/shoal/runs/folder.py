"""The folder of a run: its description, its records, and a lock that dies with its process."""

import json
import shutil
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..documents import read_json
from ..results.averages import AVERAGED_MODELS, averages_as_text
from ..results.records import (
    AVERAGES_FILE,
    BEGUN,
    DONE,
    FAILED,
    RECORDS,
    RUN,
    Record,
    again,
    read_records,
)
from ..storage import (
    check_lock,
    explain_write_errors,
    hold_lock,
    is_locked,
    remove_asides,
    write_json,
    write_text,
)
from .run import Run

LOCK = "lock"
CHECKPOINTS = "checkpoints"
PREDICTIONS, CONFUSION, LOGITS = "predictions.jsonl", "confusion.json", "logits.safetensors"
# Seconds before a lock counts as held: a process that only looks at it holds it for less.
PATIENCE = 0.1


class InUse(ValueError):
    """Another process trains the run of this folder."""


class RunFolder:
    """The files of a run; ``open_run_folder`` locks them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        """Whether the run has ended and all its files are written."""
        return (self.path / DONE).exists()

    @property
    def begun(self) -> bool:
        """Whether the folder holds a record or a checkpoint, which would be lost."""
        return self.done or any(self.checkpoints.glob("*")) or bool(self.records())

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write_records(self, records: Sequence[Record]) -> None:
        """Write all records, one line of JSON each."""
        lines = (json.dumps(record.to_json()) + "\n" for record in records)
        write_text(self.path / RECORDS, "".join(lines))

    def write_averages(self, records: Sequence[Record]) -> None:
        """Write the records of averages to a file of their own; without any, there is no file."""
        if records:
            write_text(self.path / AVERAGES_FILE, averages_as_text(records))
        else:  # a run that resumes can have lost its averages
            (self.path / AVERAGES_FILE).unlink(missing_ok=True)

    def tidy_averages(self, names: Container[str]) -> None:
        """Delete models of other averages than these, and files that were left half written."""
        for path in (self.path / AVERAGED_MODELS).glob("*"):
            if path.name in names:
                remove_asides(path)
            else:
                shutil.rmtree(path)

    def records(self) -> list[Record]:
        """Return the records so far."""
        path = self.path / RECORDS
        if not path.exists():
            return []
        try:
            return read_records(path, again(self.path))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def run(self) -> Run:
        """Return the run that the folder belongs to."""
        path = self.path / RUN
        if not path.exists():
            raise ValueError(f"{self.path} is not the folder of a run: it has no {RUN}")
        try:
            return Run.from_json(read_json(path, advice=again(self.path)))
        except ValueError as error:
            advice = "" if again(self.path) in str(error) else f"; {again(self.path)}"
            raise ValueError(f"{path} cannot be read: {error}{advice}") from error

    def finish(self) -> None:
        """Mark the run as done."""
        write_text(self.path / DONE, "")


@contextmanager
def open_run_folder(path: Path, run: Run) -> Iterator[RunFolder]:
    """Yield the folder of the run, locked; raise if it is another run's, or in use."""
    _refuse_foreign(path)
    busy = InUse(f"{path} is in use by another process; wait for it, or choose another --out")
    with hold_lock(path / LOCK, busy, PATIENCE):
        check_lock(path / LOCK)
        remove_asides(path)
        folder = RunFolder(path)
        found = folder.run() if (path / RUN).exists() else None
        if found is None or (found.identity != run.identity and not folder.begun):
            with explain_write_errors(path):
                write_json(path / RUN, run.canonical())
        elif found.identity != run.identity:
            raise ValueError(
                f"{path} is the folder of another run ({_differences(found, run)}); "
                "choose another --out"
            )
        yield folder


def in_use(path: Path) -> bool:
    """Return whether a process holds the folder of a run at this moment."""
    return is_locked(path / LOCK)


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose another --out")
    if not path.exists() or (path / RUN).exists():
        return
    # A run can fail before its description is written, or the description was moved away.
    names = sorted(p.name for p in path.iterdir() if p.name not in (LOCK, FAILED, BEGUN))
    strange = [name for name in names if not name.startswith(".")]
    if strange:
        raise ValueError(
            f"{path} holds {', '.join(strange[:5])} and is not the folder of a run; choose another "
            f"--out, or delete it: it has no {RUN}"
        )


def _differences(found: Run, wanted: Run) -> str:
    theirs, ours = _flat(found), _flat(wanted)
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return "; ".join(f"{key} {theirs.get(key)!r}, not {ours.get(key)!r}" for key in keys[:3])


def _flat(run: Run) -> dict[str, Any]:
    values = run.canonical()
    protocol, hparams = values.pop("protocol"), values.pop("hparams")
    return {**values, **hparams, **protocol}
