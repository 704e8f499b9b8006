"""Methods on data sets: accuracies, averages and ranks, published or our own.

Cells may be missing: such a method has no average and no ranking.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..results.aggregation import Ranking, average, ranking, ranks

__all__ = ["BASELINE", "Accuracy", "Benchmark", "Method"]

BASELINE = "erm"
"""The method that others may be worse than."""


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in percent and its standard error over trials; None of a single trial."""

    mean: float
    error: float | None = None

    def joint_errors(self, other: Accuracy) -> float | None:
        """Return how many joint standard errors this lies above the other, √(a² + b²) being one.

        None where an error is not known or both are zero.
        """
        if self.error is None or other.error is None:
            return None
        joint = math.hypot(self.error, other.error)
        return (self.mean - other.mean) / joint if joint else None


@dataclass(frozen=True)
class Method:
    """One row: accuracies by data set, and the average where a publication prints its own."""

    name: str
    cells: Mapping[str, Accuracy]
    printed_average: float | None = None
    apart: bool = False
    """Whether a line is drawn above it."""


@dataclass(frozen=True)
class Benchmark:
    """Methods by key; `columns` maps a data set to its heading."""

    title: str
    label: str
    columns: Mapping[str, str]
    methods: Mapping[str, Method]

    def ranks(self) -> dict[str, dict[str, int]]:
        """Return each method's place by data set, among those that have a cell there."""
        return {
            column: ranks(
                {key: cells[column] for key, cells in self._means().items() if column in cells}
            )
            for column in self.columns
        }

    def rankings(self) -> dict[str, Ranking]:
        """Return the means of the ranks of each method that has all cells."""
        places = self.ranks()
        return {
            key: ranking([places[column][key] for column in self.columns])
            for key in self._complete()
        }

    def averages(self, without: frozenset[str] = frozenset()) -> dict[str, float]:
        """Return the average of the cells of each method that has all of them, but for some."""
        wanted = set(self.columns) - without
        return {
            key: average(means, without)
            for key, means in self._means().items()
            if wanted <= means.keys()
        }

    def shown_averages(self) -> dict[str, float]:
        """Return the averages as published, and those of the cells where none was."""
        published = {key: method.printed_average for key, method in self.methods.items()}
        return {
            key: own if (given := published[key]) is None else given
            for key, own in self.averages().items()
        }

    def _means(self) -> dict[str, dict[str, float]]:
        return {
            key: {c: method.cells[c].mean for c in self.columns if c in method.cells}
            for key, method in self.methods.items()
        }

    def _complete(self) -> dict[str, dict[str, float]]:
        return {k: means for k, means in self._means().items() if len(means) == len(self.columns)}
