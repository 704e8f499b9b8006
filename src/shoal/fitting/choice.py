"""Choice: the candidate to deploy, from the scores of all candidates on domains left out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .paired import standard_error, weighted_mean

Array = NDArray[np.float64]
# Scores are means of examples in float64; closer than this, they are equal.
ROUNDING = 1e-9
# Domains choose nothing if their weights add up to less, which is the weight of 30 examples in one.
ENOUGH = 0.5


@dataclass(frozen=True)
class Chosen:
    """The rows of the chosen candidate and of the best one, which can be the same."""

    deploy: int
    best: int


def judged(gains: Array, weights: Array, judge: str) -> Array:
    """Return the value of each candidate that the judge compares, ``[M]``; larger is better.

    For "mean" it is the weighted mean over domains. For "worst" it is the lowest domain, as
    ``counted_as`` has it.

    Args:
        gains: scores by candidate and domain, ``[M, K]``; larger is better.
    """
    if judge == "mean":
        return weighted_mean(gains, weights)
    return np.asarray(counted_as(gains, weights).min(1))


def counts_too_little(weights: Array) -> bool:
    """Return whether domains have so few examples that they cannot choose a candidate."""
    return bool(weights.sum() < ENOUGH)


def counted_as(scores: Array, weights: Array) -> Array:
    """Return what each domain's score counts as for the worst domain, ``[M, K]``.

    It is moved towards the candidate's mean, w · score + (1 − w) · mean, so that a few examples do
    not decide alone.
    """
    return weights * scores + (1 - weights) * weighted_mean(scores, weights)[:, None]


def choose_candidate(
    gains: Array, weights: Array, judge: str, simplicity: Sequence[int] | None = None
) -> Chosen:
    """Return the simplest candidate that is within one paired standard error of the best one.

    Of equally simple ones it is the best. The error is that of the mean difference over domains,
    for both judges. One domain has no error to be within, so there the best candidate is chosen.
    If all domains together have too few examples (``counts_too_little``), the simplest is taken.
    Errors differ from candidate to candidate, so one within its error can be worse than a simpler
    one outside; it is passed over.

    Args:
        gains: scores by candidate and domain, ``[M, K]``; larger is better.
        simplicity: a number for each candidate, larger for less simple ones; by default every row
            is less simple than the one before.
    """
    rank = np.arange(len(gains)) if simplicity is None else np.asarray(simplicity)
    values = judged(gains, weights, judge)
    order = np.lexsort((np.arange(len(values)), rank))
    # Of equal candidates, the simplest is the best.
    best = int(next(k for k in order if values[k] >= values.max() - ROUNDING))
    error = standard_error(gains[best] - gains, weights)
    near = values[best] - values <= np.where(np.isfinite(error), error, 0) + ROUNDING
    near |= counts_too_little(weights)
    near &= [
        value > values[rank < mine].max(initial=-np.inf)
        for value, mine in zip(values, rank, strict=True)
    ]
    chosen = near & (rank == rank[near].min())
    top = values[chosen].max()
    return Chosen(deploy=int(np.argmax(chosen & (values >= top - ROUNDING))), best=best)
