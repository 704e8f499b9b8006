"""One column of a table: numbers as they are, categories as one column for each of them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Texts that say that a value is missing.
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
# Of more different texts than this, where most stand in one or two rows, a model learns the rows.
CATEGORIES = 50
# A column of more different numbers than this is one of numbers, where but few rows have a text.
NUMBERS, STRAY = 10, 10
# What vectors can hold.
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Column:
    """How a column is encoded.

    Numbers are one column, and a second one that is 1 where they are missing, if they ever were;
    a category is 1 in the column of its value, and 0 everywhere where the value is unknown.
    """

    name: str
    values: tuple[str, ...] | None = None
    gaps: bool = False

    def encode(self, column: Sequence[Any]) -> Tensor:
        """Return float32 ``[n, d]``; a missing number is NaN."""
        if self.values is None:
            return self._numbers(column)
        place = {value: k for k, value in enumerate(self.values)}
        found = torch.zeros(len(column), len(self.values))
        for row, value in enumerate(column):
            k = place.get(_text(value))
            if k is not None:
                found[row, k] = 1
        return found

    def _numbers(self, column: Sequence[Any]) -> Tensor:
        numbers = []
        for value in map(known, column):
            number = math.nan if value is None else _number(value)
            if number is None:
                raise ValueError(
                    f"column {self.name!r} must hold numbers{_limits(value)}, got {value!r}"
                )
            numbers.append(number)
        found = torch.tensor(numbers, dtype=torch.float32)[:, None]
        return torch.cat([found, found.isnan().float()], 1) if self.gaps else found

    def unseen(self, column: Sequence[Any]) -> list[int]:
        """Return the rows whose category is none of the known ones; a missing one is none."""
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
        """Return what ``as_json`` wrote."""
        if values["kind"] == "number":
            return Column(values["name"], None, values["gaps"])
        return Column(values["name"], tuple(values["values"]))


def column_of(name: str, values: Sequence[Any]) -> Column | None:
    """Return how a column is encoded; None where it says nothing about another row."""
    given = [known(value) for value in values]
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


def _counts_rows(values: Sequence[Any]) -> bool:
    """Return whether a column is the number of the row, as programs write it beside a table."""
    numbers = [None if value is None else _number(value) for value in values]
    return len(numbers) > 2 and any(
        all(number == row for row, number in enumerate(numbers, first)) for first in (0, 1)
    )


def _check_texts(name: str, values: Sequence[Any]) -> None:
    """Raise where a few texts would turn a column of numbers into one of categories."""
    texts = [(row, v) for row, v in enumerate(values, 1) if v is not None and _number(v) is None]
    numbers = {v for v in values if v is not None and _number(v) is not None}
    if all(isinstance(v, str) and re.fullmatch(r"[-+]?\d+,\d+", v) for _, v in texts):
        raise ValueError(
            f"column {name!r}, row {texts[0][0]} has a comma in its number, {texts[0][1]!r}; write "
            "it with a point"
        )
    too_large = all(_limits(v) for _, v in texts)
    if too_large or (len(numbers) > NUMBERS and STRAY * len(texts) < len(values)):
        row, value = texts[0]
        raise ValueError(
            f"column {name!r} has numbers{_limits(value)}, but {value!r} in row {row}; correct it, "
            f"leave it empty, or leave the column out: --leave-out {name}"
        )


def known(value: Any) -> Any:
    """Return the value, or None where it says that it is missing."""
    if isinstance(value, str):
        value = value.strip()
        return None if value.lower() in MISSING else value
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _number(value: Any) -> float | None:
    found = _as_float(value)
    return found if found is not None and abs(found) <= LARGEST else None


def _limits(value: Any) -> str:
    """Return how large numbers may be, for an error; nothing where this one is none at all."""
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
    found = known(value)
    return "" if found is None else str(found)


@dataclass(frozen=True)
class Encoding:
    """How a row becomes a vector: its columns, and those that say nothing and are left out."""

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()

    def __call__(self, table: Mapping[str, Sequence[Any]], where: str) -> Tensor:
        """Return the rows as float32 ``[n, d]``; ``where`` names the table in an error."""
        if lacking := self.lacks(table, where):
            raise ValueError(lacking)
        return torch.cat([column.encode(table[column.name]) for column in self.columns], 1)

    def lacks(self, table: Mapping[str, Sequence[Any]], where: str) -> str | None:
        """Return which columns a table lacks; None where all are there."""
        missing = [column.name for column in self.columns if column.name not in table]
        if not missing:
            return None
        return f"{where} lacks the columns {', '.join(missing)}; it has {', '.join(table)}"

    def readable(
        self, table: Mapping[str, Sequence[Any]], where: str, unread: Mapping[int, str]
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the rows that can be read as float32 ``[n, d]``, and why others cannot.

        Args:
            unread: why some rows are not in the table, by their number from 0.
        """
        rows = [row for row in range(len(table[self.columns[0].name])) if row not in unread]
        good, wrong = [], dict(unread)
        try:
            good.append(self(_only(table, rows), where))
        except ValueError:  # now one by one
            for row in rows:
                try:
                    good.append(self(_only(table, [row]), where))
                except ValueError as error:
                    wrong[row] = str(error)
        told = {row: f"{where}: row {row + 1}: {why}" for row, why in wrong.items()}
        return torch.cat(good) if good else torch.empty(0), told

    def unseen(self, table: Mapping[str, Sequence[Any]]) -> dict[int, tuple[str, ...]]:
        """Return the columns whose category is unknown, of every row that has such."""
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
        """Return what ``as_json`` wrote."""
        return Encoding(tuple(Column.from_json(one) for one in values))


def _only(table: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    return {key: [values[row] for row in rows] for key, values in table.items()}
