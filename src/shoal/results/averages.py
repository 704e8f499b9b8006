"""Averages of weights as results: what runs recorded of them, each as a row of its own."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..catalogue import AVERAGES
from .records import Record, RunResult

# Next to the records of a run; it is not part of the run's identity.
AVERAGES_FILE = "averages.jsonl"


def averages_as_text(records: Iterable[Record]) -> str:
    """Return the content of the file."""
    return "".join(json.dumps(record.to_json()) + "\n" for record in records)


def read_averages(folder: Path) -> list[Record]:
    """Return what the run in this folder recorded of its averages; none if it has no such file."""
    path = folder / AVERAGES_FILE
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            record = Record.from_json(json.loads(line))
            known = record.extra["average"] in AVERAGES
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} has no record of an average in line {number} ({error!r}); delete the "
                "file to report the run without averages"
            ) from error
        if known:
            found.append(record)
    return found


def with_averages(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs, each followed by its averages as runs of a method such as "erm+sma"."""
    found = []
    for run in runs:
        found.append(run)
        recorded = [] if run.path is None else read_averages(run.path)
        for name in AVERAGES:
            mine = tuple(record for record in recorded if record.extra["average"] == name)
            if mine:
                found.append(replace(run, algorithm=f"{run.algorithm}+{name}", records=mine))
    return found
