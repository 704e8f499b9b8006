"""Intervals: what a hyperparameter may be, in the notation in which it is told."""

import re

_BOUND = r"(-?(?:\d+(?:\.\d+)?|∞))"
_INTERVAL = re.compile(rf"([\[(]){_BOUND}, {_BOUND}([\])])", re.ASCII)


def holds(interval: str, value: float) -> bool:
    """Return whether a number is in an interval such as ``[0, 1)``, ``(-∞, ∞)`` or ``[0, ∞]``."""
    found = _INTERVAL.fullmatch(interval)
    if found is None:
        raise ValueError(f"an interval such as '[0, 1)' or '(-∞, ∞)' is expected, got {interval!r}")
    low, high = (float(bound.replace("∞", "inf")) for bound in found.group(2, 3))
    above = value >= low if found[1] == "[" else value > low
    below = value <= high if found[4] == "]" else value < high
    return above and below  # NaN is neither
