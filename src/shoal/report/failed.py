"""Runs that failed, in a few lines: how many of which method, why, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ..results.records import Failure, failure_of

__all__ = ["advice_lines", "failure_lines", "lost_by_themselves"]

MOST_REASONS = 5
DIVERGED = "FloatingPointError"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def failure_lines(failed: Sequence[Failure]) -> list[str]:
    """Return what to know of the runs that failed, a line for each reason; none where none has.

    Reasons that differ in numbers only, such as the step, are one. Of many, the rarest are left to
    ``shoal status``.
    """
    if not failed:
        return []
    groups: dict[str, list[Failure]] = {}
    for one in failed:
        groups.setdefault(_NUMBER.sub("…", one.reason), []).append(one)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    told = f": {_methods(failed)}" if len(groups) > 1 else ""
    lines = [f"{_runs(len(failed))} failed and {_is(len(failed))} in no table{told}"]
    for masked, mine in ordered[:MOST_REASONS]:
        reasons = {one.reason for one in mine}
        lines.append(f"{_methods(mine)}: {reasons.pop() if len(reasons) == 1 else masked}")
    rest = [one for _, mine in ordered[MOST_REASONS:] for one in mine]
    return [*lines, f"{_methods(rest)}: for other reasons"] if rest else lines


def advice_lines(sweeps: Sequence[str]) -> list[str]:
    """Return what to do about failed runs of the sweeps in these folders, commands in backticks."""
    return [
        f"`shoal status {folder}` names them; `shoal sweep … --out {folder} --retry-failed` tries "
        "them again"
        for folder in sweeps
    ]


def lost_by_themselves(failed: Iterable[Failure]) -> list[Failure]:
    """Return those whose loss was not finite: they would fail again, by their hyperparameters.

    Want of memory, a broken image or a killed process says nothing about a draw.
    """
    return [one for one in failed if (failure_of(one.path) or {}).get("kind") == DIVERGED]


def _methods(failed: Sequence[Failure]) -> str:
    counts = Counter(one.algorithm for one in failed)
    return ", ".join(f"{count:,} of {name}" for name, count in counts.most_common())


def _runs(count: int) -> str:
    return f"{count:,} run{'s' if count > 1 else ''}"


def _is(count: int) -> str:
    return "are" if count > 1 else "is"
