"""How much may be tried: runs by number, or by the time that they take."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol.plan import folder_of
from ..protocol.records import DONE, Timing, read_timing
from ..protocol.run import Run

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
        pace = _Pace.of(out, groups[:number])
        return self.spent(out, groups) + pace.ahead(groups[number]) <= self.seconds

    def spent(self, out: Path, groups: Sequence[Sequence[Run]]) -> float:
        """Return the seconds of this command, and of the runs that others made before it."""
        now = time.monotonic() - self._begun
        timings = _timings(out, groups, before=now)
        return now + sum(timing.seconds for _, timing in timings)

    def left(self, out: Path, groups: Sequence[Sequence[Run]], number: int) -> float | None:
        """Return about how many seconds the groups from ``number`` on take; None if unknown."""
        pace = _Pace.of(out, groups)
        if not pace.each:
            return None
        seconds = pace.ahead([run for group in groups[number:] for run in group])
        if self.seconds is not None:
            seconds = min(seconds, max(self.seconds - self.spent(out, groups), pace.ahead([])))
        return seconds


@dataclass(frozen=True)
class _Pace:
    """What the runs ahead will take, by those that are done.

    Args:
        each: seconds of a run of each method, the quickest: on a GPU its first one is compiled.
        slowest: of all; the last run has more domains than they, and is compiled, too.
    """

    each: Mapping[str, float]
    slowest: float

    @staticmethod
    def of(out: Path, groups: Sequence[Sequence[Run]]) -> "_Pace":
        each: dict[str, float] = {}
        slowest = 0.0
        for run, timing in _timings(out, groups):
            # Of a run that went on after an interruption only the rest was timed.
            share = run.protocol.steps / max(timing.updates, 1)
            seconds = timing.seconds + (share - 1) * timing.updating
            each[run.algorithm] = min(seconds, each.get(run.algorithm, seconds))
            slowest = max(slowest, timing.seconds)
        return _Pace(each, slowest)

    def ahead(self, runs: Sequence[Run]) -> float:
        """Return about how many seconds these runs take, and the last one after them."""
        known = sum(self.each.get(run.algorithm, self.slowest) for run in runs)
        return known + LAST * self.slowest


def _timings(
    out: Path, groups: Sequence[Sequence[Run]], before: float | None = None
) -> Iterable[tuple[Run, Timing]]:
    """Yield the finished runs and their timings; only those older than ``before`` seconds."""
    for run in (run for group in groups for run in group):
        folder = folder_of(out, run)
        done, timing = folder / DONE, read_timing(folder)
        if timing is None or not done.exists():
            continue
        if before is None or time.time() - done.stat().st_mtime > before:
            yield run, timing
