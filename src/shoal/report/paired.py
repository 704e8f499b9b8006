"""Differences between methods over the same test domains and trials, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..results.aggregation import Comparison, compare, printed
from ..results.selection import Choice
from .grid import Entry, Grid, Line, signed
from .order import by_method

__all__ = ["PAIRED", "Pair", "against_each", "paired"]

PAIRED = (
    "Paired differences are in points, mean ± standard error over the (data set, test domain, "
    "trial) that both have, – where these are fewer than two; p is that of the sign test"
)
HEADINGS = ("Difference", "Pairs", "Won", "Lost", "p")

Pair = tuple[str, str]


def paired(choices: Sequence[Choice], pairs: Iterable[Pair], label: str) -> Grid:
    """Return by how much the first method of each pair is better than the second."""
    mine = _by_method(choices)
    names = {f"{one} less {other}": (one, other) for one, other in pairs}
    return _grid("Accuracy of one method less that of another, paired", label, mine, names)


def against_each(choices: Sequence[Choice]) -> dict[str, Grid]:
    """Return, by method, by how much every other one is better than it; the baseline first."""
    mine = _by_method(choices)
    return {
        other: _grid(f"Less {other}", "", mine, {one: (one, other) for one in mine if one != other})
        for other in mine
    }


def _grid(
    title: str, label: str, choices: Mapping[str, Sequence[Choice]], names: Mapping[str, Pair]
) -> Grid:
    lines = tuple(Line(name, _entries(choices, pair), (), False) for name, pair in names.items())
    return Grid(title, label, HEADINGS, (), lines)


def _entries(choices: Mapping[str, Sequence[Choice]], pair: Pair) -> tuple[Entry, ...]:
    one, other = pair
    try:
        found = compare([*choices.get(one, ()), *choices.get(other, ())], one, other)
    except ValueError:  # they share one or none
        return (Entry(),) * len(HEADINGS)
    return _shown(found)


def _shown(found: Comparison) -> tuple[Entry, ...]:
    difference = Entry(signed(100 * found.difference), printed(100 * found.error))
    counts = (found.pairs, found.wins, found.losses)
    return (difference, *(Entry(str(count)) for count in counts), Entry(f"{found.p:.3f}"))


def _by_method(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Return the choices of each method, the methods in their order."""
    found: dict[str, list[Choice]] = {}
    for choice in sorted(choices, key=by_method):
        found.setdefault(choice.algorithm, []).append(choice)
    return found
