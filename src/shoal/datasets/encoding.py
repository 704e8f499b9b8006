"""Encoding: numbers of a table as they are, categories as one column for each of their values."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

# Texts that mean a missing value.
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
# With more different texts than this, most of them in one or two rows, a model learns the rows.
CATEGORIES = 50
# A column with more different numbers than NUMBERS, and a text in fewer than one of STRAY rows, is
# a column of numbers with mistakes.
NUMBERS, STRAY = 10, 10
# The largest number that a vector can hold.
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Column:
    """The encoding of one column.

    A column of numbers becomes one column, and a second one that is 1 for missing values if there
    were any. A category is 1 in the column of its value; an unknown value is 0 in all of them.
    """

    name: str
    values: tuple[str, ...] | None = None
    gaps: bool = False

    @property
    def width(self) -> int:
        """The number of columns that it becomes."""
        return 1 + self.gaps if self.values is None else len(self.values)

    def encode(self, column: Sequence[Any]) -> Tensor:
        """Return float32 ``[n, d]``; a missing number is NaN."""
        if self.values is None:
            return self._encode_numbers(column)
        place = {value: k for k, value in enumerate(self.values)}
        found = torch.zeros(len(column), len(self.values))
        for row, value in enumerate(column):
            k = place.get(_text(value))
            if k is not None:
                found[row, k] = 1
        return found

    def _encode_numbers(self, column: Sequence[Any]) -> Tensor:
        numbers = []
        for value in map(value_or_none, column):
            number = math.nan if value is None else _number(value)
            if number is None:
                raise ValueError(
                    f"column {self.name!r} must hold numbers{_limit(value)}, got {value!r}"
                )
            numbers.append(number)
        found = torch.tensor(numbers, dtype=torch.float32)[:, None]
        return torch.cat([found, found.isnan().float()], 1) if self.gaps else found

    def unseen(self, column: Sequence[Any]) -> list[int]:
        """Return the rows whose category is unknown; a missing value is not counted."""
        if self.values is None:
            return []
        seen = {"", *self.values}
        return [row for row, value in enumerate(column) if _text(value) not in seen]

    def as_json(self) -> dict[str, Any]:
        """Return the column as plain values."""
        if self.values is None:
            return {"name": self.name, "kind": "number", "gaps": self.gaps}
        return {"name": self.name, "kind": "category", "values": list(self.values)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Column":
        """Return the column that ``as_json`` wrote."""
        if values["kind"] == "number":
            return Column(values["name"], None, values["gaps"])
        return Column(values["name"], tuple(values["values"]))


@dataclass(frozen=True)
class Encoding:
    """The encoding of rows as vectors: the columns used, and those skipped as uninformative."""

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()

    def __call__(self, table: Mapping[str, Sequence[Any]], where: str) -> Tensor:
        """Return the rows as float32 ``[n, d]``; ``where`` names the table in an error."""
        if lacking := self.lacks(table, where):
            raise ValueError(lacking)
        return torch.cat([column.encode(table[column.name]) for column in self.columns], 1)

    def positions(self) -> dict[str, range]:
        """Return the places of every column in a vector."""
        ends = list(accumulate(column.width for column in self.columns))
        return {
            column.name: range(end - column.width, end)
            for column, end in zip(self.columns, ends, strict=True)
        }

    def lacks(self, table: Mapping[str, Sequence[Any]], where: str) -> str | None:
        """Return a message about the columns that a table lacks; None if it has all."""
        missing = [column.name for column in self.columns if column.name not in table]
        if not missing:
            return None
        return f"{where} lacks the columns {', '.join(missing)}; it has {', '.join(table)}"

    def encode_readable(
        self, table: Mapping[str, Sequence[Any]], where: str, unread: Mapping[int, str]
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the readable rows as float32 ``[n, d]``, and the reasons against the others.

        Args:
            unread: the reasons why some rows are not in the table, by their number from 0.
        """
        rows = [row for row in range(len(table[self.columns[0].name])) if row not in unread]
        good, wrong = [], dict(unread)
        try:
            good.append(self(_take_rows(table, rows), where))
        except ValueError:  # now one by one
            for row in rows:
                try:
                    good.append(self(_take_rows(table, [row]), where))
                except ValueError as error:
                    wrong[row] = str(error)
        reasons = {row: f"{where}: row {row + 1}: {why}" for row, why in wrong.items()}
        return torch.cat(good) if good else torch.empty(0), reasons

    def unseen(self, table: Mapping[str, Sequence[Any]]) -> dict[int, tuple[str, ...]]:
        """Return the columns with an unknown category, for every row that has any."""
        found = dict[int, tuple[str, ...]]()
        for column in self.columns:
            for row in column.unseen(table[column.name]):
                found[row] = (*found.get(row, ()), column.name)
        return found

    def as_json(self) -> list[dict[str, Any]]:
        """Return the columns as plain values."""
        return [column.as_json() for column in self.columns]

    @staticmethod
    def from_json(values: Sequence[Mapping[str, Any]]) -> "Encoding":
        """Return the encoding that ``as_json`` wrote."""
        return Encoding(tuple(Column.from_json(one) for one in values))


