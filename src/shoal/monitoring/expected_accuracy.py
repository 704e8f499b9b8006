"""Expected accuracy: how often a model is right on inputs without labels.

Three estimators read it off the model's own probabilities. Each has one number, and on a domain
that was left out it is known what this number should have been: the one with which the estimate is
exactly right there. At a new place, the mean of these numbers is used. So an estimator needs no
trust, only domains, and how far off it is on each of them, by the number of the others, says how
far off it will be.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results.student import quantile

Array = NDArray[np.float64]
# The probability that the accuracy at a new place is inside the interval.
LEVEL = 0.9
# Fewer domains have no interval, because two residuals say next to nothing about their spread.
LEAST = 3
# Temperatures and entropies are searched between these, on the log scale.
COLDEST, HOTTEST = 1 / 50, 50.0
LOWEST, HIGHEST = 1e-9, 100.0
BISECTIONS = 60


@dataclass(frozen=True)
class Outcomes:
    """Log-probabilities ``[n, C]`` on a domain that was left out, and which were right ``[n]``."""

    log_probabilities: Array
    right: NDArray[np.bool_]

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


def confidence(log_probabilities: Array, number: float) -> float:
    """Return the mean probability of the predicted classes, at temperature exp(number)."""
    scaled = log_probabilities / math.exp(number)
    scaled = scaled - scaled.max(1, keepdims=True)
    return float((1 / np.exp(scaled).sum(1)).mean())


def threshold(log_probabilities: Array, number: float) -> float:
    """Return the share of inputs whose entropy is below exp(number).

    Garg et al. (2022) call it average thresholded confidence; they choose the threshold on domains
    that were trained on.
    """
    return float((entropies(log_probabilities) < math.exp(number)).mean())


def entropies(log_probabilities: Array) -> Array:
    """Return −Σ p log p of every row; p log p is 0 for p = 0."""
    p = np.exp(log_probabilities)
    return np.asarray(-np.where(p > 0, p * log_probabilities, 0.0).sum(1))


def difference(log_probabilities: Array, number: float) -> float:
    """Return the mean probability of the predicted classes, moved by a number of logits."""
    found = float(np.exp(log_probabilities.max(1)).mean())
    return _expit(_logit(found, len(log_probabilities)) + number)


# Each takes log-probabilities and its number.
ESTIMATORS: dict[str, Callable[[Array, float], float]] = {
    "threshold": threshold,
    "confidence": confidence,
    "difference": difference,
}


def exact_number(name: str, domain: Outcomes) -> float:
    """Return the number with which an estimator is exactly right on a domain, or nearest to it."""
    n, accuracy = len(domain.right), domain.accuracy
    if name == "difference":
        found = float(np.exp(domain.log_probabilities.max(1)).mean())
        return _logit(accuracy, n) - _logit(found, n)
    if name == "threshold":
        # Between the two entropies that separate as many inputs as were right from the others.
        ordered = np.sort(entropies(domain.log_probabilities)).clip(LOWEST, HIGHEST)
        right = int(domain.right.sum())
        below = ordered[max(right - 1, 0)]
        above = ordered[min(right, n - 1)]
        return float(np.log(below) + np.log(above)) / 2
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        surer = confidence(domain.log_probabilities, middle) > accuracy
        low, high = (middle, high) if surer else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, kw_only=True)
class AccuracyEstimator:
    """An estimator with its number, and how far off it was on domains that had no part in it.

    Args:
        name: one of ``ESTIMATORS``.
        number: the mean of the domains' numbers.
        deviation: the root mean square of its residuals, accuracy minus estimate, in logits.
        accuracies: on each domain that was left out.
        tried: by estimator and domain, the estimate with the mean number of the other domains.
    """

    name: str
    number: float
    deviation: float
    accuracies: Mapping[str, float]
    tried: Mapping[str, Mapping[str, float]]

    @property
    def error(self) -> float:
        """How far off its estimates were on those domains, the mean."""
        mine = self.tried[self.name]
        return fmean(abs(mine[name] - one) for name, one in self.accuracies.items())

    def __call__(self, log_probabilities: Array) -> float:
        return ESTIMATORS[self.name](log_probabilities, self.number)

    def interval(
        self, log_probabilities: Array, level: float = LEVEL
    ) -> tuple[float, float] | None:
        """Return where the accuracy on these inputs is with probability ``level``.

        Besides the deviation between domains, a few inputs are right more or less often by chance.
        None with fewer than ``LEAST`` domains.
        """
        if len(self.accuracies) < LEAST:
            return None
        n, found = len(log_probabilities), self(log_probabilities)
        middle = _logit(found, n)
        inside = _expit(middle)
        by_chance = 1 / (n * inside * (1 - inside))
        room = quantile((1 + level) / 2, len(self.accuracies) - 1)
        room *= math.sqrt(self.deviation**2 + by_chance)
        return _expit(middle - room), _expit(middle + room)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def learn_estimator(domains: Mapping[str, Outcomes]) -> AccuracyEstimator:
    """Return the estimator that was closest on the domains that were left out.

    Every estimator is tried on each domain with the mean number of the others. Which one is
    closest is partly luck, so the deviation is not its own alone: it is pooled with the others'.
    """
    if len(domains) < 2:
        raise ValueError(f"an expected accuracy needs two domains or more, got {len(domains)}")
    tried: dict[str, dict[str, float]] = {}
    squares, numbers = {}, {}
    for name, estimate in ESTIMATORS.items():
        mine = {domain: exact_number(name, one) for domain, one in domains.items()}
        others = {
            domain: (sum(mine.values()) - number) / (len(mine) - 1)
            for domain, number in mine.items()
        }
        tried[name] = {
            domain: estimate(one.log_probabilities, others[domain])
            for domain, one in domains.items()
        }
        numbers[name] = fmean(mine.values())
        squares[name] = fmean(
            (_logit(one.accuracy, len(one.right)) - _logit(tried[name][domain], len(one.right)))
            ** 2
            for domain, one in domains.items()
        )
    best = min(squares, key=squares.__getitem__)
    return AccuracyEstimator(
        name=best,
        number=numbers[best],
        deviation=math.sqrt((squares[best] + fmean(squares.values())) / 2),
        accuracies={domain: one.accuracy for domain, one in domains.items()},
        tried=tried,
    )


def _logit(share: float, n: int) -> float:
    """Return log(p / (1 − p)); a share of n is kept 1/(2n) away from 0 and 1."""
    inside = min(max(share, 1 / (2 * n)), 1 - 1 / (2 * n))
    return math.log(inside) - math.log1p(-inside)


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
