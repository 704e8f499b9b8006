"""Lengths of time as people write them."""

import argparse
import re

UNITS = {"s": 1, "min": 60, "h": 3600}


def duration(text: str) -> float:
    """Return the seconds of ``90s``, ``10min`` or ``1.5h``; a bare number is minutes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 10min or 2h, got {text!r}")
    return float(found[1]) * UNITS[found[2] or "min"]


def shown(seconds: float) -> str:
    """Return a length of time in a few letters."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
