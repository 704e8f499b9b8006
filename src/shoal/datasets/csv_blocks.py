"""CSV blocks: the rows of a CSV file, a block at a time, parsed by pyarrow or by Python's csv."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..files import TABLE_BYTES, open_file
from .arrow_columns import Array, ArrowColumn
from .manifest import DELIMITERS

# Bytes of a block. Many for pyarrow, which takes a moment for each; few for memory.
BLOCK = 2**24
# The most bytes of a line: some 100 for each of half a million columns.
LONGEST = 2**26
BOM = b"\xef\xbb\xbf"
QUOTE, NEWLINE = b'"'[0], b"\n"[0]
# Called with the number of bytes read, and their total.
ReadProgress = Callable[[int, int], object]


def open_table(path: Path) -> IO[bytes]:
    """Return the file of a table, open for reading."""
    return open_file(path, TABLE_BYTES)


def arrow_missing() -> bool:
    """Return whether pyarrow is not installed."""
    return find_spec("pyarrow") is None


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raise if two columns of a table have one name."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename or remove one of them")


class CsvBlocks:
    """The rows of a CSV file in blocks, each a mapping from columns to their texts.

    Python's ``csv`` in its strict mode says what a row is. Where pyarrow gives the same, it parses
    a block: all quotes begin or end a field, or are doubled inside of one, all rows have as many
    fields as the header, and no field is too long. Other blocks go through ``csv``, as do all if
    pyarrow is not installed.

    Args:
        wrong: receives the reasons why lines cannot be read (too few or too many fields), by the
            number of their row from 0; all values of such a row are None. Without it such a line
            is an error.
        progress: called after every block.
    """

    def __init__(
        self,
        file: IO[bytes],
        path: Path,
        wrong: dict[int, str] | None = None,
        progress: ReadProgress | None = None,
    ) -> None:
        self.path, self.wrong, self.progress = path, wrong, progress
        self._lines = _Lines(file, path)
        first = self._lines.first()
        self.delimiter = max(DELIMITERS, key=first.count)
        self._arrow = not arrow_missing()
        self._rows = 0
        header = self._parse(lambda reader: next(reader, []))
        self.names = [name.strip() for name in header]
        check_names(path, self.names)

    def __iter__(self) -> Iterator[dict[str, Sequence[Any]]]:
        """Yield the blocks that have rows."""
        while self._lines.fill():
            block = self._by_arrow() if self._arrow and self.names else None
            if block is None:
                block = self._by_python()
            if self.progress is not None:
                self.progress(self._lines.read, self._lines.total)
            if block and (rows := len(next(iter(block.values())))):
                self._rows += rows
                yield block

    def _by_arrow(self) -> dict[str, Sequence[Any]] | None:
        """Return the rows of the next block; None if they are for ``csv``."""
        import pyarrow
        import pyarrow.csv

        data = self._lines.rest
        end = plain_end(data, self.delimiter.encode(), self._lines.at_end)
        if not end:
            return None
        text = pyarrow.string()
        # pyarrow's threads may let go of the bytes when Python is already ending, where it aborts
        # if they are Python's.
        own = pyarrow.allocate_buffer(end)
        pyarrow.FixedSizeBufferWriter(own).write(memoryview(data)[:end])
        try:
            found = pyarrow.csv.read_csv(
                pyarrow.BufferReader(own),
                pyarrow.csv.ReadOptions(column_names=self.names, block_size=end + 1),
                pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(self.names, text)),
            )
        except pyarrow.ArrowInvalid:  # fields are lacking, for example; csv finds the line
            return None
        self._lines.skip(end)
        return {
            name: ArrowColumn(column)
            for name, column in zip(self.names, found.columns, strict=True)
        }

    def _by_python(self) -> dict[str, Sequence[Any]]:
        """Return the rows of the next block, at least one of the lines."""
        begin, rows = self._lines.done, list[Sequence[str | None]]()
        before = self._lines.number

        def collect(reader: Any) -> None:
            for row in reader:
                if len(row) == len(self.names):
                    rows.append(row)
                elif row:
                    line = before + reader.line_num
                    why = f"line {line} must have {len(self.names)} fields, got {len(row)}"
                    if self.wrong is None:
                        raise ValueError(f"{self.path}: {why}")
                    self.wrong[self._rows + len(rows)] = why
                    rows.append([None] * len(self.names))
                if self._lines.done - begin >= BLOCK:
                    break

        self._parse(collect)
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        if self._arrow:
            import pyarrow

            text = pyarrow.string()
            return {
                name: ArrowColumn(pyarrow.chunked_array([pyarrow.array(values, text)]))
                for name, values in zip(self.names, columns, strict=True)
            }
        return {name: list(values) for name, values in zip(self.names, columns, strict=True)}

    def _parse(self, work: Callable[[Any], Any]) -> Any:
        """Return ``work(reader)`` of a reader of the lines to come."""
        before = self._lines.number
        reader = csv.reader(self._lines, delimiter=self.delimiter, strict=True)
        try:
            return work(reader)
        except csv.Error as error:
            line = before + reader.line_num
            raise ValueError(f"{self.path}: line {line} is not CSV: {error}") from error


def plain_end(data: bytes, delimiter: bytes, at_end: bool) -> int:
    """Return how many of these bytes are whole rows that pyarrow reads as ``csv`` does.

    It is 0 if the first ones are not such rows.

    Args:
        data: begins with a row; every line ends with a line feed.
        at_end: whether the file ends here.
    """
    text = np.frombuffer(data, dtype=np.uint8)
    quotes = np.flatnonzero(text == QUOTE) if b'"' in data else np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(text == NEWLINE)
    if len(quotes):  # a line feed inside of quotes ends no row
        rows = rows[np.searchsorted(quotes, rows) % 2 == 0]
    end = len(data) if at_end else int(rows[-1]) + 1 if len(rows) else 0
    quotes = quotes[: np.searchsorted(quotes, end)]
    limit = csv.field_size_limit()
    if len(quotes) % 2 or _longest(rows, end) > limit:
        fields = np.flatnonzero((text[:end] == NEWLINE) | (text[:end] == delimiter[0]))
        if len(quotes) or _longest(fields, end) > limit:
            return 0
    # A doubled quote ends a quoted part and begins the next one.
    edges = [delimiter[0], NEWLINE, QUOTE]
    before = text[quotes[::2][quotes[::2] > 0] - 1]
    after = text[quotes[1::2][quotes[1::2] < end - 1] + 1]
    return end if np.isin(before, edges).all() and np.isin(after, edges).all() else 0


def _longest(places: Array, end: int) -> int:
    """Return the most bytes between two of these places, with the begin and the end."""
    return int(np.diff(places, prepend=-1, append=end).max())


class _Lines:
    """The lines of a file as Python reads a text: each ends with a line feed, without a mark first.

    An iterator of texts, which also gives the bytes to come.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path = file, path
        self.total = file.seek(0, 2)
        file.seek(0)
        # Lines and bytes that were taken, the latter without carriage returns.
        self.number = self.done = 0
        self.at_end = False
        self._data, self._place = b"", 0
        # Bytes that were read and are looked at together with the next ones.
        self._held = file.read(len(BOM))
        self.read = len(self._held)
        self._held = self._held.removeprefix(BOM)

    @property
    def rest(self) -> bytes:
        """The bytes that were read, and not taken yet."""
        if self._place:
            self._data, self._place = self._data[self._place :], 0
        return self._data

    def fill(self) -> bool:
        """Read on until there is a block, if the file has one; return whether there is a byte."""
        while not self.at_end and len(self._data) - self._place < BLOCK:
            self._more()
        return self._place < len(self._data)

    def first(self) -> str:
        """Return the first line, without taking it."""
        end = self._end_of_line()  # may read on, which moves what was read
        return self._decode(self._data[:end])

    def skip(self, count: int) -> None:
        """Take so many bytes."""
        begin, self._place = self._place, self._place + count
        self.number += self._data.count(b"\n", begin, self._place)
        self.done += count

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        end = self._end_of_line()
        line = self._data[self._place : end]
        if not line:
            raise StopIteration
        self._place += len(line)
        self.number += 1
        self.done += len(line)
        return self._decode(line)

    def _end_of_line(self) -> int:
        """Return where the next line ends, among the bytes read; read on until it does."""
        while (end := self._data.find(b"\n", self._place) + 1) == 0 and not self.at_end:
            if len(self._data) - self._place > LONGEST:
                raise ValueError(
                    f"{self.path}: line {self.number + 1} has more than {LONGEST // 2**20} MiB; a "
                    "table has a line for each row"
                )
            self._more()
        return end or len(self._data)

    def _more(self) -> None:
        read = self.file.read(BLOCK)
        self.read += len(read)
        self.at_end = not read
        data = self._held + read
        # A carriage return may be half of the end of a line.
        self._held = b"\r" if read and data.endswith(b"\r") else b""
        data = data[: len(data) - len(self._held)]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._data, self._place = self._data[self._place :] + data, 0

    def _decode(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.path} is not UTF-8 text; save it as {self.path.suffix[1:].upper()} UTF-8 "
                f"(line {self.number or 1}: {error.reason}, 0x{line[error.start]:02x})"
            ) from error
