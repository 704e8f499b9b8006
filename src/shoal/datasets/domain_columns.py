"""Domain columns: the columns of a table that name its domains, whole or as a month or year."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..choices import choose
from .encoding import Distinct, distinct, value_or_none

# One column, or several whose values together name a domain.
DomainColumns = str | Sequence[str]
# Between the values of several columns.
SEPARATOR = " / "


def _quarter(day: date) -> str:
    return f"{day.year:04}-Q{(day.month + 2) // 3}"


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"


# Names of parts of time, which sort in time.
UNITS: dict[str, Callable[[date], str]] = {
    "year": lambda day: f"{day.year:04}",
    "quarter": _quarter,
    "month": lambda day: f"{day.year:04}-{day.month:02}",
    "week": _week,
    "day": date.isoformat,
}
# Units that a date without a day, or without a month, can be read for.
OF_MONTHS, OF_YEARS = ("year", "quarter", "month"), ("year",)
# Seconds since 1970, from 2001 to 2099; also in thousandths, millionths and billionths.
EPOCH = (1_000_000_000, 4_102_444_800)
SCALES = (1, 10**3, 10**6, 10**9)
# Year, month, day and hour in digits, which could also be seconds of 2030 to 2036.
DIGITS = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])"


def as_list(columns: DomainColumns) -> list[str]:
    """Return one or several columns as a list; raise if there is none."""
    found = [columns] if isinstance(columns, str) else list(columns)
    if not found:
        raise ValueError("the domains need a column, got none; name one or several")
    return found


def split_unit(column: str, table: Mapping[str, Sequence[Any]]) -> tuple[str, str | None]:
    """Return the name of a column and the unit of time after its colon, if it has one.

    A column whose own name has a colon is itself.
    """
    name, colon, unit = column.rpartition(":")
    if not colon or column in table:
        return column, None
    if name in table or unit in UNITS:
        return name, choose("unit of time", unit, UNITS)
    return column, None


def domain_names(
    table: Mapping[str, Sequence[Any]], columns: DomainColumns, path: Path
) -> list[str]:
    """Return the domain of every row.

    Args:
        columns: names of columns, each with ``:year``, ``:quarter``, ``:month``, ``:week`` or
            ``:day`` after it if it holds dates.
        path: of the table, for errors.
    """
    parts = []
    for column in as_list(columns):
        name, unit = split_unit(column, table)
        parts.append(
            texts_of(table, name, path) if unit is None else _times(table, name, unit, path)
        )
    return [SEPARATOR.join(values) for values in zip(*parts, strict=True)]


def texts_of(table: Mapping[str, Sequence[Any]], column: str, path: Path) -> list[str]:
    """Return the values of a column as texts; raise if one is missing."""
    found = _present(table, column, path)
    # 1 and 1.0 are one class: a column of whole numbers with a gap is read as floats.
    texts = [
        str(int(value) if isinstance(value, float) and value.is_integer() else value)
        for value in found.values
    ]
    return [texts[place] for place in found.places.tolist()]


def _present(table: Mapping[str, Sequence[Any]], column: str, path: Path) -> Distinct:
    """Return the different values of a column, of which none is missing."""
    different, places = distinct(table[column])
    values = [value_or_none(value) for value in different]
    missing = np.array([value is None for value in values], dtype=bool)[places]
    if missing.any():
        raise ValueError(
            f"{path}: row {missing.argmax() + 1} has no {column}; fill it in or remove the row"
        )
    return Distinct(values, places)


def _times(table: Mapping[str, Sequence[Any]], column: str, unit: str, path: Path) -> list[str]:
    found, texts = _present(table, column, path), list[str]()
    for place, value in enumerate(found.values):
        try:
            texts.append(UNITS[unit](read_date(value, unit)))
        except ValueError as error:
            row = (found.places == place).argmax() + 1
            raise ValueError(f"{path}: column {column!r}, row {row}: {error}") from error
    return [texts[place] for place in found.places.tolist()]


def read_date(value: Any, unit: str) -> date:
    """Return the day of an ISO date or timestamp, or of seconds since 1970 (in UTC).

    A timestamp with a time zone counts with its own day. ``2024`` is enough for years, and
    ``2024-03`` for quarters and months.
    """
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if found := re.fullmatch(r"(\d{4})(?:-(\d\d?))?", text):
        return _partial_date(text, found[1], found[2], unit)
    if (seconds := _seconds(text)) is not None:
        return datetime.fromtimestamp(seconds, UTC).date()
    try:
        return datetime.fromisoformat(text).date()
    except ValueError as error:
        slashes = re.match(r"\d\d?[./]\d\d?[./]", text)
        order = "; day and month cannot be told apart" if slashes else ""
        raise ValueError(
            f"{text!r} is not a date{order}. Write it as 2024-03-31, as 2024-03-31 17:45, or as "
            "seconds since 1970"
        ) from error


def _partial_date(text: str, year: str, month: str | None, unit: str) -> date:
    if unit not in (OF_YEARS if month is None else OF_MONTHS):
        what = "a year" if month is None else "a month"
        raise ValueError(f"{text!r} is {what}, and a {unit} cannot be read from it")
    if int(year) == 0 or not 1 <= int(month or 1) <= 12:
        raise ValueError(f"{text!r} is not a date")
    return date(int(year), int(month or 1), 1)


def _seconds(text: str) -> float | None:
    """Return the seconds since 1970, if the text can be nothing else."""
    if not re.fullmatch(r"\d{10,19}(\.\d+)?", text) or re.match(DIGITS, text):
        return None
    for scale in SCALES:
        if EPOCH[0] <= float(text) / scale < EPOCH[1]:
            return float(text) / scale
    return None
