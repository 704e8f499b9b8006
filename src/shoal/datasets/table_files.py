"""Tables as files: CSV or Parquet, read as columns by name."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .manifest import DELIMITERS, text_of

SUFFIXES = (".csv", ".tsv", ".parquet")


def is_table(path: Path) -> bool:
    """Return whether the suffix is a table's."""
    return path.suffix.lower() in SUFFIXES


def read_table(path: Path, wrong: dict[int, str] | None = None) -> dict[str, Sequence[Any]]:
    """Return the columns of a CSV or Parquet file by name; a missing value is None.

    Args:
        wrong: takes the lines of a CSV file that have too few or too many fields, by the number of
            their row from 0; all of such a row is missing. Without it they are an error.
    """
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    if path.suffix.lower() == ".parquet":
        table = _parquet(path)
    elif path.suffix.lower() in SUFFIXES:
        table = _csv(path, wrong)
    else:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    if not table or not len(next(iter(table.values()))):
        raise ValueError(f"{path} has no rows")
    return table


def _csv(path: Path, wrong: dict[int, str] | None) -> dict[str, Sequence[Any]]:
    lines = list(io.StringIO(text_of(path), newline=""))  # str.splitlines also splits within fields
    first = lines[0] if lines else ""
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
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
        raise ValueError(f"{path}: line {reader.line_num} is no CSV: {error}") from error
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename or remove one of them")
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files are read by pyarrow, which is not installed: "
            "pip install 'shoal[tables]'",
            name="pyarrow",
        ) from error
    try:
        found = pyarrow.parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
    return {name: found.column(name).to_pylist() for name in found.column_names}
