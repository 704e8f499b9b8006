"""Choices: pick a name from a registry, or raise with the nearest one; torch-free."""

from collections.abc import Iterable
from difflib import get_close_matches

# A message lists at most this many names and counts the others.
LISTED = 40


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the choice most similar to ``name``, in any case; None if none is similar."""
    folded = {choice.casefold(): choice for choice in choices}
    found = get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def choose(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return ``name`` if it is one of ``choices``; otherwise raise and name the nearest."""
    known = sorted(choices)
    if name in known:
        return name
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    few = sorted(get_close_matches(name, known, n=LISTED, cutoff=0))
    more = f" … and {len(known) - LISTED:,} more" if len(known) > LISTED else ""
    raise ValueError(f"unknown {kind} {name!r}{hint} One of: {', '.join(few)}{more}")
