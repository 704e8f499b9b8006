"""Expectation: the score to expect on a new domain, of the whole procedure with its choice.

The best of many candidates looks better than it is, because the same domains chose and scored it.
So for each domain the choice is repeated without it, and the candidate chosen then is scored on it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..results.student import quantile
from .choice import ROUNDING, choose_candidate
from .estimates import Estimates
from .paired import effective_number, weighted_mean, weights_of

Array = NDArray[np.float64]
# The probability that a new domain is inside the interval.
LEVEL = 0.9
# Fewer domains have no interval: two say next to nothing about their spread.
LEAST = 3


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The procedure's scores on domains that had no part in its choice.

    Args:
        scores: by domain, the score of the candidate that the other domains chose.
        chosen: by domain, the key of that candidate.
        nested: whether the runs that chose it had not seen the domain either. Otherwise the choice
            is cross-fitted: those runs had trained on it.
        mean: the weighted mean of the scores.
        interval: where one new domain falls with probability ``LEVEL``; None under three domains.
    """

    scores: Mapping[str, float]
    chosen: Mapping[str, str]
    nested: bool
    mean: float
    interval: tuple[float, float] | None


def expect(estimates: Estimates) -> Expectation:
    """Return the expectation; there must be a complete candidate and two domains or more."""
    domains, sign = estimates.domains, estimates.measure.sign
    sizes = np.array([estimates.examples[one] for one in domains])
    weights, table, nested = weights_of(sizes), estimates.table(), estimates.nested
    scores, chosen = {}, {}
    for k, domain in enumerate(domains):
        others = np.arange(len(domains)) != k
        choosing = _scores_without(estimates, domain) if nested else table[:, others]
        row = choose_candidate(
            sign * choosing, weights[others], estimates.judge, estimates.simplicity
        ).deploy
        scores[domain], chosen[domain] = float(table[row, k]), estimates.complete[row].key
    values = np.array(list(scores.values()))
    return Expectation(
        scores=scores,
        chosen=chosen,
        nested=nested,
        mean=float(weighted_mean(values, weights)),
        interval=prediction_interval(values, sizes, bounded=estimates.measure.bounded),
    )


def _scores_without(estimates: Estimates, domain: str) -> Array:
    """Return the scores on the other domains of runs that left this one out as well, ``[M, K−1]``.

    The runs behind column v left out both the domain and v.
    """
    others = [other for other in estimates.domains if other != domain]
    found = [estimates.pairs[one.key] for one in estimates.complete]
    return np.array([[mine[domain, other] for other in others] for mine in found])


def prediction_interval(
    scores: Array, examples: Array, *, bounded: bool = True, level: float = LEVEL
) -> tuple[float, float] | None:
    """Return where the score of one new domain falls with probability ``level``.

    It is Student's prediction interval, mean ± t · s · √(1 + 1/K), on the logit scale, where
    domains that are nearly perfect differ as much as others. K is the effective number of domains,
    and s their deviation, both with the domains' weights. Scores are kept 1/(2n) away from 0 and 1,
    and an end that comes as near is 0 or 1. Unbounded scores, which are positive, are on the log
    scale instead. None under three domains.
    """
    weights = weights_of(examples)
    number = effective_number(weights)
    if round(number) < LEAST:
        return None
    margin = 1 / (2 * np.asarray(examples, np.float64))
    if bounded:
        inside = np.clip(scores, margin, 1 - margin)
        values = np.log(inside) - np.log1p(-inside)
    else:
        values = np.log(np.maximum(scores, margin))
    mean, share = float(weighted_mean(values, weights)), weights / weights.sum()
    variance = float(share @ np.square(values - mean)) / (1 - float(np.square(share).sum()))
    room = quantile((1 + level) / 2, number - 1) * math.sqrt(variance * (1 + 1 / number))
    ends = mean - room, mean + room
    if not bounded:
        low, high = (math.exp(min(end, 700.0)) for end in ends)
        return low, high
    low, high = map(_expit, ends)
    # A score of 0 or 1 stands at a margin, so an end there means 0 or 1.
    edge = float(margin.max()) + ROUNDING
    return 0.0 if low <= edge else low, 1.0 if high >= 1 - edge else high


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
