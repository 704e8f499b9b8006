"""Comparability: how runs differ from those behind the published cells."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..catalogue import DATASETS, record_every, title_of
from ..results.records import SEARCH, RunResult
from ..results.selection import Choice
from .grid import Benchmark

# The protocol of the runs behind the published cells, in the names of ours, and their draws.
PUBLISHED = {
    "steps": 5001,
    "holdout": 0.2,
    "augment": True,
    "balanced": False,
    "frozen_statistics": True,
    "optimiser": "adam",
    "schedule": "constant",
    "clip": None,
    "start": "network",
}
DRAWS = 20
# The step of the last update, counted from 0.
LAST = 5000
DRAWN = "what the search draws"


def network_of(run: RunResult) -> str | None:
    """Return the network's name; None if it was chosen by the shape of a user's own data."""
    facts = DATASETS.get(run.dataset)
    return run.protocol.get("network") or (facts.network if facts else None)


@dataclass(frozen=True)
class Departure:
    """A difference from the runs behind the published cells: our value and theirs."""

    name: str
    ours: object
    theirs: object


def departures(run: RunResult, draws: int) -> list[Departure]:
    """Return the differences of a run from those behind the published cells.

    Its precision does not matter. A run without a protocol, such as DomainBed's, is judged by its
    records.

    Args:
        draws: the number of draws from which the run was selected.
    """
    if not run.protocol:
        return [*_recorded(run), *_different({"draws": draws}, {"draws": DRAWS})]
    ours = {**run.protocol, "network": network_of(run), "draws": draws}
    every = {"record_every": record_every(run.dataset)}
    facts = DATASETS[run.dataset]
    network = {"network": facts.network, "weights": facts.weights}
    theirs = {**network, **PUBLISHED, **every, "draws": DRAWS}
    given = run.set_hparams or {}
    return [
        *_different(ours, theirs),
        *(
            Departure(name, value, "DomainBed's" if name == SEARCH else DRAWN)
            for name, value in given.items()
        ),
    ]


def _recorded(run: RunResult) -> Iterable[Departure]:
    """Yield the differences that the records show: in their last step, and in their interval."""
    steps, every = sorted(one.step for one in run.records), record_every(run.dataset)
    # The 2020 sweep did not record the last update unless it was a multiple of the interval.
    if steps[-1] not in (LAST, LAST - LAST % every):
        yield Departure("last step", steps[-1], LAST)
    if len(steps) > 1 and steps[1] - steps[0] != every:
        yield Departure("record every", steps[1] - steps[0], every)


def _different(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[Departure]:
    return [
        Departure(name.replace("_", " "), ours[name], value)
        for name, value in theirs.items()
        if ours.get(name, value) != value
    ]


def find_departures(
    choices: Sequence[Choice],
    published: Benchmark | None,
    by_domain: Mapping[str, Benchmark | None],
    doubled: Collection[tuple[str, str]],
) -> dict[tuple[str, str], list[Departure]]:
    """Return the differences from the published runs, by data set and method.

    Args:
        doubled: the data sets and methods with more than one run per draw.
    """
    found: dict[tuple[str, str], list[Departure]] = {}
    for choice in choices:
        whole = published if published and choice.dataset in published.columns else None
        tables = [table for table in (whole, by_domain[choice.dataset]) if table is not None]
        if any(choice.algorithm in table.methods for table in tables):
            key = (choice.dataset, choice.algorithm)
            mine = []
            if key in doubled:
                mine.append(Departure("runs", len(choice.candidates), "one per draw"))
            for run in choice.candidates:
                mine += departures(run, choice.draws)
            if mine:
                found.setdefault(key, []).extend(mine)
    return found


def not_compared_lines(
    departed: Mapping[tuple[str, str], Sequence[Departure]],
) -> list[str]:
    """Return a line on the methods that are not compared, and why; none if all are.

    Methods with the same differences are listed together.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for (dataset, algorithm), found in departed.items():
        reasons.setdefault((dataset, _why(found)), []).append(title_of(algorithm))
    alike: dict[str, list[str]] = {}
    for (dataset, why), methods in reasons.items():
        alike.setdefault(f"{', '.join(methods)} ({why})", []).append(dataset)
    listed = [f"{', '.join(datasets)}: {text}" for text, datasets in alike.items()]
    return [f"Not compared with published cells: {'; '.join(listed)}"] if listed else []


def _why(found: Sequence[Departure]) -> str:
    """Return every difference once, with all its values."""
    values: dict[tuple[str, object], dict[object, None]] = {}
    for one in found:
        values.setdefault((one.name, one.theirs), {})[one.ours] = None
    return ", ".join(
        f"{name} {spread_of([*ours])} instead of {_plain(theirs)}"
        for (name, theirs), ours in values.items()
    )


def spread_of(values: Sequence[object]) -> str:
    """Return values in words: numbers as a range, others one by one."""
    numbers = [one for one in values if isinstance(one, (int, float)) and type(one) is not bool]
    if len(numbers) < len(values):
        return " or ".join(dict.fromkeys(map(_plain, values)))
    low, high = min(numbers), max(numbers)
    return _plain(low) if low == high else f"{_plain(low)} to {_plain(high)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value != round(value, 4):
        return f"{value:.3g}"
    return "none" if value is None else str(value)
