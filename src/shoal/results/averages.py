"""Averages of weights as results: what runs recorded of them, each as a row of its own."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..catalogue import AVERAGES, method_and_average
from .records import AVERAGES_FILE, PackedRecords, Record, RunResult, read_records

# Next to the records of a run and of its averages: a folder with a model of each average. They are
# not part of the run's identity.
AVERAGED_MODELS = "averages"


def average_folder(run: Path, average: str) -> Path:
    """Return the folder of an average's models, of the run in a folder; "" for the run itself."""
    return run / AVERAGED_MODELS / average if average else run


def averages_as_text(records: Iterable[Record]) -> str:
    """Return the content of the file."""
    return "".join(json.dumps(record.to_json()) + "\n" for record in records)


def read_averages(folder: Path) -> list[Record]:
    """Return what the run in this folder recorded of its averages; none if it has no such file."""
    path = folder / AVERAGES_FILE
    if not path.exists():
        return []
    advice = "delete the file to report the run without averages"
    found = []
    for number, record in enumerate(read_records(path, advice), 1):
        if not isinstance(name := record.extra.get("average"), str):
            raise ValueError(f"{path} has no record of an average in line {number}; {advice}")
        if name in AVERAGES:
            found.append(record)
    return found


def by_average(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of each average that has any, by its name, in the order of tables."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.extra["average"], []).append(record)
    return {name: found[name] for name in AVERAGES if name in found}


def about_average(record: Record) -> dict[str, Any]:
    """Return what the card of a model says about its average; nothing if it is of none."""
    if "average" not in record.extra:
        return {}
    entries = {name: value for name, value in record.extra.items() if name != "average"}
    return {"average": {"name": record.extra["average"], **entries}}


def with_averages(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs, each followed by its averages as runs of a method such as "erm+sma"."""
    found = []
    for run in runs:
        found.append(run)
        for name, mine in _averages_of(run).items():
            row = f"{run.algorithm}+{name}"
            found.append(replace(run, algorithm=row, records=mine, averages=None))
    return found


def _averages_of(run: RunResult) -> Mapping[str, Sequence[Record]]:
    """Return the records of each of its averages, by name, in the order of tables."""
    if run.averages is None:
        recorded = [] if run.path is None else read_averages(run.path)
        return {name: tuple(mine) for name, mine in by_average(recorded).items()}
    rows = run.averages.rows
    names = [layout.template["average"] for layout in rows.shape.layouts]
    return {
        name: PackedRecords(rows.only([k for k, one in enumerate(names) if one == name]))
        for name in AVERAGES
        if name in names
    }


def without_averages(rows: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs that ``with_averages`` was given."""
    return [row for row in rows if not method_and_average(row.algorithm)[1]]
