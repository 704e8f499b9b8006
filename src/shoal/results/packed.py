"""Packed records: the numbers of a file of records in one array, and their layout only once."""

import json
import marshal
import math
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, repeat
from typing import Any

from ..documents import parse_json

# Whole numbers of at most this many digits are exact as floats.
EXACT = 15
# The names that lead to a number, such as ("accuracy", "photo", "held_out").
Place = tuple[str, ...]


class Layout:
    """A record without its numbers: in ``text``, null stands for a float and 0 for an integer."""

    __slots__ = ("columns", "template", "text", "whole", "width")

    def __init__(self, text: str) -> None:
        self.text, self.template = text, parse_json(text, "a layout")
        self.columns: dict[Place, int] = {}
        self.whole: list[int] = []  # the columns of integers
        self.width = 0
        self._number(self.template, ())

    def _number(self, template: Any, place: Place) -> None:
        """Give every number its column, in the order of the text."""
        if isinstance(template, dict):
            for name, value in template.items():
                self._number(value, (*place, name))
        elif isinstance(template, list):
            for value in template:
                self._number(value, ())
        elif _is_number(template):
            if place:
                self.columns[place] = self.width
            if template is not None:
                self.whole.append(self.width)
            self.width += 1

    def example(self) -> Any:
        """Return a record of this layout, with zeros."""
        return _fill(self.template, repeat(0.0))

    def means(self, part: str, split: str, without: Sequence[str]) -> tuple[int, ...]:
        """Return the columns of a split in a part of the record, without these domains."""
        return tuple(
            column
            for place, column in self.columns.items()
            if len(place) == 3 and (place[0], place[2]) == (part, split) and place[1] not in without
        )


def _is_number(template: Any) -> bool:
    return template is None or (template == 0 and type(template) is int)


def _fill(template: Any, numbers: Iterator[float]) -> Any:
    """Return the record with these numbers."""
    if isinstance(template, dict):
        return {name: _fill(value, numbers) for name, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, numbers) for value in template]
    if not _is_number(template):
        return template
    return next(numbers) if template is None else int(next(numbers))


class Shape:
    """The layouts of all records of a file, and where the numbers of each begin."""

    __slots__ = ("layouts", "means", "shares", "starts", "whole", "width")

    def __init__(self, layouts: tuple[Layout, ...], starts: Sequence[int] | None = None) -> None:
        *self.starts, self.width = accumulate((one.width for one in layouts), initial=0)
        self.starts = list(starts) if starts is not None else self.starts
        self.layouts = layouts
        both = zip(layouts, self.starts, strict=True)
        self.whole = [start + column for one, start in both for column in one.whole]
        # By part, split and domains: the numbers to average, for each record.
        self.means: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        # By parts: the places of all their numbers.
        self.shares: dict[tuple[str, ...], list[int]] = {}

    def numbers(self, part: str, split: str, without: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the places of what ``Layout.means`` finds, for each record."""
        key = (part, split, tuple(without))
        if key not in self.means:
            by_layout = {one: one.means(part, split, without) for one in set(self.layouts)}
            self.means[key] = [
                tuple(start + column for column in by_layout[one])
                for one, start in zip(self.layouts, self.starts, strict=True)
            ]
        return self.means[key]

    def places(self, *parts: str) -> list[int]:
        """Return the places of all numbers in these parts of the records."""
        if parts not in self.shares:
            by_layout = {
                one: [column for place, column in one.columns.items() if place[0] in parts]
                for one in set(self.layouts)
            }
            both = zip(self.layouts, self.starts, strict=True)
            found = [start + column for one, start in both for column in by_layout[one]]
            self.shares[parts] = found
        return self.shares[parts]


@cache
def layout_of(text: str) -> Layout:
    """Return the layout; equal texts share one."""
    return Layout(text)


@cache
def shape_of(layouts: tuple[Layout, ...]) -> Shape:
    """Return the shape of records that follow each other; files that look alike share one."""
    return Shape(layouts)


@cache
def part_of(shape: Shape, places: tuple[int, ...]) -> Shape:
    """Return the shape of some of the records, over the same numbers."""
    return Shape(tuple(shape.layouts[k] for k in places), tuple(shape.starts[k] for k in places))


class Packed(Sequence[dict[str, Any]]):
    """The records of a file as plain values, each made when it is asked for."""

    __slots__ = ("numbers", "shape")

    def __init__(self, shape: Shape, numbers: "array[float] | memoryview[float]") -> None:
        self.shape, self.numbers = shape, numbers

    def __len__(self) -> int:
        return len(self.shape.layouts)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.only(range(len(self))[place])
        layout, start = self.shape.layouts[place], self.shape.starts[place]
        return _fill(layout.template, iter(self.numbers[start : start + layout.width]))

    def only(self, places: Sequence[int]) -> "Packed":
        """Return some of the records, without a copy of their numbers."""
        return Packed(part_of(self.shape, tuple(places)), self.numbers)

    def are_shares(self, *parts: str) -> bool:
        """Return whether all numbers in these parts are shares between 0 and 1, or NaN."""
        # After a 0, NaN is neither the smallest nor the largest.
        found = [0.0, *map(self.numbers.__getitem__, self.shape.places(*parts))]
        return min(found) >= 0 and max(found) <= 1

    def are_whole(self) -> bool:
        """Return whether all numbers that stand for integers are such ones."""
        found = map(self.numbers.__getitem__, self.shape.whole)
        return all(number.is_integer() and abs(number) < 10**EXACT for number in found)

    def column(self, *place: str) -> list[float]:
        """Return one number of every record; NaN where a record lacks it."""
        both = zip(self.shape.layouts, self.shape.starts, strict=True)
        found = ((start, layout.columns.get(place)) for layout, start in both)
        return [math.nan if one is None else self.numbers[start + one] for start, one in found]


_KNOWN: dict[bytes, Layout] = {}


def pack(content: bytes) -> Packed | None:
    """Return the records of a file, one on each line; None if they cannot be packed exactly.

    That is so for text that is not UTF-8 or not JSON, for null, for whole numbers of many digits,
    and for an object that names a value twice.
    """
    found: list[str] = []

    def whole(digits: str) -> int:
        if len(digits) > EXACT:
            raise ValueError("it is not exact as a float")
        found.append(digits)
        return 0

    decode = json.JSONDecoder(
        parse_float=found.append,  # the template has None for a float
        parse_int=whole,
        parse_constant=found.append,
    ).decode
    layouts: list[Layout] = []
    numbers = array("d")
    try:
        for line in content.decode().rstrip("\n").split("\n"):
            # Unlike ==, these bytes tell 0 from false, and the order of names.
            template = decode(line)
            key = marshal.dumps(template, 2)
            if key not in _KNOWN:
                _KNOWN[key] = layout_of(json.dumps(template))
            layout = _KNOWN[key]
            if layout.width != len(found) or "null" in line:
                return None
            layouts.append(layout)
            numbers.extend(map(float, found))
            found.clear()
    except (ValueError, RecursionError):
        return None
    return Packed(shape_of(tuple(layouts)), numbers)
