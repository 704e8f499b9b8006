"""Choice: the candidate to deploy, from the scores of all candidates on domains left out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .paired import standard_error, weighted_mean

Array = NDArray[np.float64]
# Scores are means of examples in float64; closer than this, they are equal.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Chosen:
    """The rows of the chosen candidate and of the best one, which can be the same."""

    deploy: int
    best: int


def judged(gains: Array, weights: Array, judge: str) -> Array:
    """Return the value of each candidate that the judge compares, ``[M]``; larger is better.

    For "mean" it is the weighted mean over domains. For "worst" it is the lowest domain, where the
    score of a domain is first moved towards the candidate's mean: w · score + (1 − w) · mean. So a
    few examples do not decide alone.

    Args:
        gains: scores by candidate and domain, ``[M, K]``; larger is better.
    """
    mean = weighted_mean(gains, weights)
    if judge == "mean":
        return mean
    return np.asarray((weights * gains + (1 - weights) * mean[:, None]).min(1))


def choose_candidate(gains: Array, weights: Array, judge: str) -> Chosen:
    """Return the simplest candidate that is within one paired standard error of the best one.

    The error is that of the mean difference over domains, for both judges. One domain has no error
    to be within, so there the best candidate is chosen. Errors differ from candidate to candidate,
    so one within its error can be worse than a simpler one outside; it is passed over.

    Args:
        gains: scores by candidate and domain, ``[M, K]``, the simplest first; larger is better.
    """
    values = judged(gains, weights, judge)
    # Of equal candidates, the simplest is the best.
    best = int(np.argmax(values >= values.max() - ROUNDING))
    error = standard_error(gains[best] - gains, weights)
    near = values[best] - values <= np.where(np.isfinite(error), error, 0) + ROUNDING
    simpler = np.maximum.accumulate(np.append(-np.inf, values[:-1]))
    return Chosen(deploy=int(np.argmax(near & (values > simpler))), best=best)
