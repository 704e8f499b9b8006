"""A run's folder: whose it is, its records, and a lock that a killed process gives back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..datasets import DomainDataset
from ..results.records import BEGUN, DONE, FAILED, RECORDS, RUN, Record
from ..storage import (
    explain_write_errors,
    hold_lock,
    is_locked,
    read_json,
    remove_asides,
    write_json,
    write_text,
)
from ..training.evaluation import EvaluationSet, Outcome, SplitKey
from .run import Run

LOCK = "lock"
CHECKPOINTS = "checkpoints"
# Seconds before a lock counts as held: who only looks at it has it for less.
PATIENCE = 0.1


class InUse(ValueError):
    """Another process carries out the run of this folder."""


class RunFolder:
    """Where a run keeps what it has; open it with ``opened``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        """Whether the run has ended, with all its files there."""
        return (self.path / DONE).exists()

    @property
    def begun(self) -> bool:
        """Whether there is anything to lose: a record, or a checkpoint."""
        return self.done or any(self.checkpoints.glob("*")) or bool(self.records())

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def write_records(self, records: Sequence[Record]) -> None:
        """Write all records, one JSON a line."""
        lines = (json.dumps(record.to_json()) + "\n" for record in records)
        write_text(self.path / RECORDS, "".join(lines))

    def records(self) -> list[Record]:
        """Return the records so far."""
        path = self.path / RECORDS
        if not path.exists():
            return []
        try:
            lines = path.read_text("utf-8").splitlines()
            return [Record.from_json(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}); move {self.path} away") from error

    def run(self) -> Run:
        """Return the run that the folder belongs to."""
        path = self.path / RUN
        if not path.is_file():
            raise ValueError(f"{self.path} is no folder of a run: it has no {RUN}")
        try:
            return Run.from_json(read_json(path))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def finish(self) -> None:
        """Say that the run has ended."""
        write_text(self.path / DONE, "")


@contextmanager
def opened(path: Path, run: Run) -> Iterator[RunFolder]:
    """Yield the run's folder, locked; refuse that of another run, or one that is in use."""
    _refuse_foreign(path)
    busy = InUse(f"{path} is in use by another process; wait for it, or choose another --out")
    with hold_lock(path / LOCK, busy, PATIENCE):
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
    """Return whether a process holds the run's folder at this moment."""
    return is_locked(path / LOCK)


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose another --out")
    if not path.exists() or (path / RUN).exists():
        return
    # A run may have failed before it was described, or its description was moved away.
    names = sorted(p.name for p in path.iterdir() if p.name not in (LOCK, FAILED, BEGUN))
    strange = [name for name in names if not name.startswith(".")]
    if strange:
        raise ValueError(
            f"{path} holds {', '.join(strange[:5])} and is no folder of a run; choose another --out"
        )


def _differences(found: Run, wanted: Run) -> str:
    theirs, ours = _flat(found), _flat(wanted)
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return "; ".join(f"{key} {theirs.get(key)!r}, not {ours.get(key)!r}" for key in keys[:3])


def _flat(run: Run) -> dict[str, Any]:
    values = run.canonical()
    protocol, hparams = values.pop("protocol"), values.pop("hparams")
    return {**values, **hparams, **protocol}


PREDICTIONS, CONFUSION = "predictions.jsonl", "confusion.json"


def write_predictions(
    folder: RunFolder,
    dataset: DomainDataset,
    parts: Mapping[SplitKey, EvaluationSet],
    found: dict[SplitKey, Outcome],
) -> None:
    """Write what the model says of every image that was evaluated, and how it confuses classes."""
    lines: list[str] = []
    confusion: dict[str, dict[str, Any]] = {}
    for (domain, split), outcome in found.items():
        for k, index in enumerate(parts[domain, split].indices.tolist()):
            line: dict[str, Any] = {"domain": domain, "split": split, "index": index}
            if not dataset.in_memory:
                line["file"] = dataset[domain].files[index].name
            line["label"] = dataset.classes[int(outcome.labels[k])]
            line["prediction"] = dataset.classes[int(outcome.predictions[k])]
            line["probability"] = float(outcome.confidences[k])
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        table = outcome.confusion(len(dataset.classes)).tolist()
        confusion.setdefault(domain, {})[split] = table
    write_text(folder.path / PREDICTIONS, "".join(lines))
    write_json(folder.path / CONFUSION, {"classes": list(dataset.classes), "counts": confusion})
