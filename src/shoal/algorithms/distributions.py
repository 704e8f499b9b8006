"""Search distributions: drawn from a stream, printed and read back as text; intervals."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# The values that each kind of hyperparameter takes, for error messages.
_EXPECTED: dict[type | None, str] = {
    bool: "true, false or {true, false}",
    int: "a whole number, or a search such as int(U(0, 5000)) or {1, 2}",
    float: "a number, or a search such as 10^U(1, 5) or {0, 0.1, 0.5}",
}
_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_UNIFORM = re.compile(
    rf"(int\(\s*)?(?:(\d+)\s*\^\s*)?U\({_NUMBER},{_NUMBER}\)(?(1)\s*\))", re.ASCII
)
_BOUND = r"(-?(?:\d+(?:\.\d+)?|∞))"
_INTERVAL = re.compile(rf"([\[(]){_BOUND}, {_BOUND}([\])])", re.ASCII)


@dataclass(frozen=True)
class Distribution:
    """A search distribution; ``text`` is its notation, which ``parse_distribution`` reads."""

    text: str
    draw: Callable[[np.random.RandomState], Any]
    negative: bool = False  # whether it draws numbers below 0


def constant(value: Any) -> Distribution:
    """Return the distribution that is always ``value``."""
    return Distribution(_format(value), lambda _: value, _below_zero(value))


def uniform(low: float, high: float) -> Distribution:
    """Return U(low, high)."""
    return Distribution(_bounds(low, high), lambda r: float(r.uniform(low, high)), low < 0)


def whole(low: float, high: float) -> Distribution:
    """Return int(U(low, high))."""
    text = f"int({_bounds(low, high)})"
    return Distribution(text, lambda r: int(r.uniform(low, high)), low < 0)


def power(base: int, low: float, high: float) -> Distribution:
    """Return base^U(low, high)."""
    text = f"{base}^{_bounds(low, high)}"
    return Distribution(text, lambda r: float(base ** r.uniform(low, high)))


def whole_power(base: int, low: float, high: float) -> Distribution:
    """Return int(base^U(low, high))."""
    text = f"int({base}^{_bounds(low, high)})"
    return Distribution(text, lambda r: int(base ** r.uniform(low, high)))


def choice(*values: Any) -> Distribution:
    """Return the distribution of ``values``, all equally likely."""
    text = "{" + ", ".join(_format(value) for value in values) + "}"
    below = any(map(_below_zero, values))
    return Distribution(text, lambda r: values[int(r.choice(len(values)))], below)


def _below_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value < 0


def _bounds(low: float, high: float) -> str:
    return f"U({_format(low)}, {_format(high)})"


def _format(value: Any) -> str:
    # Text that reads back to the value: six digits if they are enough.
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def parse_distribution(text: str, kind: type | None = None) -> Distribution | None:
    """Return the search that ``text`` denotes, or None if it is not a search.

    Args:
        text: in the notation of ``Distribution.text``: ``U(0.9, 0.99)``, ``10^U(1, 5)``,
            ``int(U(0, 5000))``, ``int(10^U(0, 4))`` or ``{0, 0.1, 0.5}``.
        kind: type of the values: bool, int, float or str; by default it follows from the text.
    """
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        parts = [part.strip() for part in text[1:-1].split(",")]
        if not all(parts):
            raise ValueError(f"{text} has an empty place; write it like {{0, 0.1, 0.5}}")
        return choice(*[parse_value(part, kind) for part in parts])
    found = _UNIFORM.fullmatch(text)
    if found is None or kind in (bool, str):
        return None
    base, low, high = int(found[2] or 1), float(found[3]), float(found[4])
    _check_uniform(text, base, low, high)
    if found[1]:
        drawn = whole_power(base, low, high) if found[2] else whole(low, high)
        return Distribution(drawn.text, lambda r: float(drawn.draw(r))) if kind is float else drawn
    if kind is int:
        raise ValueError(f"{text} draws numbers that are not whole; write int({text})")
    return power(base, low, high) if found[2] else uniform(low, high)


def _check_uniform(text: str, base: int, low: float, high: float) -> None:
    if base < 1:
        raise ValueError(f"{text} has the base {base}; it must be 1 or more")
    if low > high:
        raise ValueError(f"{text} has its larger bound first")
    try:
        reached = [low, high - low, float(base) ** high]
    except OverflowError:
        reached = [math.inf]
    if not all(math.isfinite(number) for number in reached):
        raise ValueError(f"{text} reaches beyond what a float can hold")


def parse_value(text: str, kind: type | None) -> Any:
    """Return ``text`` as a ``kind``; by default as the first of bool, int, float, str that fits."""
    for attempt in (bool, int, float, str) if kind is None else (kind,):
        if attempt is bool:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            continue
        try:
            value = attempt(text)
        except ValueError:
            continue
        if attempt is not float or math.isfinite(value):
            return value
    raise ValueError(f"expected {_EXPECTED[kind]}, got {text!r}")


def holds(interval: str, value: float) -> bool:
    """Return whether a number is in an interval such as ``[0, 1)``, ``(-∞, ∞)`` or ``[0, ∞]``."""
    found = _INTERVAL.fullmatch(interval)
    if found is None:
        raise ValueError(f"an interval such as '[0, 1)' or '(-∞, ∞)' is expected, got {interval!r}")
    low, high = (float(bound.replace("∞", "inf")) for bound in found.group(2, 3))
    above = value >= low if found[1] == "[" else value > low
    below = value <= high if found[4] == "]" else value < high
    return above and below  # false for NaN
