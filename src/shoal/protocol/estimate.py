"""What a sweep will cost: by the runs of it that are done, and before that by a short probe."""

import heapq
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path

from ..datasets import DomainDataset
from .attempt import State, state_of
from .costs import Costs, Kind, kind_of, known_rates, write_rates
from .hand import World
from .hardware import hardware_of
from .machine import about_machine
from .plan import folder_of
from .probe import Rates, Subject, probe
from .reasons import in_one_line, reason_of
from .records import BEGUN, RECORDS
from .run import Run

# Seconds in which the process of the probes must begin; after these none of them begins, and after
# these they are ended: a GPU takes its time to be there at all.
BEGIN, SHARE, LIMIT = 15.0, 5.0, {"cpu": 10.0, "cuda": 60.0}


@dataclass(frozen=True)
class Left:
    """What is left of a sweep.

    Args:
        each: about how long each run that is left takes one worker, in seconds; first those that
            are carried out now.
        unknown: data sets that nothing is known of, whose runs do not count.
        elsewhere: hardware that is not here and by which some runs are known.
        guessed: whether some runs are known by a probe only.
    """

    each: tuple[float, ...] = ()
    unknown: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    guessed: bool = False

    def seconds(self, workers: int = 1) -> float:
        """Return how long so many workers are busy, of whom the first to be free takes the next."""
        busy = [0.0] * max(1, min(workers, len(self.each)))
        for seconds in self.each:
            heapq.heapreplace(busy, busy[0] + seconds)
        return max(busy)


def left_of(out: Path, runs: Sequence[Run], here: Sequence[str]) -> Left:
    """Return what is left of these runs.

    Args:
        here: the hardware that they are carried out on, the likeliest first; where nothing is known
            of it, they are taken to cost what they do elsewhere.
    """
    costs = Costs(out, runs)
    running, waiting = list[float](), list[float]()
    unknown, elsewhere, guessed = dict[str, None](), dict[str, None](), False
    for run in runs:
        path = folder_of(out, run)
        state = state_of(path)
        if state not in (State.RUNNING, State.WAITING):
            continue
        known = costs.of(run, here)
        if known is None:
            unknown[run.dataset] = None
            continue
        ahead = known.seconds * _share_left(path, run)
        if state is State.RUNNING:
            running.append(max(0.0, ahead - _since(path)))
        else:
            waiting.append(ahead)
        guessed |= known.guessed
        if known.hardware not in here:
            elsewhere[known.hardware] = None
    return Left((*running, *waiting), tuple(unknown), tuple(elsewhere), guessed)


def _share_left(path: Path, run: Run) -> float:
    """Return how much of a run is ahead of it, by its last record."""
    with suppress(FileNotFoundError, ValueError, LookupError):
        last = json.loads((path / RECORDS).read_text("utf-8").splitlines()[-1])
        return max(0.0, 1 - (int(last["step"]) + 1) / run.protocol.steps)
    return 1.0


def _since(path: Path) -> float:
    """Return for how long a run has been at work since its last record, or since it began."""
    times = [0.0]
    for name in (RECORDS, BEGUN):
        with suppress(FileNotFoundError):
            times.append((path / name).stat().st_mtime)
    return max(0.0, time.time() - max(times)) if any(times) else 0.0


def unknown_kinds(out: Path, runs: Sequence[Run], here: Sequence[str]) -> list[Run]:
    """Return a run of every data set and method of which nothing is known on this hardware.

    Those of one data set come one after the other only when every data set had its first.
    """
    costs = Costs(out, runs)
    first: dict[Kind, Run] = {}
    for run in runs:
        first.setdefault(kind_of(run), run)
    found = [run for run in first.values() if not costs.knows(run, here)]
    order = {
        id(run): [r.dataset for r in found[:k]].count(run.dataset) for k, run in enumerate(found)
    }
    return sorted(found, key=lambda run: order[id(run)])


def find_rates(
    out: Path,
    runs: Sequence[Run],
    world: World,
    dataset: Callable[[str, int], DomainDataset],
    told: Callable[[str], object] = lambda _: None,
) -> None:
    """Probe these runs in a process of its own, and write down what was found.

    It gives the device back when it ends, and it ends in time, whatever it meets.

    Args:
        dataset: returns that of a name and a trial, without its images' cache.
        told: called with each reason for which something could not be probed.
    """
    loaded = lru_cache(dataset)
    subjects = [Subject.of(run, loaded(run.dataset, run.trial)) for run in runs]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_probe_all, args=(subjects, world, theirs), daemon=True)
    process.start()
    theirs.close()
    found, failed = known_rates(out), dict[str, Kind]()
    with suppress(EOFError):
        if ours.poll(BEGIN):
            device, hardware = ours.recv()
            end = time.monotonic() + LIMIT[device]
            while ours.poll(max(0.0, end - time.monotonic())):
                kind, rates = ours.recv()
                if isinstance(rates, Rates):
                    found[hardware, kind] = rates
                else:
                    failed.setdefault(rates, kind)
    process.kill()
    process.join()
    write_rates(out, found)
    for reason, (name, method) in failed.items():
        told(f"what {method} costs on {name} could not be tried ({reason})")


def _probe_all(subjects: Sequence[Subject], world: World, found: Connection) -> None:
    """Send the kind of device and its name, and then of each run the rates, or why it has none."""
    try:
        machine = world.machine()
    except Exception:  # a worker that cannot have one says so
        return
    found.send((machine.device.type, hardware_of(about_machine(machine))))
    begin = time.monotonic()
    for subject in subjects:
        rates: Rates | str
        try:
            method, _ = world.method(subject.run.algorithm)
            rates = probe(subject, method, machine)
        except Exception as error:  # the run may do all the same
            rates = in_one_line(reason_of(error))
        found.send((kind_of(subject.run), rates))
        if time.monotonic() - begin > SHARE:
            return
