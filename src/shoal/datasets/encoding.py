"""Encoding: numbers of a table as they are, categories as one column for each of their values."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..choices import nearest
from ..escapes import brief
from .arrow_columns import ArrowColumn, spellings
from .folders import first_few

Array = np.ndarray[Any, Any]
# The values of a column: plain ones, those of a file, or an array of numbers.
Values = Sequence[Any] | Array

# Texts that mean a missing value.
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
SPELLINGS = spellings(sorted(MISSING))
# With more different texts than this, most of them in one or two rows, a model learns the rows.
CATEGORIES = 50
# A column with more different numbers than NUMBERS, and a text in fewer than one of STRAY rows, is
# a column of numbers with mistakes.
NUMBERS, STRAY = 10, 10
# The largest number that a vector can hold.
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, kw_only=True)
class SeenRange:
    """The numbers of a column in training: their extremes, and the range of all but 2 % of them."""

    min: float
    max: float
    q01: float
    q99: float

    @staticmethod
    def of(numbers: Array) -> "SeenRange":
        """Return the range of these numbers, of which none is missing."""
        low, high = np.quantile(numbers, (0.01, 0.99)).tolist()
        return SeenRange(min=float(numbers.min()), max=float(numbers.max()), q01=low, q99=high)

    def far(self, numbers: Array) -> Array:
        """Return which numbers are unlike all in training; a missing one is not.

        They lie outside of the extremes by more than the width of the middle 98 %, which a few
        mistakes in training do not stretch.
        """
        margin = self.q99 - self.q01 or self.max - self.min
        found: Array = (numbers < self.min - margin) | (numbers > self.max + margin)
        return found

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "SeenRange":
        """Return the range of these plain values."""
        return SeenRange(**{key: float(one) for key, one in values.items()})

    def __str__(self) -> str:
        return f"{self.min:.6g} to {self.max:.6g}"


@dataclass(frozen=True)
class Column:
    """The encoding of one column.

    A column of numbers becomes one column, and a second one that is 1 for missing values if there
    were any. A category is 1 in the column of its value; an unknown value is 0 in all of them.
    ``seen`` is the range of its numbers in training, None if it is not known.
    """

    name: str
    values: tuple[str, ...] | None = None
    gaps: bool = False
    seen: SeenRange | None = None

    @property
    def width(self) -> int:
        """The number of columns that it becomes."""
        return 1 + self.gaps if self.values is None else len(self.values)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns that it becomes, such as "colour = red"."""
        if self.values is not None:
            return tuple(f"{self.name} = {value or 'missing'}" for value in self.values)
        return (self.name, f"{self.name} = missing")[: self.width]

    def encode(self, column: Values) -> Tensor:
        """Return float32 ``[n, d]``; a missing number is NaN."""
        found = torch.zeros(len(column), self.width)
        if wrong := self.write(column, found):
            raise ValueError(next(iter(wrong.values())))
        return found

    def write(self, column: Values, vectors: Tensor, order: Array | None = None) -> dict[int, str]:
        """Write the encoded column to ``vectors``; return why some rows cannot be, by their number.

        Args:
            vectors: zeros ``[n, d]``, such as a part of a larger tensor.
            order: the row of the column that each vector is of; by default its own.
        """
        out = vectors.numpy()
        if self.values is None:
            numbers, texts = _read_numbers(column)
            numbers = numbers if order is None else numbers[order]
            with np.errstate(over="ignore"):  # what is too large is refused
                out[:, 0] = numbers
            if self.gaps:
                out[:, 1] = np.isnan(numbers)
            return {row: self._refusal(column[row]) for row in texts.tolist()}
        place = {value: k for k, value in enumerate(self.values)}
        different, rows = distinct(column)
        # Unknown values have no place.
        places = np.array([place.get(_text(value), -1) for value in different], dtype=np.int64)
        mine = places[rows] if order is None else places[rows[order]]
        known = np.flatnonzero(mine >= 0)
        out[known, mine[known]] = 1
        return {}

    def shrunk(self, column: Values) -> Values:
        """Return all of a column that ``write`` needs: float32, or a number for every category."""
        if self.values is None:
            return _read_numbers(column)[0].astype(np.float32)
        return column.as_numbered() if isinstance(column, ArrowColumn) else column

    def _refusal(self, given: Any) -> str:
        value = value_or_none(given)
        point = "; write it with a point" if _has_comma(value) else ""
        return f"column {self.name!r} must hold numbers{_limit(value)}, got {value!r}{point}"

    def unseen(self, column: Values) -> list[int]:
        """Return the rows whose category is unknown; a missing value is not counted."""
        if self.values is None:
            return []
        seen = {"", *self.values}
        different, rows = distinct(column)
        new = np.array([_text(value) not in seen for value in different], dtype=bool)
        found: list[int] = np.flatnonzero(new[rows]).tolist()
        return found

    def unusual(self, column: Values) -> dict[int, str]:
        """Return the rows that are unlike all in training, and a few words about each.

        Their number is far from all, or they lack a value and no row in training did. A number
        that is no number is an error elsewhere.
        """
        if self.values is not None:
            return {} if "" in self.values else self._lacking(_is_empty(column))
        if self.seen is None:
            return {}
        numbers, texts = _read_numbers(column)
        rows: list[int] = np.flatnonzero(self.seen.far(numbers)).tolist()
        found = {
            row: f"{self.name} is {numbers[row]:.6g}, in training it was {self.seen}"
            for row in rows
        }
        if self.gaps:
            return found
        numbers[texts] = 0.0
        return found | self._lacking(np.isnan(numbers))

    def _lacking(self, empty: Array) -> dict[int, str]:
        rows: list[int] = np.flatnonzero(empty).tolist()
        return dict.fromkeys(rows, f"{self.name} is missing, in training it never was")

    def as_json(self) -> dict[str, Any]:
        """Return the column as plain values."""
        if self.values is not None:
            return {"name": self.name, "kind": "category", "values": list(self.values)}
        seen = {} if self.seen is None else {"seen": asdict(self.seen)}
        return {"name": self.name, "kind": "number", "gaps": self.gaps, **seen}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Column":
        """Return the column that ``as_json`` wrote."""
        name, kind = values["name"], values["kind"]
        if not isinstance(name, str) or kind not in ("number", "category"):
            raise ValueError(f"{brief(name)} is no column of the kind {brief(kind)}")
        if kind == "category":
            texts = values["values"]
            if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
                raise ValueError(f"the values of {name!r} must be texts, got {brief(texts)}")
            if len(set(texts)) < len(texts):
                raise ValueError(f"the column {name!r} has a value twice")
            return Column(name, tuple(texts))
        if not isinstance(values["gaps"], bool):
            raise ValueError(f"the gaps of {name!r} must be true or false")
        seen = None
        if "seen" in values:
            seen = SeenRange.from_json(values["seen"])
        return Column(name, None, values["gaps"], seen)


