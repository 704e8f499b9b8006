"""Losses: a work recorded once, cut off from power at random moments, and repeated from there."""

import pickle
import random
import shutil
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.power import Crashes, lay_out, never_synced, record
from tests.chaos.works import WORKS, carry_out_work, content_of, emptied, prepare
from tests.processes import forkserver


@dataclass
class Outcome:
    """What came of states after a loss of power.

    Args:
        resumed: states from which the same command ended as if nothing had happened.
        said: first lines of errors that named the folder, by how often they came.
        broken: a description of every other state: other files at the end, or another error.
        unsynced: names of files that the work never synced.
    """

    resumed: int = 0
    said: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    unsynced: set[str] = field(default_factory=set)


def in_process(target: object, *arguments: object, seconds: float = 600) -> None:
    """Call a function of a module in a process of its own, and raise if it fails."""
    process = forkserver().Process(target=target, args=arguments)  # type: ignore[arg-type]
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        raise TimeoutError(f"{target} took more than {seconds} s")
    if process.exitcode:
        raise RuntimeError(f"{target} ended with status {process.exitcode}")


def survey(name: str, scratch: Path, losses: int, seed: int, ordered: bool) -> Outcome:
    """Return what came of a work after so many random losses of power.

    Args:
        ordered: whether the file system keeps the order of all changes to folders.
    """
    given, out, log, found = (scratch / one for one in ("given", "out", "log", "found"))
    if not log.exists():
        in_process(prepare, name, given)
        in_process(record, log, emptied(out), carry_out_work, name, given, out)
        out.rename(scratch / "whole")
    in_process(_repeat, name, scratch, losses, seed, ordered)
    outcome: Outcome = pickle.loads(found.read_bytes())
    return outcome


def _repeat(name: str, scratch: Path, losses: int, seed: int, ordered: bool) -> None:
    chance, outcome, work = random.Random(seed), Outcome(), WORKS[name]
    operations = pickle.loads((scratch / "log").read_bytes())
    outcome.unsynced = never_synced(operations)
    crashes, expected = Crashes(operations), content_of(scratch / "whole")
    out = scratch / "out"
    for _ in range(losses):
        state = crashes.draw(chance, ordered)
        lay_out(state, emptied(out))
        try:
            work.carry_out(scratch / "given", out)
        except (ValueError, OSError) as error:
            line = str(error).strip().partition("\n")[0]
            if str(out) in str(error):
                outcome.said[line.replace(str(out), "OUT")] += 1
            else:
                outcome.broken.append("".join(traceback.format_exception(error)[-3:]))
            continue
        except Exception as error:
            outcome.broken.append("".join(traceback.format_exception(error)[-3:]))
            continue
        content = content_of(out)
        both = content.keys() | expected.keys()
        if other := sorted(one for one in both if content.get(one) != expected.get(one)):
            outcome.broken.append(f"{', '.join(other)} differ after {sorted(state)}")
        else:
            outcome.resumed += 1
    shutil.rmtree(out)
    (scratch / "found").write_bytes(pickle.dumps(outcome))
