"""A run's folder: whose it is, its records, and a lock that a killed process gives back."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..storage import read_json, write_json, write_text
from .run import Run

RUN, RECORDS, DONE, LOCK = "run.json", "records.jsonl", "done", "lock"
CHECKPOINTS = "checkpoints"


class Folder:
    """Where a run keeps what it has; open it with ``opened``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        """Whether the run has ended, with all its files there."""
        return (self.path / DONE).exists()

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write_records(self, records: list[dict[str, Any]]) -> None:
        """Write all records, one JSON a line."""
        lines = (json.dumps(record) + "\n" for record in records)
        write_text(self.path / RECORDS, "".join(lines))

    def records(self) -> list[dict[str, Any]]:
        """Return the records so far."""
        path = self.path / RECORDS
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def run(self) -> Run:
        """Return the run that the folder belongs to."""
        path = self.path / RUN
        if not path.is_file():
            raise ValueError(f"{self.path} is no folder of a run: it has no {RUN}")
        return Run.from_json(read_json(path))

    def finish(self) -> None:
        """Say that the run has ended."""
        write_text(self.path / DONE, "")


@contextmanager
def opened(path: Path, run: Run) -> Iterator[Folder]:
    """Yield the run's folder, locked; refuse that of another run, or one that is in use."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{path} is in use by another process; wait for it, or choose another --out"
            ) from None
        folder = Folder(path)
        if not (path / RUN).exists():
            names = sorted(p.name for p in path.iterdir() if p.name != LOCK)
            strange = [name for name in names if not name.startswith(".")]
            if strange:
                raise ValueError(
                    f"{path} holds {', '.join(strange[:5])} and is no folder of a run; "
                    "choose another --out"
                )
            write_json(path / RUN, run.canonical())
        elif (found := folder.run()).identity != run.identity:
            raise ValueError(
                f"{path} is the folder of another run ({_differences(found, run)}); "
                "choose another --out"
            )
        yield folder


def _differences(found: Run, wanted: Run) -> str:
    theirs, ours = found.canonical(), wanted.canonical()
    theirs, ours = (run | run.pop("protocol") | run.pop("hparams") for run in (theirs, ours))
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return "; ".join(f"{key} {theirs.get(key)!r}, not {ours.get(key)!r}" for key in keys[:3])
