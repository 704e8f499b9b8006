"""Prediction sets: the classes that an input may have, at a place that was never seen.

A set holds every class whose probability is high enough, and always the most probable one. The
probabilities are those at the place's own temperature: with it, the model is as sure as it is
expected to be right there. High enough is learned from domains that were left out: each has its own
limit, with which its sets would hold the true class as often as asked, and a new place is a new
draw of such a limit.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expected_accuracy import at_temperature, temperature_for

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# The share of sets that should hold the true class.
LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class SetTrial:
    """What the sets of a domain were like, with the limit that the other domains give.

    Args:
        coverage: the share of sets that hold the true class.
        decided: the share of inputs with one class in their set.
        right: the accuracy on those; None if there are none.
    """

    coverage: float
    decided: float
    right: float | None


@dataclass(frozen=True)
class SetDomain:
    """A domain that was left out: log-probabilities ``[n, C]``, labels, and the accuracy that was
    expected there without them."""

    log_probabilities: Array
    labels: Labels
    expected: float


@dataclass(frozen=True, kw_only=True)
class SetRule:
    """Sets hold every class with a log-probability of ``-limit`` or more.

    Args:
        limit: at the temperature of the place.
        single: for one input whose place is not known, at the temperature of the model.
        level: the share of sets that should hold the true class.
        trust: the probability that the limit of a new domain is at most this one, if domains are
            exchangeable; with fewer than nine domains it is below a level of 90 %, and the sets
            have no guarantee.
        tried: by domain that was left out.
    """

    limit: float
    single: float
    level: float
    trust: float
    tried: Mapping[str, SetTrial]

    def __call__(self, log_probabilities: Array, expected: float) -> NDArray[np.bool_]:
        """Return which classes the set of each input holds, ``[n, C]``.

        Args:
            expected: the accuracy at the place.
        """
        return sets_of(at_place(log_probabilities, expected), self.limit)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def learn_sets(
    domains: Mapping[str, SetDomain], temperature: float = 1.0, level: float = LEVEL
) -> SetRule:
    """Return the rule that the domains' own limits give.

    Args:
        temperature: of the model.
    """
    if not domains:
        raise ValueError("prediction sets need a domain that was left out")
    moved = {name: at_place(one.log_probabilities, one.expected) for name, one in domains.items()}
    limits = {name: limit_of(moved[name], one.labels, level) for name, one in domains.items()}
    singles = [
        limit_of(at_temperature(one.log_probabilities, temperature), one.labels, level)
        for one in domains.values()
    ]
    number = len(limits)
    tried = {
        name: _try(
            moved[name],
            one.labels,
            limit_for_new([limit for other, limit in limits.items() if other != name], level),
        )
        for name, one in domains.items()
        if number > 1
    }
    return SetRule(
        limit=limit_for_new(list(limits.values()), level),
        single=limit_for_new(singles, level),
        level=level,
        trust=_place(number, level) / (number + 1),
        tried=tried,
    )


def at_place(log_probabilities: Array, expected: float) -> Array:
    """Return log-probabilities at the temperature at which they are as sure as is expected."""
    number = temperature_for(log_probabilities, expected)
    return at_temperature(log_probabilities, math.exp(number))


def sets_of(log_probabilities: Array, limit: float) -> NDArray[np.bool_]:
    """Return the classes of each input's set, ``[n, C]``."""
    held = log_probabilities >= -limit
    held[np.arange(len(held)), log_probabilities.argmax(1)] = True
    return held


def limit_for_new(limits: list[float], level: float = LEVEL) -> float:
    """Return the ⌈(K + 1) · level⌉-th smallest of K limits, or the largest if they are too few."""
    return sorted(limits)[_place(len(limits), level) - 1]


def _place(number: int, level: float) -> int:
    return min(math.ceil((number + 1) * level), number)


def limit_of(log_probabilities: Array, labels: Labels, level: float = LEVEL) -> float:
    """Return the smallest limit with which ``level`` of a domain's sets hold the true class."""
    mine = np.sort(-log_probabilities[np.arange(len(labels)), labels])
    return float(mine[min(math.ceil((len(mine) + 1) * level), len(mine)) - 1])


def _try(log_probabilities: Array, labels: Labels, limit: float) -> SetTrial:
    held = sets_of(log_probabilities, limit)
    alone = held.sum(1) == 1
    right = log_probabilities.argmax(1)[alone] == labels[alone]
    return SetTrial(
        coverage=float(held[np.arange(len(labels)), labels].mean()),
        decided=float(alone.mean()),
        right=float(right.mean()) if len(right) else None,
    )
