"""Student's t: its tail and its quantiles, for any positive number of degrees of freedom."""

import math

# The continued fraction converges within a few dozen terms; numbers this small count as zero.
TERMS, TINY = 500, 1e-300


def tail(t: float, degrees: float) -> float:
    """Return the probability that T is larger than t."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    both = incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)
    return both / 2 if t > 0 else 1 - both / 2


def quantile(p: float, degrees: float) -> float:
    """Return the t below which T falls with probability p, by bisection; p is between 0 and 1."""
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, got {p}")
    if p < 0.5:
        return -quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while tail(high, degrees) > 1 - p:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if tail(middle, degrees) > 1 - p else (low, middle)
    return middle


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - incomplete_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    # Lentz's method: f = C · D is built up term by term.
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY
