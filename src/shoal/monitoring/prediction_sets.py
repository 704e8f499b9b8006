"""Prediction sets: the classes that an input may have, at a place that was never seen.

A set holds every class whose probability is high enough, and always the most probable one. High
enough is learned from domains that were left out: each has its own limit, with which its sets
would hold the true class as often as asked, and a new place is a new draw of such a limit.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# The share of sets that should hold the true class.
LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class SetRule:
    """Sets hold every class with a log-probability of ``-limit`` or more.

    Args:
        level: the share of sets that should hold the true class.
        domains: how many were left out.
        trust: the probability that the limit of a new domain is at most this one, if domains are
            exchangeable; with fewer than nine domains it is below a level of 90 %, and the sets
            have no guarantee.
    """

    limit: float
    level: float
    domains: int
    trust: float

    def __call__(self, log_probabilities: Array) -> NDArray[np.bool_]:
        """Return which classes the set of each input holds, ``[n, C]``."""
        held = log_probabilities >= -self.limit
        held[np.arange(len(held)), log_probabilities.argmax(1)] = True
        return held

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def learn_sets(domains: Sequence[tuple[Array, Labels]], level: float = LEVEL) -> SetRule:
    """Return the rule that the domains' own limits give.

    Of K limits it takes the ⌈(K + 1) · level⌉-th smallest, or the largest if there are too few.

    Args:
        domains: of each that was left out, log-probabilities ``[n, C]`` and labels.
    """
    if not domains:
        raise ValueError("prediction sets need a domain that was left out")
    limits = sorted(limit_of(*one, level) for one in domains)
    number = len(limits)
    place = min(math.ceil((number + 1) * level), number)
    return SetRule(limit=limits[place - 1], level=level, domains=number, trust=place / (number + 1))


def limit_of(log_probabilities: Array, labels: Labels, level: float = LEVEL) -> float:
    """Return the smallest limit with which ``level`` of a domain's sets hold the true class."""
    mine = np.sort(-log_probabilities[np.arange(len(labels)), labels])
    return float(mine[min(math.ceil((len(mine) + 1) * level), len(mine)) - 1])
