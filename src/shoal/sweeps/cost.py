"""The cost of runs: estimated from finished runs and probes, for each hardware; free of torch."""

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

from ..documents import DAMAGE, parse_json, read_json
from ..files import LIST_BYTES, read_text
from ..results.records import BEGUN, RECORDS, read_timing
from ..runs.machine import hardware_of
from ..runs.run import Run
from ..storage import write_json
from .plan import folders_of
from .status import RunState, state_of

RATES = "rates.json"

# A data set and a method: runs that cost about the same.
CostKey = tuple[str, str]


def cost_key(run: Run) -> CostKey:
    """Return the data set and the method of a run."""
    return run.dataset, run.algorithm


@dataclass(frozen=True)
class Rates:
    """Seconds that the runs of a method take on a data set.

    Args:
        update: for every update, whatever its size.
        image: for each image of an update.
        evaluation: for each record.
        domains: the number of domains of the data set.
    """

    update: float
    image: float
    evaluation: float
    domains: int

    def seconds(self, run: Run) -> float:
        """Return about how long the run takes, without its preparation."""
        protocol = run.protocol
        trained = max(1, self.domains - len(run.test_domains))
        images = int(run.hparams["batch_size"]) * trained
        records = 1 + -(-(protocol.steps - 1) // protocol.record_every)
        return protocol.steps * (self.update + self.image * images) + records * self.evaluation


# By hardware, and by data set and method.
RatesByHardware = dict[tuple[str, CostKey], Rates]


def read_rates(out: Path) -> RatesByHardware:
    """Return the rates that probes of this sweep found; none if the file is damaged."""
    found: RatesByHardware = {}
    with suppress(OSError, *DAMAGE):
        for values in read_json(out / RATES):
            key = values.pop("hardware", ""), (values.pop("dataset"), values.pop("algorithm"))
            found[key] = Rates(**values)
    return found


def write_rates(out: Path, rates: Mapping[tuple[str, CostKey], Rates]) -> None:
    """Write rates for ``read_rates``."""
    lines = [
        {"dataset": dataset, "algorithm": algorithm, "hardware": hardware, **asdict(one)}
        for (hardware, (dataset, algorithm)), one in rates.items()
    ]
    write_json(out / RATES, lines)


@dataclass
class Cost:
    """The cost of the runs of one method on one data set and one hardware.

    Args:
        took: for every finished run, the seconds of its preparation and of the rest.
        rates: from a probe.
    """

    took: list[tuple[float, float]] = field(default_factory=list)
    rates: Rates | None = None

    def seconds(self, run: Run) -> float:
        """Return about how long the run takes: from finished runs, or else from the rates."""
        if self.took:
            # What is compiled once serves many runs, so the preparation of most counts.
            return median(first for first, _ in self.took) + fmean(rest for _, rest in self.took)
        return 0.0 if self.rates is None else self.rates.seconds(run)


@dataclass(frozen=True)
class CostEstimate:
    """About how long a run takes; ``guessed`` if a probe alone says so."""

    seconds: float
    hardware: str
    guessed: bool


class Costs:
    """The costs that finished runs and probes in the folder of a sweep show."""

    def __init__(self, out: Path, runs: Iterable[Run]) -> None:
        self.on: dict[str, dict[CostKey, Cost]] = {}
        runs = list(runs)
        for run, path in zip(runs, folders_of(out, runs), strict=True):
            timing = read_timing(path) if state_of(path) is RunState.DONE else None
            if timing is not None:
                cost = self._cost(hardware_of(timing.about), cost_key(run))
                cost.took.append((timing.preparing, timing.updating + timing.evaluating))
        for (hardware, key), rates in read_rates(out).items():
            self._cost(hardware, key).rates = rates

    def _cost(self, hardware: str, key: CostKey) -> Cost:
        return self.on.setdefault(hardware, {}).setdefault(key, Cost())

    def knows(self, run: Run, here: Sequence[str]) -> bool:
        """Return whether a run like it has a cost on this hardware; if none is given, on any."""
        return any(cost_key(run) in self.on.get(hardware, {}) for hardware in here or self.on)

    def of(self, run: Run, here: Sequence[str]) -> CostEstimate | None:
        """Return the cost of a run on the hardware ``here``, or else on other hardware.

        A method without a cost is taken to cost what the others do on the data set. None if the
        data set has no cost at all.
        """
        for hardware in (*here, *self._elsewhere(here)):
            costs = self.on.get(hardware, {})
            known = (
                [costs[cost_key(run)]]
                if cost_key(run) in costs
                else [cost for (dataset, _), cost in costs.items() if dataset == run.dataset]
            )
            if known:
                seconds = fmean(cost.seconds(run) for cost in known)
                return CostEstimate(seconds, hardware, not all(cost.took for cost in known))
        return None

    def _elsewhere(self, here: Sequence[str]) -> list[str]:
        """Return the other hardware, first that of the most finished runs."""
        others = [hardware for hardware in self.on if hardware not in here]

        def finished(hardware: str) -> int:
            return sum(len(cost.took) for cost in self.on[hardware].values())

        return sorted(others, key=finished, reverse=True)


@dataclass(frozen=True)
class RemainingWork:
    """The unfinished runs of a sweep.

    Args:
        each: about how long each run takes one worker, in seconds; first the runs that are
            trained now.
        unknown: data sets without a cost, whose runs do not count.
        elsewhere: other hardware that some of the costs come from.
        guessed: whether some of the costs come from a probe only.
    """

    each: tuple[float, ...] = ()
    unknown: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    guessed: bool = False

    def seconds(self, workers: int = 1) -> float:
        """Return how long the workers are busy if the first that is free takes the next run."""
        busy = [0.0] * max(1, min(workers, len(self.each)))
        for seconds in self.each:
            heapq.heapreplace(busy, busy[0] + seconds)
        return max(busy)


def remaining_work(
    out: Path, runs: Sequence[Run], here: Sequence[str], states: Sequence[RunState] | None = None
) -> RemainingWork:
    """Return the work that is left of these runs.

    Args:
        here: the hardware that trains them, the likeliest first; if nothing is known of it, they
            are taken to cost what they do elsewhere.
        states: of the runs, if they are known already.
    """
    paths = folders_of(out, runs)
    states = [state_of(path) for path in paths] if states is None else states
    left = [
        one
        for one in zip(runs, paths, states, strict=True)
        if one[2] in (RunState.RUNNING, RunState.WAITING)
    ]
    if not left:
        return RemainingWork()
    costs = Costs(out, runs)
    running, waiting = list[float](), list[float]()
    unknown, elsewhere, guessed = dict[str, None](), dict[str, None](), False
    for run, path, state in left:
        cost = costs.of(run, here)
        if cost is None:
            unknown[run.dataset] = None
            continue
        seconds = cost.seconds * _share_left(path, run)
        if state is RunState.RUNNING:
            # A clock that was set can be days off, but no run is longer without a record.
            longest = cost.seconds * min(1.0, run.protocol.record_every / run.protocol.steps)
            running.append(max(0.0, seconds - min(longest, _seconds_since_record(path))))
        else:
            waiting.append(seconds)
        guessed |= cost.guessed
        if cost.hardware not in here:
            elsewhere[cost.hardware] = None
    return RemainingWork((*running, *waiting), tuple(unknown), tuple(elsewhere), guessed)


def _share_left(path: Path, run: Run) -> float:
    """Return the share of a run's updates that follow its last record."""
    with suppress(OSError, *DAMAGE):
        lines = read_text(path / RECORDS, LIST_BYTES).rstrip("\n").split("\n")
        last = parse_json(lines[-1], path / RECORDS)
        return max(0.0, 1 - (int(last["step"]) + 1) / run.protocol.steps)
    return 1.0


def _seconds_since_record(path: Path) -> float:
    """Return the seconds since a run wrote its last record, or began."""
    times = [0.0]
    for name in (RECORDS, BEGUN):
        with suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(0.0, time.time() - max(times)) if any(times) else 0.0


def runs_to_probe(out: Path, runs: Sequence[Run], here: Sequence[str]) -> list[Run]:
    """Return one run for every data set and method without a cost on this hardware.

    Every data set has its first before any has its second.
    """
    costs = Costs(out, runs)
    first: dict[CostKey, Run] = {}
    for run in runs:
        first.setdefault(cost_key(run), run)
    found = [run for run in first.values() if not costs.knows(run, here)]
    order = {
        id(run): [r.dataset for r in found[:k]].count(run.dataset) for k, run in enumerate(found)
    }
    return sorted(found, key=lambda run: order[id(run)])
