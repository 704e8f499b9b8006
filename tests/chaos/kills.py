"""Kills: a work in a process of its own, killed at random moments and repeated until it ends."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.works import WORKS, carry_out_work
from tests.processes import forkserver

# Who is killed: the process that was started, it with all that came from it, or one worker.
PROCESS, FAMILY, WORKER = "process", "family", "worker"


class Moments:
    """Draws moments of kills and victims."""

    def __init__(self, seed: int, longest: float) -> None:
        self.random, self.longest = random.Random(seed), longest

    def pause(self) -> float:
        return self.random.uniform(0, self.longest)

    def victim(self, workers: bool) -> str:
        return self.random.choice([PROCESS, FAMILY, WORKER] if workers else [PROCESS])


@dataclass(frozen=True)
class Life:
    """A running work."""

    process: Any
    name: str

    def family(self) -> list[int]:
        """Return the processes that came from it and live, the newest first."""
        parents = {}
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                with suppress(OSError):
                    # The name, in brackets, may hold spaces; the parent is the second field after.
                    stat = (path / "stat").read_text().rpartition(")")[2].split()
                    parents[int(path.name)] = int(stat[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found - {self.process.pid}, reverse=True)

    def workers(self) -> list[int]:
        """Return the processes of its family that train runs."""
        found = []
        for pid in self.family():
            with suppress(OSError):
                if WORKS[self.name].workers in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self, whom: str, moments: Moments) -> bool:
        """Kill someone; return whether there was anyone."""
        victims = {
            PROCESS: lambda: [self.process.pid],
            FAMILY: lambda: [self.process.pid, *self.family()],
            WORKER: lambda: [moments.random.choice(found)] if (found := self.workers()) else [],
        }[whom]()
        alive = self.process.is_alive()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whom != WORKER:
            self.process.join()
        return alive and bool(victims)


def start(name: str, given: Path, out: Path) -> Life:
    """Start a work in a process of its own, which has imported the library before."""
    process = forkserver().Process(target=carry_out_work, args=(name, given, out))
    process.start()
    return Life(process, name)


def carry_out_whole(name: str, given: Path, out: Path, seconds: float = 300) -> float:
    """Carry a work out undisturbed; return the seconds that it took."""
    begin, life = time.monotonic(), start(name, given, out)
    end_of(life, seconds)
    return time.monotonic() - begin


def end_of(life: Life, seconds: float) -> None:
    """Wait for the end of a work; raise if it fails or takes too long."""
    life.process.join(seconds)
    if life.process.is_alive():
        life.kill(FAMILY, Moments(0, 0))
        raise TimeoutError(f"{life.name} took more than {seconds:.0f} s")
    if life.process.exitcode:
        raise AssertionError(f"{life.name} ended with status {life.process.exitcode}")


def finish_with_kills(
    name: str, given: Path, out: Path, moments: Moments, limit: int, seconds: float = 300
) -> Counter[str]:
    """Repeat a work until it ends by itself; return how many of whom were killed before.

    Args:
        limit: kills after which it is left alone; fewer than the deaths that mark a run as failed.
        seconds: that it may take when it is left alone.
    """
    kills: Counter[str] = Counter()
    while True:
        life = start(name, given, out)
        while life.process.is_alive() and kills.total() < limit:
            life.process.join(moments.pause())
            whom = moments.victim(bool(WORKS[name].workers))
            if life.process.is_alive() and life.kill(whom, moments):
                kills[whom] += 1
        if kills.total() >= limit and life.process.is_alive():
            end_of(life, seconds)
        life.process.join()
        if life.process.exitcode == 0:
            return kills
        if life.process.exitcode != -signal.SIGKILL:
            raise AssertionError(f"{name} ended with status {life.process.exitcode}")
