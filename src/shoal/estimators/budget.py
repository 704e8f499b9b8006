"""How much may be tried: runs by number, or by the time that they take."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol.plan import folder_of
from ..protocol.records import DONE, TIMING
from ..protocol.run import Run
from ..storage import read_json

# Domains that every method is measured on at least, or nothing could be compared.
LEAST = 2
# The last run has one domain more to train on, and is not the only thing left to do.
LAST = 1.5


@dataclass
class Budget:
    """What is left of the time and of the runs that a user allows; None is no limit.

    Time counts from when this is made, and the runs of earlier commands with what they took.
    """

    seconds: float | None = None
    runs: int | None = None
    _begun: float = field(default_factory=time.monotonic)

    def allows(self, out: Path, groups: Sequence[Sequence[Run]], number: int) -> bool:
        """Return whether group ``number`` may be carried out, once all before it are.

        A group is the runs of all methods on one split with one domain left out.
        """
        if number < LEAST:
            return True
        if self.runs is not None and sum(map(len, groups[: number + 1])) > self.runs:
            return False
        if self.seconds is None:
            return True
        usual = _usual(out, groups[:number])
        return self.spent(out, groups) + _ahead(usual, groups[number]) <= self.seconds

    def spent(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return the seconds of this command, and of the runs that others made before it."""
        now = time.monotonic() - self._begun
        before = _taken(out, [run for group in groups for run in group], before=now)
        return now + sum(before)

    def left(self, out: Path, groups: Sequence[Sequence[Run]], number: int) -> float | None:
        """Return about how many seconds the groups from ``number`` on take; None if unknown."""
        usual = _usual(out, groups)
        if not usual:
            return None
        seconds = _ahead(usual, [run for group in groups[number:] for run in group])
        if self.seconds is not None:
            last = _ahead(usual, [])
            seconds = min(seconds, max(self.seconds - self.spent(out, groups), last))
        return seconds


def _usual(out: Path, groups: Sequence[Sequence[Run]]) -> dict[str, float]:
    """Return what a run of each method takes: the quickest, because the first may be compiled."""
    found: dict[str, float] = {}
    for run in (run for group in groups for run in group):
        for seconds in _taken(out, [run]):
            found[run.algorithm] = min(seconds, found.get(run.algorithm, seconds))
    return found


def _ahead(usual: Mapping[str, float], runs: Sequence[Run]) -> float:
    """Return about how many seconds these runs take, and the last one after them."""
    slowest = max(usual.values(), default=0.0)
    return sum(usual.get(run.algorithm, slowest) for run in runs) + LAST * slowest


def _taken(out: Path, runs: Sequence[Run], before: float | None = None) -> list[float]:
    """Return what finished runs took, in seconds; only those older than ``before`` seconds."""
    found = []
    for run in runs:
        folder = folder_of(out, run)
        done, timing = folder / DONE, folder / TIMING
        if not done.exists() or not timing.exists():
            continue
        if before is None or time.time() - done.stat().st_mtime > before:
            one = read_json(timing)
            found.append(one["preparing"] + one["updating"] + one["evaluating"])
    return found
