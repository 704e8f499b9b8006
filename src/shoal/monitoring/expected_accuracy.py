"""Expected accuracy: how often a model is right on inputs without labels.

Five estimators read it off what can be seen without labels: how sure the model is, how often a
second classifier agrees with it, and how far the inputs are from all known domains. Each has one
number, and on a domain that was left out it is known what this number should have been: the one
with which the estimate is exactly right there. At a new place, the mean of these numbers is used.
So an estimator needs no trust, only domains, and how far off it is on each of them, by the number
of the others, says how far off it will be.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

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
# Probabilities are kept as far from 0 and 1 as shares of this many inputs, or of as many as there
# are: of few inputs, one that is sure is no less sure.
SURE = 100
# A place that is nearer to the known domains, in standard deviations, counts as this far: what is
# lost there would otherwise be divided by almost nothing.
NEAR = 0.1


@dataclass(frozen=True)
class Evidence:
    """What can be seen of a model's inputs without their labels.

    Args:
        log_probabilities: ``[n, C]``.
        agreement: the share of inputs whose nearest class among the known domains is the one that
            the model predicts; None if their features are not known.
        distance: of the inputs' mean from the nearest known domain, in standard deviations.
        known: the model's accuracy on held-out examples of the domains that it was trained on.
    """

    log_probabilities: Array
    agreement: float | None = None
    distance: float | None = None
    known: float | None = None

    def __len__(self) -> int:
        return len(self.log_probabilities)

    @property
    def confidence(self) -> float:
        """The mean probability of the predicted classes."""
        return float(np.exp(self.log_probabilities.max(1)).mean())


@dataclass(frozen=True)
class Outcomes:
    """What was seen on a domain that was left out, and which predictions were right ``[n]``."""

    evidence: Evidence
    right: NDArray[np.bool_]

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())


def confidence(seen: Evidence, number: float) -> float:
    """Return the mean probability of the predicted classes, at temperature exp(number)."""
    return _confidence(seen.log_probabilities, number)


def exact_confidence(domain: Outcomes) -> float:
    """Return the logarithm of the temperature that is exactly right."""
    return temperature_for(domain.evidence.log_probabilities, domain.accuracy)


def temperature_for(log_probabilities: Array, accuracy: float) -> float:
    """Return the logarithm of the temperature at which a model is as sure as it is right."""
    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        surer = _confidence(log_probabilities, middle) > accuracy
        low, high = (middle, high) if surer else (low, middle)
    return (low + high) / 2


def at_temperature(log_probabilities: Array, temperature: float) -> Array:
    """Return log softmax(log p / T)."""
    found = log_probabilities / temperature
    return np.asarray(found - np.logaddexp.reduce(found, axis=1, keepdims=True))


def _confidence(log_probabilities: Array, number: float) -> float:
    scaled = log_probabilities / math.exp(number)
    scaled = scaled - scaled.max(1, keepdims=True)
    return float((1 / np.exp(scaled).sum(1)).mean())


def threshold(seen: Evidence, number: float) -> float:
    """Return the share of inputs whose entropy is below exp(number).

    Garg et al. (2022) call it average thresholded confidence; they choose the threshold on domains
    that were trained on.
    """
    return float((entropies(seen.log_probabilities) < math.exp(number)).mean())


def exact_threshold(domain: Outcomes) -> float:
    """Return the logarithm of the entropy that as many inputs are below as were right."""
    n = len(domain.right)
    ordered = np.sort(entropies(domain.evidence.log_probabilities)).clip(LOWEST, HIGHEST)
    right = int(domain.right.sum())
    below = ordered[max(right - 1, 0)]
    above = ordered[min(right, n - 1)]
    return float(np.log(below) + np.log(above)) / 2


def entropies(log_probabilities: Array) -> Array:
    """Return −Σ p log p of every row; p log p is 0 for p = 0."""
    p = np.exp(log_probabilities)
    return np.asarray(-np.where(p > 0, p * log_probabilities, 0.0).sum(1))


def difference(seen: Evidence, number: float) -> float:
    """Return the mean probability of the predicted classes, moved by a number of logits."""
    return _expit(_logit(seen.confidence, max(len(seen), SURE)) + number)


def exact_difference(domain: Outcomes) -> float:
    n = len(domain.right)
    return _logit(domain.accuracy, n) - _logit(domain.evidence.confidence, max(n, SURE))


def agreement(seen: Evidence, number: float) -> float:
    """Return the share of inputs on which two classifiers agree, moved by a number of logits."""
    return _expit(_logit(seen.agreement or 0.0, len(seen)) + number)


def exact_agreement(domain: Outcomes) -> float:
    n = len(domain.right)
    return _logit(domain.accuracy, n) - _logit(domain.evidence.agreement or 0.0, n)


def distance(seen: Evidence, number: float) -> float:
    """Return the accuracy on known domains, minus a number of logits for every unit of distance."""
    known = _logit(seen.known or 0.0, max(len(seen), SURE))
    return _expit(known - number * max(seen.distance or 0.0, NEAR))


def exact_distance(domain: Outcomes) -> float:
    seen, n = domain.evidence, len(domain.right)
    lost = _logit(seen.known or 0.0, max(n, SURE)) - _logit(domain.accuracy, n)
    return lost / max(seen.distance or 0.0, NEAR)


class Estimator(NamedTuple):
    """An estimate from evidence and a number, and the number with which it is exactly right."""

    estimate: Callable[[Evidence, float], float]
    exact: Callable[[Outcomes], float]
    needs: tuple[str, ...] = ()

    def works_with(self, seen: Evidence) -> bool:
        return all(getattr(seen, name) is not None for name in self.needs)


ESTIMATORS = {
    "threshold": Estimator(threshold, exact_threshold),
    "confidence": Estimator(confidence, exact_confidence),
    "difference": Estimator(difference, exact_difference),
    "agreement": Estimator(agreement, exact_agreement, ("agreement",)),
    "distance": Estimator(distance, exact_distance, ("distance", "known")),
}


@dataclass(frozen=True, kw_only=True)
class AccuracyEstimator:
    """An estimator with its number, and how far off it was on domains that had no part in it.

    Args:
        name: one of ``ESTIMATORS``.
        number: the mean of the domains' numbers.
        deviation: the root mean square of its residuals, accuracy minus estimate, in logits.
        error: how far off estimates were on those domains, the mean of absolute residuals. On each
            domain it is that of the estimator which was closest on the others: the closest one on
            all of them is partly luck, and was less far off than it will be.
        accuracies: on each domain that was left out.
        tried: by estimator and domain, the estimate with the mean number of the other domains.
    """

    name: str
    number: float
    deviation: float
    error: float
    accuracies: Mapping[str, float]
    tried: Mapping[str, Mapping[str, float]]

    def __call__(self, seen: Evidence) -> float:
        return ESTIMATORS[self.name].estimate(seen, self.number)

    def interval(self, seen: Evidence, level: float = LEVEL) -> tuple[float, float] | None:
        """Return where the accuracy on these inputs is with probability ``level``.

        Besides the deviation between domains, a few inputs are right more or less often by chance.
        An end that no share of n but 0 or 1 is beyond is 0 or 1: all inputs can be right. None with
        fewer than ``LEAST`` domains.
        """
        if len(self.accuracies) < LEAST:
            return None
        n, found = len(seen), self(seen)
        middle = _logit(found, n)
        inside = _expit(middle)
        by_chance = 1 / (n * inside * (1 - inside))
        room = quantile((1 + level) / 2, len(self.accuracies) - 1)
        room *= math.sqrt(self.deviation**2 + by_chance)
        low, high = _expit(middle - room), _expit(middle + room)
        return 0.0 if low <= 1 / (2 * n) else low, 1.0 if high >= 1 - 1 / (2 * n) else high

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def learn_estimator(domains: Mapping[str, Outcomes]) -> AccuracyEstimator:
    """Return the estimator that was closest on the domains that were left out.

    Every estimator is tried on each domain with the mean number of the others. Which one is
    closest is partly luck, so the deviation is not its own alone: it is pooled with that of the
    estimator in the middle.
    """
    if len(domains) < 2:
        raise ValueError(f"an expected accuracy needs two domains or more, got {len(domains)}")
    tried: dict[str, dict[str, float]] = {}
    squares: dict[str, dict[str, float]] = {}
    numbers = {}
    for name, (estimate, exact, _) in ESTIMATORS.items():
        if not all(ESTIMATORS[name].works_with(one.evidence) for one in domains.values()):
            continue
        mine = {domain: exact(one) for domain, one in domains.items()}
        by_others = {
            domain: (sum(mine.values()) - number) / (len(mine) - 1)
            for domain, number in mine.items()
        }
        tried[name] = {
            domain: estimate(one.evidence, by_others[domain]) for domain, one in domains.items()
        }
        numbers[name] = fmean(mine.values())
        squares[name] = {
            domain: (
                _logit(one.accuracy, len(one.right)) - _logit(tried[name][domain], len(one.right))
            )
            ** 2
            for domain, one in domains.items()
        }
    means = {name: fmean(mine.values()) for name, mine in squares.items()}
    best = min(means, key=means.__getitem__)
    errors = []
    for domain, one in domains.items():
        others = {name: sum(mine.values()) - mine[domain] for name, mine in squares.items()}
        chosen = min(others, key=others.__getitem__)
        errors.append(abs(tried[chosen][domain] - one.accuracy))
    return AccuracyEstimator(
        name=best,
        number=numbers[best],
        deviation=math.sqrt((means[best] + median(means.values())) / 2),
        error=fmean(errors),
        accuracies={domain: one.accuracy for domain, one in domains.items()},
        tried=tried,
    )


def _logit(share: float, n: int) -> float:
    """Return log(p / (1 − p)); a share of n is kept 1/(2n) away from 0 and 1."""
    inside = min(max(share, 1 / (2 * n)), 1 - 1 / (2 * n))
    return math.log(inside) - math.log1p(-inside)


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
