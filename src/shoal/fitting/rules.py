"""Rules: how well one number or one category alone tells the class, cross-validated."""

from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
# Parts of the cross-validation, and the least number of rows on each side of a threshold.
PARTS, LEAF = 3, 5
# Rows that a rule is tried on, at most.
ROWS = 20_000
# Intervals of a number that a rule tells apart, or twice the number of classes if that is more.
INTERVALS = 8
# A gain of purity below this is rounding.
ROUNDING = 1e-9
# A number with up to so many different values, each in several rows, is also a category.
FEW, REPEATED = 50, 4
# Rows of which the different values are counted first.
MANY = 1_000


class RuleScore(NamedTuple):
    """How often a rule is right on rows that it was not made from.

    ``majority`` is how often the most frequent class is right, and ``rows`` how many there were.
    """

    accuracy: float
    majority: float
    rows: int

    @property
    def skill(self) -> float:
        """The share of the errors of the most frequent class that the rule avoids."""
        return (self.accuracy - self.majority) / (1 - self.majority) if self.majority < 1 else 0.0

    @property
    def sure(self) -> float:
        """The gain over the most frequent class, in standard errors of the latter."""
        error = (max(self.majority * (1 - self.majority), 1e-9) / self.rows) ** 0.5
        return float((self.accuracy - self.majority) / error)


def score_numbers(values: Array, labels: Array) -> RuleScore:
    """Return the score of thresholds on a number; NaN is a value of its own.

    Args:
        values: float ``[n]``; if there are few different ones, each can have its class.
        labels: int ``[n]``.
    """
    few = min(FEW, len(values) // REPEATED)
    # Sorting all is slow, and the first rows of most columns have many values.
    if len(np.unique(values[:MANY])) <= few:
        different, codes = np.unique(values, return_inverse=True)
        if len(different) <= few:
            return score_categories(codes, labels)
    values, labels = _sample(values, labels)
    classes = int(labels.max()) + 1
    most = max(INTERVALS, 2 * classes)
    low, high = np.nanmin(values), np.nanmax(values)
    filled = np.where(np.isnan(values), low - max(1.0, high - low), values)
    right = 0
    for inside in _parts(len(labels)):
        limits, answers = grow(filled[~inside], labels[~inside], classes, most)
        found = answers[np.searchsorted(limits, filled[inside], side="right")]
        right += int((found == labels[inside]).sum())
    return _score(right, labels)


def score_categories(codes: Array, labels: Array) -> RuleScore:
    """Return the score of the most frequent class of every category; several may share one.

    Args:
        codes: the number of every row's category, from 0, int ``[n]``.
        labels: int ``[n]``.
    """
    codes, labels = _sample(codes, labels)
    kinds, classes = int(codes.max()) + 1, int(labels.max()) + 1
    pairs = codes * classes + labels
    right = 0
    for inside in _parts(len(labels)):
        counts = np.bincount(pairs[~inside], minlength=kinds * classes).reshape(kinds, classes)
        # A category that is in no other part gets the most frequent class.
        usual = counts.sum(0) / max(counts.sum(), 1)
        found = (counts + usual * 1e-6).argmax(1)[codes[inside]]
        right += int((found == labels[inside]).sum())
    return _score(right, labels)


def combine(scores: list[RuleScore]) -> RuleScore:
    """Return the score of rules that were made for each domain on its own."""
    rows = sum(score.rows for score in scores)
    accuracy = sum(score.accuracy * score.rows for score in scores) / rows
    majority = sum(score.majority * score.rows for score in scores) / rows
    return RuleScore(accuracy, majority, rows)


def grow(values: Array, labels: Array, classes: int, most: int) -> tuple[Array, Array]:
    """Return thresholds ``[k]`` and the class of each of the k + 1 intervals between them.

    A decision tree on one number: the best threshold of all intervals comes next, which makes its
    two sides as pure as possible (Gini), until there are ``most`` intervals.
    """
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    one_hot = np.zeros((len(values) + 1, classes))
    one_hot[np.arange(1, len(values) + 1), labels[order]] = 1
    counts = one_hot.cumsum(0)
    # Intervals from ``low`` to ``high`` with their best cut, the one that gains most first.
    waiting = [(*_best_cut(sorted_values, counts, 0, len(values)), 0, len(values))]
    cuts = list[int]()
    while waiting and len(cuts) < most - 1:
        negative_gain, place, low, high = heappop(waiting)
        if negative_gain >= 0:
            break
        cuts.append(place)
        for part in ((low, place), (place, high)):
            heappush(waiting, (*_best_cut(sorted_values, counts, *part), *part))
    cuts.sort()
    limits = [_between(sorted_values[place - 1], sorted_values[place]) for place in cuts]
    totals = np.diff(counts[[0, *cuts, len(values)]], axis=0)
    return np.array(limits), totals.argmax(1)


def _best_cut(values: Array, counts: Array, low: int, high: int) -> tuple[float, int]:
    """Return minus the purity that the best cut of an interval gains, and its place.

    The place is where the right side begins; ``LEAF`` rows or more are on each side.
    """
    places = np.arange(low + LEAF, high - LEAF + 1)
    places = places[values[places - 1] < values[places]] if len(places) else places
    if not len(places):
        return 0.0, 0
    left = counts[places] - counts[low]
    right = counts[high] - counts[places]
    purity = (left**2).sum(1) / (places - low) + (right**2).sum(1) / (high - places)
    best = int(purity.argmax())
    before = float(((counts[high] - counts[low]) ** 2).sum()) / (high - low)
    gain = float(purity[best]) - before
    return (-gain if gain > ROUNDING else 0.0), int(places[best])


def _between(low: float, high: float) -> float:
    """Return a threshold that the upper number reaches and the lower one does not."""
    middle = (low + high) / 2
    return float(middle) if low < middle <= high else float(high)


def _sample(first: Array, second: Array) -> tuple[Array, Array]:
    if len(first) <= ROWS:
        return first, second
    chosen = np.random.RandomState(0).permutation(len(first))[:ROWS]
    return first[chosen], second[chosen]


def _parts(rows: int) -> list[Array]:
    """Return which rows are in each part of the cross-validation."""
    part = np.random.RandomState(0).permutation(rows) % PARTS
    return [part == k for k in range(PARTS)]


def _score(right: int, labels: Array) -> RuleScore:
    rows = len(labels)
    return RuleScore(right / rows, float(np.bincount(labels).max()) / rows, rows)
