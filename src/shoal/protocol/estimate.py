"""What a sweep will cost: by the runs of it that are done, and before that by a short probe."""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median

from ..datasets import DomainDataset
from ..storage import read_json, write_json
from .attempt import State, state_of
from .hand import World
from .plan import folder_of
from .probe import Rates, Subject, probe
from .records import TIMING
from .run import Run

RATES = "rates.json"
# Seconds in which the process of the probes must begin; after these none of them begins, and after
# these they are ended: a GPU takes its time to be there at all.
BEGIN, SHARE, LIMIT = 15.0, 1.0, {"cpu": 3.0, "cuda": 10.0}

# A data set and a method.
Kind = tuple[str, str]


def kind_of(run: Run) -> Kind:
    """Return by what runs are taken to cost alike."""
    return run.dataset, run.algorithm


@dataclass(frozen=True)
class Left:
    """About how long one worker is busy with what is left, but for these data sets."""

    seconds: float
    unknown: tuple[str, ...]


def left_of(out: Path, runs: Sequence[Run]) -> Left:
    """Return what is left of these runs.

    A method that nothing is known of is taken to cost what others do on the data set; a data set
    that nothing is known of does not count.
    """
    took: dict[Kind, list[tuple[float, float]]] = {}
    left: list[Run] = []
    for run in runs:
        path = folder_of(out, run)
        state = state_of(path)
        if state is State.DONE and (path / TIMING).exists():
            timing = read_json(path / TIMING)
            work = timing["updating"] + timing["evaluating"]
            took.setdefault(kind_of(run), []).append((timing["preparing"], work))
        elif state in (State.RUNNING, State.WAITING):
            left.append(run)
    rates = known_rates(out)
    seconds, unknown = 0.0, dict[str, None]()
    for run in left:
        kinds = {*took, *rates}
        known = [kind for kind in kinds if kind == kind_of(run)] or [
            kind for kind in kinds if kind[0] == run.dataset
        ]
        if known:
            seconds += fmean(_seconds(run, took.get(kind), rates.get(kind)) for kind in known)
        else:
            unknown[run.dataset] = None
    return Left(seconds, tuple(unknown))


def _seconds(run: Run, took: Sequence[tuple[float, float]] | None, rates: Rates | None) -> float:
    """Return how long the run takes, by runs like it that are done, or else by rates."""
    if took:
        # What is compiled once serves many runs, so the preparation of most counts.
        return median(first for first, _ in took) + fmean(work for _, work in took)
    return 0.0 if rates is None else rates.seconds(run)


def known_rates(out: Path) -> dict[Kind, Rates]:
    """Return the rates that probes of this sweep have found."""
    if not (out / RATES).exists():
        return {}
    return {
        (one.pop("dataset"), one.pop("algorithm")): Rates(**one) for one in read_json(out / RATES)
    }


def unknown_kinds(out: Path, runs: Iterable[Run]) -> list[Run]:
    """Return a run of every data set and method of which nothing is done and nothing known.

    Those of one data set come one after the other only when every data set had its first.
    """
    known = set(known_rates(out))
    first: dict[Kind, Run] = {}
    for run in runs:
        if (folder_of(out, run) / TIMING).exists():
            known.add(kind_of(run))
        first.setdefault(kind_of(run), run)
    found = [run for kind, run in first.items() if kind not in known]
    order = {
        id(run): [r.dataset for r in found[:k]].count(run.dataset) for k, run in enumerate(found)
    }
    return sorted(found, key=lambda run: order[id(run)])


def find_rates(
    out: Path, runs: Sequence[Run], world: World, dataset: Callable[[str, int], DomainDataset]
) -> None:
    """Probe these runs in a process of its own, and write down what was found.

    It gives the device back when it ends, and it ends in time, whatever it meets.

    Args:
        dataset: returns that of a name and a trial, without its images' cache.
    """
    loaded = lru_cache(dataset)
    subjects = [Subject.of(run, loaded(run.dataset, run.trial)) for run in runs]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_probe_all, args=(subjects, world, theirs), daemon=True)
    process.start()
    theirs.close()
    found = known_rates(out)
    with suppress(EOFError):
        if ours.poll(BEGIN):
            end = time.monotonic() + LIMIT[ours.recv()]
            while ours.poll(max(0.0, end - time.monotonic())):
                kind, rates = ours.recv()
                found[kind] = rates
    process.kill()
    process.join()
    lines = [{"dataset": d, "algorithm": a, **asdict(rates)} for (d, a), rates in found.items()]
    write_json(out / RATES, lines)


def _probe_all(subjects: Sequence[Subject], world: World, found: Connection) -> None:
    """Send the kind of device, and then the rates of one run after the other."""
    # What cannot be probed cannot be trained either, and says so when it is tried.
    try:
        machine = world.machine()
    except Exception:
        return
    found.send(machine.device.type)
    begin = time.monotonic()
    for subject in subjects:
        with suppress(Exception):
            method, _ = world.method(subject.run.algorithm)
            found.send((kind_of(subject.run), probe(subject, method, machine)))
        if time.monotonic() - begin > SHARE:
            return
