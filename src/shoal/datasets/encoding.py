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