def infer_column(name: str, values: Sequence[Any]) -> Column | None:
    """Return the encoding of a column; None if it tells nothing about other rows."""
    given = [value_or_none(value) for value in values]
    present = [value for value in given if value is not None]
    if not present:
        return None
    if not name or _counts_rows(given):
        return None
    numbers = {_number(value) for value in present}
    gaps = len(present) < len(given)
    if None not in numbers:
        return Column(name, None, gaps) if gaps or len(numbers) > 1 else None
    _check_texts(name, given)
    different = sorted({_text(value) for value in given})
    if len(different) == 1 or (len(different) > CATEGORIES and 2 * len(different) > len(given)):
        return None
    return Column(name, tuple(different))


def value_or_none(value: Any) -> Any:
    """Return the value, or None if it is a sign of a missing value."""
    if isinstance(value, str):
        value = value.strip()
        return None if value.lower() in MISSING else value
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _counts_rows(values: Sequence[Any]) -> bool:
    """Return whether a column is the number of the row, which programs add to tables."""
    numbers = [None if value is None else _number(value) for value in values]
    return len(numbers) > 2 and any(
        all(number == row for row, number in enumerate(numbers, first)) for first in (0, 1)
    )


def _check_texts(name: str, values: Sequence[Any]) -> None:
    """Raise if a few texts would turn a column of numbers into one of categories."""
    texts = [(row, v) for row, v in enumerate(values, 1) if v is not None and _number(v) is None]
    numbers = {v for v in values if v is not None and _number(v) is not None}
    if all(isinstance(v, str) and re.fullmatch(r"[-+]?\d+,\d+", v) for _, v in texts):
        raise ValueError(
            f"column {name!r}, row {texts[0][0]} has a comma in its number, {texts[0][1]!r}; write "
            "it with a point"
        )
    too_large = all(_limit(v) for _, v in texts)
    if too_large or (len(numbers) > NUMBERS and STRAY * len(texts) < len(values)):
        row, value = texts[0]
        raise ValueError(
            f"column {name!r} has numbers{_limit(value)}, but {value!r} in row {row}; correct it, "
            f"leave it empty, or ignore the column: --leave-out {name}"
        )


def _number(value: Any) -> float | None:
    found = _as_float(value)
    return found if found is not None and abs(found) <= LARGEST else None


def _limit(value: Any) -> str:
    """Return the limit of numbers, for an error, if this one is beyond it; otherwise nothing."""
    found = _as_float(value)
    return f" of {LARGEST:.2g} at most" if found is not None and abs(found) > LARGEST else ""


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 300 digits
        return math.inf
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    found = value_or_none(value)
    return "" if found is None else str(found)


def _take_rows(table: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    return {key: [values[row] for row in rows] for key, values in table.items()}
