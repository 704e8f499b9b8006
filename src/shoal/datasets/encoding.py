"""How rows of a table become vectors, and which rows cannot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .columns import Column


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
        self, table: Mapping[str, Sequence[Any]], where: str
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the rows that can be read as float32 ``[n, d]``, and why others cannot."""
        try:
            return self(table, where), {}
        except ValueError:
            pass  # now one by one
        good, wrong = [], dict[int, str]()
        for row in range(len(table[self.columns[0].name])):
            try:
                good.append(self({key: [values[row]] for key, values in table.items()}, where))
            except ValueError as error:
                wrong[row] = f"{where}: row {row + 1}: {error}"
        return torch.cat(good) if good else torch.empty(0), wrong

    def as_json(self) -> list[dict[str, Any]]:
        """Return the columns as plain values."""
        return [column.as_json() for column in self.columns]

    @staticmethod
    def from_json(values: Sequence[Mapping[str, Any]]) -> "Encoding":
        """Return what ``as_json`` wrote."""
        return Encoding(tuple(Column.from_json(one) for one in values))
