"""What runs cost: by runs that are done and by probes, on each machine apart."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

from ..storage import read_json, write_json
from .hardware import hardware_of
from .plan import folder_of
from .probe import Rates
from .records import DONE, read_timing
from .run import Run

RATES = "rates.json"

# A data set and a method.
Kind = tuple[str, str]


def kind_of(run: Run) -> Kind:
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
class Known:
    """About how long a run takes, on which hardware that was found, and whether by a probe."""

    seconds: float
    hardware: str
    guessed: bool


class Costs:
    """What is known in the folder of a sweep."""

    def __init__(self, out: Path, runs: Iterable[Run]) -> None:
        self.on: dict[str, dict[Kind, Cost]] = {}
        for run in runs:
            path = folder_of(out, run)
            timing = read_timing(path) if (path / DONE).exists() else None
            if timing is not None:
                cost = self._cost(hardware_of(timing.about), kind_of(run))
                cost.took.append((timing.preparing, timing.updating + timing.evaluating))
        for (hardware, kind), rates in known_rates(out).items():
            self._cost(hardware, kind).rates = rates

    def _cost(self, hardware: str, kind: Kind) -> Cost:
        return self.on.setdefault(hardware, {}).setdefault(kind, Cost())

    def knows(self, run: Run, here: Sequence[str]) -> bool:
        """Return whether anything is known of runs like it on this hardware; none is any."""
        return any(kind_of(run) in self.on.get(hardware, {}) for hardware in here or self.on)

    def of(self, run: Run, here: Sequence[str]) -> Known | None:
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
                return Known(seconds, hardware, not all(cost.took for cost in known))
        return None

    def _elsewhere(self, here: Sequence[str]) -> list[str]:
        """Return the other hardware, that of the most runs first."""
        others = [hardware for hardware in self.on if hardware not in here]

        def made(hardware: str) -> int:
            return sum(len(cost.took) for cost in self.on[hardware].values())

        return sorted(others, key=made, reverse=True)


def known_rates(out: Path) -> dict[tuple[str, Kind], Rates]:
    """Return the rates that probes of this sweep have found, by hardware and kind."""
    found = {}
    # A damaged file is worth a probe, and no more.
    with suppress(FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        for one in read_json(out / RATES):
            key = one.pop("hardware", ""), (one.pop("dataset"), one.pop("algorithm"))
            found[key] = Rates(**one)
    return found


def write_rates(out: Path, found: dict[tuple[str, Kind], Rates]) -> None:
    """Write rates to be read by ``known_rates``."""
    lines = [
        {"dataset": dataset, "algorithm": algorithm, "hardware": hardware, **asdict(rates)}
        for (hardware, (dataset, algorithm)), rates in found.items()
    ]
    write_json(out / RATES, lines)
