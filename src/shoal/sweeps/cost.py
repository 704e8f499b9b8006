"""What runs cost: by runs that are done and by probes, on each machine apart."""

import heapq
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median

from ..datasets import DomainDataset
from ..results.records import BEGUN, DONE, RECORDS, in_one_line, read_timing, reason_of
from ..runs.machine import about_machine, hardware_of
from ..runs.run import Run
from ..storage import read_json, write_json
from .attempt import RunState, Workspace, state_of
from .plan import folder_of
from .probe import ProbeSubject, Rates, probe

RATES = "rates.json"

# A data set and a method.
CostKey = tuple[str, str]


def kind_of(run: Run) -> CostKey:
    """Return by what runs are taken to cost alike."""
    return run.dataset, run.algorithm


@dataclass
class Cost:
    """What the runs of one kind cost on one machine: what some took, and what a probe found.

    Args:
        took: of every run that is done, the seconds of its preparation and of the rest.
    """

    took: list[tuple[float, float]] = field(default_factory=list)
    rates: Rates | None = None

    def seconds(self, run: Run) -> float:
        """Return about how long the run takes: by runs like it, or else by rates."""
        if self.took:
            # What is compiled once serves many runs, so the preparation of most counts.
            return median(first for first, _ in self.took) + fmean(rest for _, rest in self.took)
        return 0.0 if self.rates is None else self.rates.seconds(run)


@dataclass(frozen=True)
class CostEstimate:
    """About how long a run takes, on which hardware that was found, and whether by a probe."""

    seconds: float
    hardware: str
    guessed: bool


class Costs:
    """What is known in the folder of a sweep."""

    def __init__(self, out: Path, runs: Iterable[Run]) -> None:
        self.on: dict[str, dict[CostKey, Cost]] = {}
        for run in runs:
            path = folder_of(out, run)
            timing = read_timing(path) if (path / DONE).exists() else None
            if timing is not None:
                cost = self._cost(hardware_of(timing.about), kind_of(run))
                cost.took.append((timing.preparing, timing.updating + timing.evaluating))
        for (hardware, kind), rates in known_rates(out).items():
            self._cost(hardware, kind).rates = rates

    def _cost(self, hardware: str, kind: CostKey) -> Cost:
        return self.on.setdefault(hardware, {}).setdefault(kind, Cost())

    def knows(self, run: Run, here: Sequence[str]) -> bool:
        """Return whether anything is known of runs like it on this hardware; none is any."""
        return any(kind_of(run) in self.on.get(hardware, {}) for hardware in here or self.on)

    def of(self, run: Run, here: Sequence[str]) -> CostEstimate | None:
        """Return what is known of the run, from here where anything is, or else from elsewhere.

        A method that nothing is known of is taken to cost what others do on the data set.
        """
        for hardware in (*here, *self._elsewhere(here)):
            costs = self.on.get(hardware, {})
            known = (
                [costs[kind_of(run)]]
                if kind_of(run) in costs
                else [cost for (dataset, _), cost in costs.items() if dataset == run.dataset]
            )
            if known:
                seconds = fmean(cost.seconds(run) for cost in known)
                return CostEstimate(seconds, hardware, not all(cost.took for cost in known))
        return None

    def _elsewhere(self, here: Sequence[str]) -> list[str]:
        """Return the other hardware, that of the most runs first."""
        others = [hardware for hardware in self.on if hardware not in here]

        def made(hardware: str) -> int:
            return sum(len(cost.took) for cost in self.on[hardware].values())

        return sorted(others, key=made, reverse=True)


def known_rates(out: Path) -> dict[tuple[str, CostKey], Rates]:
    """Return the rates that probes of this sweep have found, by hardware and kind."""
    found = {}
    # A damaged file is worth a probe, and no more.
    with suppress(FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        for one in read_json(out / RATES):
            key = one.pop("hardware", ""), (one.pop("dataset"), one.pop("algorithm"))
            found[key] = Rates(**one)
    return found


def write_rates(out: Path, found: dict[tuple[str, CostKey], Rates]) -> None:
    """Write rates to be read by ``known_rates``."""
    lines = [
        {"dataset": dataset, "algorithm": algorithm, "hardware": hardware, **asdict(rates)}
        for (hardware, (dataset, algorithm)), rates in found.items()
    ]
    write_json(out / RATES, lines)


# Seconds in which the process of the probes must begin; after these none of them begins, and after
# these they are ended: a GPU takes its time to be there at all.
BEGIN, SHARE, LIMIT = 15.0, 5.0, {"cpu": 10.0, "cuda": 60.0}


@dataclass(frozen=True)
class RemainingWork:
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


def left_of(out: Path, runs: Sequence[Run], here: Sequence[str]) -> RemainingWork:
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
        if state not in (RunState.RUNNING, RunState.WAITING):
            continue
        known = costs.of(run, here)
        if known is None:
            unknown[run.dataset] = None
            continue
        ahead = known.seconds * _share_left(path, run)
        if state is RunState.RUNNING:
            running.append(max(0.0, ahead - _since(path)))
        else:
            waiting.append(ahead)
        guessed |= known.guessed
        if known.hardware not in here:
            elsewhere[known.hardware] = None
    return RemainingWork((*running, *waiting), tuple(unknown), tuple(elsewhere), guessed)


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
    first: dict[CostKey, Run] = {}
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
    world: Workspace,
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
    subjects = [ProbeSubject.of(run, loaded(run.dataset, run.trial)) for run in runs]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_probe_all, args=(subjects, world, theirs), daemon=True)
    process.start()
    theirs.close()
    found, failed = known_rates(out), dict[str, CostKey]()
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


def _probe_all(subjects: Sequence[ProbeSubject], world: Workspace, found: Connection) -> None:
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
