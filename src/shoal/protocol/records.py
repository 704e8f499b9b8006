"""What finished runs have recorded, read from their folders; needs no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN, RECORDS, DONE = "run.json", "records.jsonl", "done"
KEPT, HELD_OUT = "kept", "held_out"


@dataclass(frozen=True)
class Measured:
    """Accuracies and calibration errors after one update, by domain and split."""

    step: int
    accuracy: Mapping[str, Mapping[str, float]]
    calibration_error: Mapping[str, Mapping[str, float]]

    def of(self, domain: str, split: str) -> float:
        """Return an accuracy; NaN where it was not measured."""
        return self.accuracy.get(domain, {}).get(split, float("nan"))


@dataclass(frozen=True)
class Finished:
    """A run, by what selection groups runs by, and all that it recorded."""

    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    hparams: Mapping[str, Any]
    measured: tuple[Measured, ...]
    path: Path | None = None


def read_runs(folders: Sequence[Path]) -> list[Finished]:
    """Return the finished runs in these folders and below them, in the order of their paths.

    Runs that are not done are left out: their best record may be still to come.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        for path in sorted(folder.rglob(RUN)):
            if (path.parent / DONE).exists():
                found.append(_read(path.parent))
    return found


def _read(folder: Path) -> Finished:
    run = json.loads((folder / RUN).read_text("utf-8"))
    measured = tuple(
        Measured(record["step"], record["accuracy"], record.get("calibration_error", {}))
        for record in _lines(folder / RECORDS)
    )
    if not measured:
        raise ValueError(f"{folder / RECORDS} is empty, though the run is done; delete the folder")
    return Finished(
        run["dataset"],
        run["algorithm"],
        tuple(run["test_domains"]),
        run["trial"],
        run["draw"],
        run["hparams"],
        measured,
        folder,
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error})") from error
