"""Paired differences over domains: their weights, means, standard errors and adjusted p-values.

A pair is a domain: the scores of two candidates on it, after averaging over trials. A small domain
says little, so domain d with n examples has the weight n / (n + 30). If the difference between two
candidates varies from domain to domain with variance τ², and a domain's own score has the variance
σ²/n, the best weight is proportional to n / (n + σ²/τ²); 30 is a usual σ²/τ² of accuracies. So a
domain of 5 examples has 0.14, one of 30 half, and one of 1,500 almost the full weight.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..randomness import stream
from ..results.student import tail

Array = NDArray[np.float64]
# The number of examples with which a domain has half the weight of a very large one.
HALF = 30
# From so many domains on, p-values come from sign flips: with fewer there are too few flips.
FLIPPED = 6
# Up to so many domains all flips are taken, beyond that so many random ones.
ALL_FLIPS = 12
# Larger by less than this share, two values of t are equal: flips reorder sums.
ROUNDING = 1e-9


def weights_of(examples: ArrayLike) -> Array:
    """Return the weight of each domain, from its number of examples."""
    n = np.asarray(examples, np.float64)
    return n / (n + HALF)


def effective_number(weights: Array) -> float:
    """Return the number of equal domains that say as much: (Σ w)² / Σ w²."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def weighted_mean(values: Array, weights: Array) -> Array:
    """Return the mean over the last axis."""
    return np.asarray(values @ weights / weights.sum())


def standard_error(differences: Array, weights: Array) -> Array:
    """Return the standard error of the weighted mean over the last axis, ``[..., K]``.

    It is √(Σ w²(δ − δ̄)² / (1 − w/Σw)) / Σ w: with equal weights the usual s/√K, and unbiased if the
    variance of a domain's difference is proportional to 1/w. One domain has an infinite error.
    """
    if differences.shape[-1] < 2:
        return np.full(differences.shape[:-1], np.inf)
    share = weights / weights.sum()
    apart = differences - weighted_mean(differences, weights)[..., None]
    return np.asarray(np.sqrt(np.square(apart) @ (share**2 / (1 - share))))


def t_values(differences: Array, weights: Array) -> Array:
    """Return mean / standard error over the last axis; a difference of 0 everywhere has t = 0."""
    mean = weighted_mean(differences, weights)
    error = standard_error(differences, weights)
    # Equal differences have an error of rounding alone.
    error = np.where(error < ROUNDING * np.abs(mean), 0, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(mean == 0, 0.0, mean / error))


def adjusted_p(differences: Array, weights: Array) -> Array:
    """Return one-sided p-values of "larger than 0" for each row, adjusted for all rows.

    If no row is truly larger than 0, the chance that any of them has a p-value below α is at most
    α. Under six domains these are paired t-tests with Holm's adjustment. The degrees of freedom are
    the effective number of domains minus 1. From six domains on, the t-value of each row is
    compared with the largest t-value of all rows when the signs of whole domains are flipped. That
    is exact if the differences are symmetric, whatever their variances and correlations.

    Args:
        differences: of each candidate from one baseline, by domain, ``[M, K]``.
    """
    if differences.shape[-1] < 2:
        return np.ones(len(differences))
    t = t_values(differences, weights)
    if differences.shape[-1] >= FLIPPED:
        largest = _largest_t_by_flip(differences, weights)
        return np.asarray((largest >= (t * (1 - np.sign(t) * ROUNDING))[:, None]).mean(1))
    degrees = effective_number(weights) - 1
    return holm(np.array([tail(float(one), degrees) for one in t]))


def holm(p: Array) -> Array:
    """Return p-values adjusted by Holm's method: the k-th smallest of M times M + 1 − k."""
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def _largest_t_by_flip(differences: Array, weights: Array) -> Array:
    """Return the largest t-value of all rows for each flip of signs; the first flips none."""
    largest = np.full(len(signs := _signs(differences.shape[-1])), -np.inf)
    for row in differences:
        largest = np.maximum(largest, t_values(signs * row, weights))
    return largest


def _signs(domains: int) -> Array:
    """Return the signs of each flip, ``[flips, K]``; the first flips none."""
    count = 2 ** min(domains, ALL_FLIPS)
    if domains <= ALL_FLIPS:
        bits = np.arange(count)[:, None] >> np.arange(domains) & 1
    else:
        draws = stream("sign flips", domains)
        bits = torch.randint(2, (count, domains), generator=draws).numpy()
        bits[0] = 0
    return np.where(bits == 1, -1.0, 1.0)
