"""Arrow columns: the columns of a file as pyarrow holds them, values made only when asked for."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow

Array = np.ndarray[Any, Any]
# Rows that are turned into Python's values, or into numbers, at a time.
FEW, PIECE = 1_000, 65_536


class ArrowColumn(Sequence[Any]):
    """A column of a table; a missing value is None.

    Args:
        chunks: a ``pyarrow.ChunkedArray``.
    """

    def __init__(self, chunks: "pyarrow.ChunkedArray") -> None:
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return list(self)[place]
        return self.chunks[place].as_py()

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces(FEW):
            yield from piece.chunks.to_pylist()

    def pieces(self, rows: int = PIECE) -> Iterator["ArrowColumn"]:
        """Yield the column in parts of so many rows at most."""
        import pyarrow

        for chunk in self.chunks.chunks:
            for start in range(0, len(chunk), rows):
                yield ArrowColumn(pyarrow.chunked_array([chunk.slice(start, rows)]))

    @property
    def is_float(self) -> bool:
        """Whether the file holds numbers with a sign of zero."""
        import pyarrow

        return bool(pyarrow.types.is_floating(self.chunks.type))

    def distinct(self) -> tuple[list[Any], Array]:
        """Return the different values in the order in which they come, and each row's place there.

        Values that pyarrow cannot compare, such as lists, all count as different.
        """
        import pyarrow

        encoded = self.as_numbered().chunks
        if not pyarrow.types.is_dictionary(encoded.type):
            return encoded.to_pylist(), np.arange(len(self))
        encoded = encoded.unify_dictionaries()
        if not encoded.num_chunks:
            return [], np.zeros(0, dtype=np.int64)
        values = encoded.chunk(0).dictionary.to_pylist()
        parts = [chunk.indices.fill_null(len(values)) for chunk in encoded.chunks]
        places = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts])
        return [*values, None] if encoded.null_count else values, places

    def as_numbered(self) -> "ArrowColumn":
        """Return the same column, each of its different values held once, if they can be told."""
        import pyarrow

        try:
            return ArrowColumn(self.chunks.dictionary_encode())
        except pyarrow.ArrowNotImplementedError:
            return self

    def plain_numbers(self, missing: Sequence[str], largest: float) -> Array | None:
        """Return float64 with NaN for missing values; None if that takes more than pyarrow.

        Texts are read like Python's ``float`` does if each is one of ``missing``, or a finite
        decimal number of ``largest`` at most, in ASCII and without spaces or underscores.
        """
        import pyarrow
        import pyarrow.compute

        values, kind = self.chunks, self.chunks.type
        types = pyarrow.types
        if types.is_string(kind) or types.is_large_string(kind):
            gaps = pyarrow.compute.is_in(values, pyarrow.array(missing, kind))
            if pyarrow.compute.any(gaps).as_py():
                values = pyarrow.compute.if_else(gaps, pyarrow.scalar(None, kind), values)
        elif not (types.is_integer(kind) or types.is_floating(kind)):
            return None
        try:
            numbers = values.cast(pyarrow.float64(), safe=False)
        except pyarrow.ArrowInvalid:
            return None
        found: Array = np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)
        unknown = np.isnan(found).sum() > values.null_count and not self.is_float
        return None if unknown or (np.abs(found) > largest).any() else found


def spellings(words: Sequence[str]) -> list[str]:
    """Return these words in all mixtures of small and capital letters."""
    return sorted(
        {
            "".join(letters)
            for word in words
            for letters in product(*((letter.lower(), letter.upper()) for letter in word))
        }
    )
