"""Place: what a model does on data from one place, without their labels, and with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .reference import Reference

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PlaceReport:
    """The expectation for data from one place.

    Args:
        inputs: how many there were.
        expected: the share of them that is classified correctly, as far as can be told.
        interval: where that share is with a probability of 90 %; None with fewer than three domains
            that were left out.
        error: by how much such expectations were off on the domains that were left out, the mean.
        usual: the least and the largest accuracy on those domains.
        shares: by class, its share of the predictions.
        likely: of each input, the classes that it may have, the most probable first.
        trust: the probability that at least ``level`` of these sets hold the true class.
        measured: the share that is classified correctly, by labels; None without labels.
    """

    inputs: int
    expected: float
    interval: tuple[float, float] | None
    error: float
    usual: tuple[float, float]
    shares: Mapping[str, float]
    likely: Sequence[tuple[str, ...]]
    level: float
    trust: float
    measured: float | None = None

    @property
    def unsure(self) -> int:
        """How many inputs may have more than one class; a person should look at them."""
        return sum(len(one) > 1 for one in self.likely)

    @property
    def held(self) -> bool | None:
        """Whether the measured accuracy is in the interval; None if one of them is not known."""
        if self.measured is None or self.interval is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]


def report_place(
    reference: Reference,
    classes: Sequence[str],
    log_probabilities: Array,
    labels: Sequence[str] | None = None,
) -> PlaceReport:
    """Return the report on inputs of one place.

    Args:
        log_probabilities: ``[n, C]``, of the model without its temperature.
        labels: the true classes; one that the model does not know is never classified correctly.
    """
    n = len(log_probabilities)
    if n == 0:
        raise ValueError("there is nothing to monitor: no input could be read")
    if labels is not None and len(labels) != n:
        raise ValueError(
            f"there are {n:,} inputs, so there must be {n:,} labels, got {len(labels):,}"
        )
    accuracies = reference.accuracy.accuracies.values()
    predicted = log_probabilities.argmax(1)
    order = np.argsort(-log_probabilities, axis=1, kind="stable")
    held = np.take_along_axis(reference.sets(log_probabilities), order, 1)
    counts = np.bincount(predicted, minlength=len(classes))
    measured = None
    if labels is not None:
        pairs = zip(predicted, labels, strict=True)
        measured = sum(classes[one] == label for one, label in pairs) / n
    return PlaceReport(
        inputs=n,
        expected=reference.accuracy(log_probabilities),
        interval=reference.accuracy.interval(log_probabilities),
        error=reference.accuracy.error,
        usual=(min(accuracies), max(accuracies)),
        shares={name: count / n for name, count in zip(classes, counts.tolist(), strict=True)},
        likely=[
            tuple(classes[k] for k, one in zip(row, mine, strict=True) if one)
            for row, mine in zip(order.tolist(), held.tolist(), strict=True)
        ],
        level=reference.sets.level,
        trust=reference.sets.trust,
        measured=measured,
    )
