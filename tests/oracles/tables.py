"""Tables, slowly: a CSV file read as a whole by Python's csv, and every value looked at alone."""

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.datasets.encoding import LARGEST, MISSING, Column, SeenRange


def read_csv(path: Path, wrong: dict[int, str] | None = None) -> dict[str, list[Any]]:
    """Return the columns of a CSV file."""
    lines = list(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
    first = lines[0] if lines else ""
    reader = csv.reader(lines, delimiter=max(",;\t|", key=first.count), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise ValueError(f"{path} has two columns {twice[0]!r}; rename or remove one of them")
        rows: list[Sequence[str | None]] = []
        for row in filter(None, reader):
            if len(row) == len(header):
                rows.append(row)
                continue
            why = f"line {reader.line_num} must have {len(header)} fields, got {len(row)}"
            if wrong is None:
                raise ValueError(f"{path}: {why}")
            wrong[len(rows)] = why
            rows.append([None] * len(header))
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num} is not CSV: {error}") from error
    if not rows or not header:
        raise ValueError(f"{path} has no rows")
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def present(value: Any) -> Any:
    """Return a value of a file, or None if it is missing."""
    if isinstance(value, str):
        return None if value.strip().lower() in MISSING else value.strip()
    return None if value is None or value != value else value


def number(value: Any) -> float | None:
    """Return the number that a value is, if it is one that a vector can hold."""
    if isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) <= LARGEST else None


def infer_column(name: str, values: Sequence[Any]) -> Column | None:
    """Return the encoding of a column; raise ValueError for numbers with a few texts."""
    given = [present(value) for value in values]
    texts = [value for value in given if value is not None and number(value) is None]
    if texts:
        numbers = {value for value in given if value is not None and number(value) is not None}
        commas = all(isinstance(one, str) and re.fullmatch(r"[-+]?\d+,\d+", one) for one in texts)
        large = all(_too_large(one) for one in texts)
        if commas or large or (len(numbers) > 10 and 10 * len(texts) < len(values)):
            raise ValueError(f"row {given.index(texts[0]) + 1}")
        different = sorted({"" if value is None else str(value) for value in given})
        many = len(different) > 50 and 2 * len(different) > len(values)
        return None if len(different) == 1 or many else Column(name, tuple(different))
    found = [math.nan if value is None else number(value) for value in given]
    known = np.array([one for one in found if one == one])
    counts = len(found) > 2 and any(
        found == list(range(first, first + len(found))) for first in (0, 1)
    )
    if not len(known) or counts:
        return None
    gaps = len(known) < len(found)
    if not gaps and len(set(known.tolist())) == 1:
        return None
    return Column(name, None, gaps, SeenRange.of(known))


def _too_large(value: Any) -> bool:
    try:
        return abs(float(value)) > LARGEST
    except (TypeError, ValueError):
        return False


def encode(column: Column, values: Sequence[Any]) -> torch.Tensor:
    """Return float32 ``[n, d]`` of a column in its own encoding."""
    rows = []
    for value in map(present, values):
        if column.values is None:
            one = math.nan if value is None else number(value)
            rows.append([one, float(value is None)] if column.gaps else [one])
        else:
            text = "" if value is None else str(value)
            rows.append([float(text == mine) for mine in column.values])
    return torch.tensor(rows, dtype=torch.float64).float()


def equal_groups(columns: Sequence[np.ndarray[Any, Any]]) -> list[list[int]]:
    """Return the places of rows that are equal, for every row that occurs more than once."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        key = tuple("gap" if one != one else one for one in row)
        places.setdefault(key, []).append(place)
    return [found for found in places.values() if len(found) > 1]