@dataclass(frozen=True)
class Encoding:
    """The encoding of rows as vectors.

    Args:
        columns: those used.
        left_out: those skipped as uninformative.
        ignored: all columns of the training table that are not used, for whatever reason; None if
            they are not known.
    """

    columns: tuple[Column, ...]
    left_out: tuple[str, ...] = ()
    ignored: tuple[str, ...] | None = None

    def __call__(
        self, table: Mapping[str, Values], where: str, order: Array | None = None
    ) -> Tensor:
        """Return the rows as float32 ``[n, d]``.

        Args:
            where: names the table in an error.
            order: the row of the table that each vector is of; by default its own.
        """
        if unlike := self.mismatch(table, where):
            raise ValueError(unlike)
        vectors, wrong = self._write(table, order)
        for why in wrong.values():
            raise ValueError(why)
        return vectors

    def _write(
        self, table: Mapping[str, Values], order: Array | None = None
    ) -> tuple[Tensor, dict[int, str]]:
        """Return all rows as vectors, and why some cannot be; of these, the vectors mean nothing.

        The first column that is wrong comes first, and says why.
        """
        rows = len(table[self.columns[0].name])
        vectors, wrong = torch.zeros(rows, sum(one.width for one in self.columns)), dict[int, str]()
        for column, places in zip(self.columns, self.places(), strict=True):
            mine = vectors[:, places.start : places.stop]
            for row, why in column.write(table[column.name], mine, order).items():
                wrong.setdefault(row, why)
        return vectors, wrong

    def places(self) -> list[range]:
        """Return the places of the columns in a vector, one after the other."""
        ends = accumulate(column.width for column in self.columns)
        return [
            range(end - column.width, end) for column, end in zip(self.columns, ends, strict=True)
        ]

    def positions(self) -> dict[str, range]:
        """Return the places of every column in a vector."""
        return {column.name: mine for column, mine in zip(self.columns, self.places(), strict=True)}

    def values_of(self, vector: Tensor) -> dict[str, str]:
        """Return the values of a row as text, by column; an unknown category is "other"."""
        found = {}
        for column, places in zip(self.columns, self.places(), strict=True):
            numbers = vector[places.start : places.stop].tolist()
            if column.values is None:
                found[column.name] = "missing" if math.isnan(numbers[0]) else f"{numbers[0]:.6g}"
            else:
                named = [value for value, one in zip(column.values, numbers, strict=True) if one]
                found[column.name] = (named[0] or "missing") if named else "other"
        return found

    def without(self, names: Collection[str]) -> "Encoding":
        """Return the encoding without these columns, which then are ignored in a table."""
        kept = tuple(column for column in self.columns if column.name not in names)
        ignored = None if self.ignored is None else (*self.ignored, *names)
        return replace(self, columns=kept, ignored=ignored)

    def mismatch(self, names: Iterable[str], where: str) -> str | None:
        """Return a message that names all missing and unknown columns; None if there are none.

        Unknown are those that the training table did not have. The order does not matter.
        """
        given, used = dict.fromkeys(names), {column.name: None for column in self.columns}
        others = [name for name in given if name not in used]
        # A column without a name is the number of the row, which programs add to tables.
        known = {"", *(others if self.ignored is None else self.ignored)}
        unknown = [name for name in others if name not in known]
        missing = [name for name in used if name not in given]
        hints = {name: nearest(name, others) for name in missing}
        parts = []
        if missing:
            lacking = [f"{one} (is it {near!r}?)" if near else one for one, near in hints.items()]
            parts.append(f"lacks the column{'s' * (len(missing) > 1)} {', '.join(lacking)}")
        if unknown:
            few = "a column that was" if len(unknown) == 1 else "columns that were"
            parts.append(f"has {few} not in training: {', '.join(unknown)}")
        if not parts:
            return None
        return f"{where} {' and '.join(parts)}; the model takes {first_few(list(used))}"

    def encode_readable(
        self, table: Mapping[str, Values], where: str, unread: Mapping[int, str], first: int = 0
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the readable rows as float32 ``[n, d]``, and the reasons against the others.

        Args:
            unread: the reasons why some rows are not in the table, by their number from 0.
            first: the number of the table's first row in a file, of which it is a part.
        """
        vectors, unsuitable = self._write(table)
        wrong = {**unsuitable, **unread}
        reasons = {row: f"{where}: row {first + row + 1}: {why}" for row, why in wrong.items()}
        if wrong:
            good = torch.ones(len(vectors), dtype=torch.bool)
            good[list(wrong)] = False
            vectors = vectors[good]
        return vectors, reasons

    def unseen(self, table: Mapping[str, Values]) -> dict[int, tuple[str, ...]]:
        """Return the columns with an unknown category, for every row that has any."""
        found = dict[int, tuple[str, ...]]()
        for column in self.columns:
            for row in column.unseen(table[column.name]):
                found[row] = (*found.get(row, ()), column.name)
        return found

    def unusual(self, table: Mapping[str, Values]) -> dict[int, tuple[str, ...]]:
        """Return a few words about each value unlike all in training, by row."""
        found = dict[int, tuple[str, ...]]()
        for column in self.columns:
            for row, words in column.unusual(table[column.name]).items():
                found[row] = (*found.get(row, ()), words)
        return found

    def as_json(self) -> list[dict[str, Any]]:
        """Return the columns as plain values."""
        return [column.as_json() for column in self.columns]

    @staticmethod
    def from_json(values: Sequence[Mapping[str, Any]]) -> "Encoding":
        """Return the encoding that ``as_json`` wrote."""
        columns = tuple(Column.from_json(one) for one in values)
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("two columns have one name")
        return Encoding(columns)

    def as_card(self) -> dict[str, Any]:
        """Return the encoding as the inputs of a model's card."""
        known = {} if self.ignored is None else {"ignored": list(self.ignored)}
        return {"kind": "table", "columns": self.as_json(), **known}

    @staticmethod
    def from_card(
        inputs: Mapping[str, Any], shape: Sequence[int] | None = None
    ) -> "Encoding | None":
        """Return the encoding of a card's inputs; None if they are not rows of a table.

        Args:
            shape: what the model takes, which the columns must become.
        """
        if not inputs.get("columns"):
            return None
        ignored = tuple(map(str, inputs["ignored"])) if "ignored" in inputs else None
        found = replace(Encoding.from_json(inputs["columns"]), ignored=ignored)
        width = sum(column.width for column in found.columns)
        if shape is not None and [width] != list(shape):
            raise ValueError(f"columns of {width} numbers for the shape {brief(shape)}")
        return found


def infer_encoding(
    features: Mapping[str, Values],
    others: Iterable[str] = (),
    categories: Collection[str] = (),
) -> Encoding:
    """Return the encoding of a table; raise if there is nothing to learn from.

    Args:
        features: the columns that a model may see.
        others: the names of the others, such as that of the class.
        categories: the names of columns whose numbers are categories, too.
    """
    found = {name: infer_column(name, one, name in categories) for name, one in features.items()}
    return encoding_of(found, others)


def encoding_of(found: Mapping[str, Column | None], others: Iterable[str] = ()) -> Encoding:
    """Return the encoding of these columns, as ``infer_column`` found them; raise if all are None.

    Args:
        others: the names of columns that a model must not see.
    """
    columns = tuple(column for column in found.values() if column is not None)
    skipped = [name for name, column in found.items() if column is None]
    left_out = tuple(name or "one without a name" for name in skipped)
    if not columns:
        dropped = f"; skipped as uninformative: {first_few(left_out)}" if left_out else ""
        raise ValueError(
            "there is no column to learn from, apart from class and domain: it needs numbers or "
            f"categories that differ between rows and recur in other rows{dropped}"
        )
    return Encoding(columns, left_out, (*others, *skipped))


def infer_column(name: str, values: Values, category: bool = False) -> Column | None:
    """Return the encoding of a column; None if it tells nothing about other rows.

    A column of texts is a ``category`` anyway.
    """
    if not name:
        return None
    if category:
        return _infer_category(name, distinct(values))
    numbers, texts = _read_numbers(values)
    if len(texts):
        given = distinct(values)
        _check_texts(name, given)
        return _infer_category(name, given)
    present = numbers[~np.isnan(numbers)]
    if not len(present) or _counts_rows(numbers):
        return None
    gaps = len(present) < len(numbers)
    varies = gaps or (present != present[0]).any()
    return Column(name, None, gaps, SeenRange.of(present)) if varies else None


def _infer_category(name: str, given: "Distinct") -> Column | None:
    different = sorted({_text(value) for value in given.values})
    rows = len(given.places)
    if len(different) == 1 or (len(different) > CATEGORIES and 2 * len(different) > rows):
        return None
    return Column(name, tuple(different))


class Distinct(NamedTuple):
    """The different values of a column, and the place of every row's value among them ``[n]``."""

    values: Values
    places: Array


def distinct(values: Values) -> Distinct:
    """Return the different values of a column; equal ones of different types are different."""
    if isinstance(values, ArrowColumn):
        return Distinct(*values.distinct())
    if len({type(value) for value in values} - {type(None)}) <= 1:  # 1 and True are not alike
        known: dict[Any, int] = {}
        try:
            places = [known.setdefault(value, len(known)) for value in values]
        except TypeError:  # lists, for example, cannot be looked up
            pass
        else:
            return Distinct(list(known), np.array(places, dtype=np.int64))
    return Distinct(values, np.arange(len(values)))


def value_or_none(value: Any) -> Any:
    """Return the value, or None if it is a sign of a missing value."""
    if isinstance(value, str):
        value = value.strip()
        return None if value.lower() in MISSING else value
    try:
        return value if value == value else None  # NaN and NaT differ from themselves
    except TypeError:  # pandas' NA cannot be compared
        return None
    except ValueError:  # an array
        return value


def _read_numbers(column: Values) -> tuple[Array, Array]:
    """Return a column's numbers, NaN where there are none, and the rows with something else."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        numbers = column.astype(np.float64)
        return numbers, np.flatnonzero(np.abs(numbers) > LARGEST)
    if not isinstance(column, ArrowColumn):
        return _numbers_among(distinct(column))
    parts, texts, row = [], [], 0
    for piece in column.pieces():
        found = piece.plain_numbers(SPELLINGS, LARGEST)
        if found is None:
            found, rows = _numbers_among(distinct(piece))
            texts.append(row + rows)
        parts.append(found)
        row += len(found)
    numbers = np.concatenate(parts) if parts else np.zeros(0)
    if column.is_float:
        numbers[np.isnan(numbers)] = math.nan  # a missing value has no sign
        if len(zeros := np.flatnonzero(numbers == 0)):
            numbers[zeros] = numbers[zeros[0]]  # equal values are one value: that of the first row
    return numbers, np.concatenate(texts) if texts else np.zeros(0, dtype=np.int64)


def _numbers_among(column: Distinct) -> tuple[Array, Array]:
    given = [value_or_none(value) for value in column.values]
    found = [None if value is None else _number(value) for value in given]
    numbers = np.array([math.nan if one is None else one for one in found], dtype=np.float64)
    texts = [one is None and value is not None for one, value in zip(found, given, strict=True)]
    rows = np.flatnonzero(np.array(texts, dtype=bool)[column.places])
    return numbers[column.places], rows


def _counts_rows(numbers: Array) -> bool:
    """Return whether a column is the number of the row, which programs add to tables."""
    rows = np.arange(len(numbers))
    return len(rows) > 2 and any((numbers == rows + first).all() for first in (0, 1))


def _check_texts(name: str, given: Distinct) -> None:
    """Raise if a few texts would turn a column of numbers into one of categories."""
    values = [value_or_none(value) for value in given.values]
    is_number = [value is not None and _number(value) is not None for value in values]
    kinds = list(zip(values, is_number, strict=True))
    is_text = np.array([value is not None and not number for value, number in kinds], dtype=bool)
    rows = np.flatnonzero(is_text[given.places])
    texts = [value for value, text in zip(values, is_text, strict=True) if text]
    numbers = {value for value, number in kinds if number}
    row, value = int(rows[0]) + 1, values[given.places[rows[0]]]
    value = value.item() if isinstance(value, np.generic) else value
    if all(map(_has_comma, texts)):
        raise ValueError(
            f"column {name!r}, row {row} has a comma in its number, {value!r}; write it with a "
            "point"
        )
    too_large = all(_limit(v) for v in texts)
    if too_large or (len(numbers) > NUMBERS and STRAY * len(rows) < len(given.places)):
        raise ValueError(
            f"column {name!r} has numbers{_limit(value)}, but {value!r} in row {row}; correct it, "
            f"leave it empty, or leave out the column (shoal fit: --leave-out {quote(name)})"
        )


def _has_comma(value: Any) -> bool:
    """Return whether a text is a number with a comma in place of its point."""
    return isinstance(value, str) and re.fullmatch(r"[-+]?\d+,\d+", value) is not None


def _number(value: Any) -> float | None:
    found = _as_float(value)
    return found if found is not None and abs(found) <= LARGEST else None


def _limit(value: Any) -> str:
    """Return the limit of numbers, for an error, if this one is beyond it; otherwise nothing."""
    found = _as_float(value)
    return f" of {LARGEST:.2g} at most" if found is not None and abs(found) > LARGEST else ""


def _as_float(value: Any) -> float | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 300 digits
        return math.inf
    except (TypeError, ValueError):
        return None


def _is_empty(column: Values) -> Array:
    """Return which values of a column are missing."""
    different, places = distinct(column)
    empty: Array = np.array([not _text(value) for value in different], dtype=bool)[places]
    return empty


def _text(value: Any) -> str:
    found = value_or_none(value)
    return "" if found is None else str(found)
