"""How long what is left of a sweep takes, in words."""

from typing import Any

from .durations import shown


def time_left(left: Any, workers: int) -> str:
    """Return the time in a few words; "" where nothing is left, or known."""
    if not left.each:
        return ""
    rest = f" and what {' and '.join(left.unknown)} takes" if left.unknown else ""
    return f"{shown(left.seconds(workers))}{rest}"


def told_left(left: Any, workers: int) -> str:
    """Return a sentence: how long it takes whom, and by what that is known; "" as above."""
    time = time_left(left, workers)
    if not time:
        return ""
    whom = "one worker" if workers == 1 else f"{workers:,} workers"
    found = [f"About {time} left, with {whom}"]
    if left.guessed:
        found.append("guessed from a few updates that were not compiled")
    if left.elsewhere:
        where = ", ".join(name or "unknown" for name in left.elsewhere)
        found.append(f"by the timings of another machine ({where})")
    return ", ".join(found)
