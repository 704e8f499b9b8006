"""Runs that are there more than once, as where sweeps of two protocols are reported together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..results.records import Finished
from .departures import spread_of

__all__ = ["Twins", "doubled", "doubled_lines", "twins"]

Twins = Sequence[tuple[Finished, Finished]]


def twins(runs: Iterable[Finished]) -> list[tuple[Finished, Finished]]:
    """Return the runs that differ from an earlier one in nothing that rules know, and that one.

    They may differ in how they were made, as in steps or in the network: rules choose between them.
    """
    seen: dict[tuple[object, ...], Finished] = {}
    found = []
    for run in runs:
        if seen.setdefault(run.identity, run) is not run:
            found.append((seen[run.identity], run))
    return found


def doubled(both: Twins) -> set[tuple[str, str]]:
    """Return the data sets and methods that they are of."""
    return {(run.dataset, run.algorithm) for run, _ in both}


def doubled_lines(both: Twins) -> Iterable[str]:
    """Yield how many runs of which method are there more than once, and in what they differ."""
    by_dataset: dict[str, list[tuple[Finished, Finished]]] = {}
    for pair in both:
        by_dataset.setdefault(pair[0].dataset, []).append(pair)
    for dataset, pairs in by_dataset.items():
        counts = Counter(run.algorithm for run, _ in pairs)
        listed = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        differing = ", ".join(_differing(pairs))
        yield (
            f"{dataset}: runs are there more than once ({listed}; "
            f"{f'they differ in {differing}' if differing else 'made alike'}), and rules choose "
            "between them: the numbers are of no one protocol. Report such sweeps apart"
        )


def _differing(pairs: Twins) -> Iterable[str]:
    values: dict[str, dict[object, None]] = {}
    for one, other in pairs:
        for name in dict.fromkeys((*one.protocol, *other.protocol)):
            both = (one.protocol.get(name), other.protocol.get(name))
            if both[0] != both[1]:
                values.setdefault(name, {}).update(dict.fromkeys(both))
    for name, found in values.items():
        shown = spread_of([str(value) for value in found if value is not None])
        yield f"{name.replace('_', ' ')}: {shown}" if shown else name.replace("_", " ")
    if any(one.hparams != other.hparams for one, other in pairs):
        yield "hyperparameters"
    if any(one.fingerprint != other.fingerprint for one, other in pairs):
        yield "their data"
