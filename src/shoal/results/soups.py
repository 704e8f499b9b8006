"""Soups as results: the numbers of members, averages and ensembles of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..catalogue import AVERAGES
from .selection import comparable_score

# Which weights of a run: its best record by the training domains, its last ones, or an average.
BEST_RECORD, LAST_WEIGHTS = "best", "last"
WEIGHTS = (BEST_RECORD, LAST_WEIGHTS, *AVERAGES)
# Kinds of rows; the last three are models that are saved, in folders of these names.
MEMBER, MEAN, BEST, ENSEMBLE = "member", "mean", "best", "ensemble"
UNIFORM, GREEDY, INTERPOLATED = "uniform", "greedy", "interpolated"


@dataclass(frozen=True, kw_only=True)
class SoupRow:
    """One model of a soup's table, with its numbers.

    Args:
        kind: "member", "mean", "best", "ensemble", "uniform", "greedy" or "interpolated".
        draws: of the members that it is made of; none for the start alone.
        validation: mean accuracy on the held-out parts of the training domains.
        test, calibration_error: on the kept part of the test domain.
        alpha: the share of the uniform soup in an interpolation with the start.
        model: the folder of its weights, in that of its group, if they were saved.
    """

    kind: str
    draws: tuple[int, ...]
    validation: float
    test: float
    calibration_error: float
    alpha: float | None = None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class Soup:
    """What was measured of one group of runs; ``why`` says why there is no interpolation.

    ``name`` is that of the group's folder, ``key`` a hash of everything that its numbers depend on,
    and ``of`` says which weights of each run were taken.
    """

    name: str
    key: str
    dataset: str
    algorithm: str
    test_domain: str
    trial: int
    of: str
    rows: tuple[SoupRow, ...]
    why: str | None = None

    def of_kind(self, kind: str) -> list[SoupRow]:
        """Return the rows of one kind."""
        return [row for row in self.rows if row.kind == kind]

    @property
    def chosen(self) -> SoupRow | None:
        """The interpolation that validation chooses; None if there is none."""
        found = self.of_kind(INTERPOLATED)
        return best_alpha(found) if found else None

    @property
    def fall(self) -> float:
        """How far the uniform soup is below the mean of its members on held-out images."""
        return self.of_kind(MEAN)[0].validation - self.of_kind(UNIFORM)[0].validation

    def to_json(self) -> dict[str, Any]:
        """Return the soup as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Soup":
        """Return the soup that ``to_json`` described."""
        rows = tuple(SoupRow(**{**row, "draws": tuple(row["draws"])}) for row in values["rows"])
        return Soup(**{**values, "rows": rows})


def best_alpha(rows: Sequence[SoupRow]) -> SoupRow:
    """Return the interpolation with the best validation; of equal ones that with the largest α."""
    return max(rows, key=lambda row: (comparable_score(row.validation), row.alpha or 0.0))
