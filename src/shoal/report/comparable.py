"""In what runs are not made as those behind the published cells, which are then not set beside."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..catalogue import DATASETS, record_every
from ..results.records import RunResult
from ..results.selection import Choice
from .grid import Benchmark

# How the runs behind the published cells were made, by the names of our protocol; of how many
# draws; and their networks.
PUBLISHED = {
    "steps": 5001,
    "holdout": 0.2,
    "augment": True,
    "balanced": False,
    "frozen_statistics": True,
    "optimiser": "adam",
    "schedule": "constant",
    "clip": None,
}
DRAWS = 20
LAST = 5000
"""The step of the last update, counted from 0."""
SEARCH = "what the search draws"


def network_of(run: RunResult) -> str | None:
    """Return the network's name; None where it was chosen by the shape of a user's own data."""
    facts = DATASETS.get(run.dataset)
    return run.protocol.get("network") or (facts.network if facts else None)


@dataclass(frozen=True)
class Departure:
    """What is not as in the runs behind the published cells: ours, and theirs instead."""

    name: str
    ours: object
    theirs: object


def departures(run: RunResult, draws: int) -> list[Departure]:
    """Return in what a run, one of so many draws, is not as those behind the published cells.

    Its precision does not matter. Of a run without a protocol, as DomainBed's own, it is looked at
    what the records tell.
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
        *(Departure(name, value, SEARCH) for name, value in given.items()),
    ]


def _recorded(run: RunResult) -> Iterable[Departure]:
    """Yield what the records tell of a run: their last step, and how many lie between two."""
    steps, every = sorted(one.step for one in run.records), record_every(run.dataset)
    # The 2020 sweep did not record the last update where that is no multiple.
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


def departed(
    choices: Sequence[Choice],
    published: Benchmark | None,
    by_domain: Mapping[str, Benchmark | None],
    doubled: Collection[tuple[str, str]],
) -> dict[tuple[str, str], list[Departure]]:
    """Return in what the runs of data sets and methods are not as those of the published cells.

    Args:
        doubled: the data sets and methods of which runs are there twice.
    """
    found: dict[tuple[str, str], list[Departure]] = {}
    for choice in choices:
        whole = published if published and choice.dataset in published.columns else None
        tables = [table for table in (whole, by_domain[choice.dataset]) if table is not None]
        if any(choice.algorithm in table.methods for table in tables):
            key = (choice.dataset, choice.algorithm)
            mine = (
                [Departure("runs", len(choice.candidates), "one a draw")] if key in doubled else []
            )
            for run in choice.candidates:
                mine += departures(run, choice.draws)
            if mine:
                found.setdefault(key, []).extend(mine)
    return found


def not_compared(departed: Mapping[tuple[str, str], Sequence[Departure]]) -> list[str]:
    """Return the line that says what is not compared, and why; none where all is.

    Methods that depart in the same are told together.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for (dataset, algorithm), found in departed.items():
        reasons.setdefault((dataset, _why(found)), []).append(algorithm)
    alike: dict[str, list[str]] = {}
    for (dataset, why), methods in reasons.items():
        alike.setdefault(f"{', '.join(methods)} ({why})", []).append(dataset)
    listed = [f"{', '.join(datasets)}: {text}" for text, datasets in alike.items()]
    return [f"Not compared with the published cells: {'; '.join(listed)}"] if listed else []


def _why(found: Sequence[Departure]) -> str:
    """Return every departure once, with the values that it has."""
    values: dict[tuple[str, object], dict[object, None]] = {}
    for one in found:
        values.setdefault((one.name, one.theirs), {})[one.ours] = None
    return ", ".join(
        f"{name} {spread_of([*ours])} instead of {_plain(theirs)}"
        for (name, theirs), ours in values.items()
    )


def spread_of(values: Sequence[object]) -> str:
    """Return some values in words: numbers from the least to the largest, others one by one."""
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
