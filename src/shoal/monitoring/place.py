"""Place: what a model does on data from one place, without their labels, and with them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..notebook import html_table
from .class_shares import estimate_shares
from .drift import Drift, column_shifts, measure_drift
from .expected_accuracy import Evidence, at_temperature
from .reference import FILE, Reference

__all__ = ["PlaceReport"]

Array = NDArray[np.float64]
# The seed of draws; the same data gives the same report.
SEED = 0
# Columns are named if their mean is so many spreads outside those of all known domains, and so many
# standard errors: the mean of a few inputs is somewhere else by chance.
MOVED, ERRORS = 0.5, 4.0
# A place is far beyond the domains left out if it is so many times as far from the known domains as
# any of them was from the others.
BEYOND = 1.5


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a model gives for the inputs of one place.

    Args:
        log_probabilities: ``[n, C]``, without the model's temperature.
        features: ``[n, p]``: what the head of a network sees, or the columns of a table; None if
            they are not known.
        columns: the names of a table's features.
        energy: the mean of −log Σ exp(logits); None if the model has no logits.
    """

    log_probabilities: Array
    features: Array | None = None
    columns: Sequence[str] = ()
    energy: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlaceReport:
    """The expectation for data from one place.

    Args:
        inputs: how many there were.
        expected: the share of them that is classified correctly, as far as can be told.
        interval: where that share is with a probability of 90 %; None with fewer than three domains
            that were left out.
        error: by how much such expectations were off on the domains that were left out, the mean.
        known_accuracies: on those domains, and ``estimates`` what was expected there.
        shares: by class, its share of the predictions; ``corrected_shares`` what is left of
            their errors if only the shares differ from those of training.
        likely: of each input, the classes that it may have, the most probable first.
        level, trust: the share of these sets that should hold the true class, and the probability
            that it is so.
        decided: the least and the largest share of inputs with one likely class, on the domains
            left out, and ``decided_right`` the accuracies on those inputs.
        drift: how far the inputs are from all known domains; None if features are not known.
        beyond: whether the inputs are much further from the known domains than any domain that was
            left out was from the others, so that nothing was measured for such a place; None if it
            is not known.
        moved: the columns of a table that are outside the known domains, by how many spreads.
        energy, energies: of these inputs, and of the known domains; None and empty if those are
            not known.
        corrected: probabilities with the corrected shares, ``[n, C]``.
        measured: the share that is classified correctly, by labels; None without labels.
    """

    inputs: int
    expected: float
    interval: tuple[float, float] | None
    error: float
    known_accuracies: Mapping[str, float]
    estimates: Mapping[str, float]
    shares: Mapping[str, float]
    corrected_shares: Mapping[str, float]
    likely: Sequence[tuple[str, ...]] = field(repr=False)  # one for each input
    level: float
    trust: float
    decided: tuple[float, float] | None
    decided_right: tuple[float, float] | None
    drift: Drift | None = field(repr=False)
    beyond: bool | None
    moved: Mapping[str, float]
    energy: float | None
    energies: Mapping[str, float]
    corrected: Array = field(repr=False)
    measured: float | None = None

    @property
    def usual(self) -> tuple[float, float]:
        """The least and the largest accuracy on the domains that were left out."""
        return min(self.known_accuracies.values()), max(self.known_accuracies.values())

    @property
    def unsure(self) -> int:
        """How many inputs may have more than one class; a person should look at them."""
        return sum(len(one) > 1 for one in self.likely)

    @property
    def held(self) -> bool | None:
        """Whether the measured accuracy is in the interval; None if one of them is not known."""
        if self.measured is None or self.interval is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values; of the drift, what concerns the place as a whole."""
        found = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in ("drift", "corrected")
        }
        drift = self.drift
        return found | {
            "usual": self.usual,
            "unsure": self.unsure,
            "held": self.held,
            "drift": drift
            and {
                "alarm": drift.alarm,
                "nearest": drift.nearest,
                "auroc": drift.auroc,
                "threshold": drift.threshold,
                "shifts": dict(drift.shifts),
                "distances": drift.distances.tolist(),
                "usual_distance": drift.usual,
            },
        }

    def _repr_html_(self) -> str:
        def share(value: float) -> str:
            return f"{100 * value:.0f} %"

        rows: list[tuple[object, ...]] = [
            ("inputs", f"{self.inputs:,}"),
            ("expected accuracy", share(self.expected)),
        ]
        if self.interval is not None:
            rows.append(("nine in ten such places", " to ".join(map(share, self.interval))))
        if self.measured is not None:
            rows.append(("measured accuracy", share(self.measured)))
        rows.append(("on the domains left out", " to ".join(map(share, self.usual))))
        if self.drift is not None:
            unlike = {True: "yes", False: "no", None: "too few inputs to say"}[self.drift.alarm]
            rows += [
                ("unlike every known domain", unlike),
                ("nearest known domain", self.drift.nearest),
            ]
        if self.moved:
            moved = ", ".join(f"{name} ({by:+.1f})" for name, by in self.moved.items())
            rows.append(("columns outside all known domains", moved))
        predicted = ", ".join(f"{name} {share(one)}" for name, one in self.shares.items())
        rows += [("predicted classes", predicted), ("for a person to look at", f"{self.unsure:,}")]
        return html_table(rows, title="Expected at this place")

    def least_like(self, number: int) -> list[int]:
        """Return the inputs that are furthest from all known examples, the furthest first."""
        if self.drift is None:
            return []
        far = self.drift.distances
        return [
            int(k) for k in np.argsort(-far, kind="stable")[:number] if far[k] > self.drift.usual
        ]


def report_place(
    reference: Reference,
    classes: Sequence[str],
    seen: Observed,
    labels: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> PlaceReport:
    """Return the report on inputs of one place.

    Args:
        labels: the true classes; one that the model does not know is never classified correctly.
        temperature: of the model.
    """
    logs = seen.log_probabilities
    n = len(logs)
    if n == 0:
        raise ValueError("there is nothing to monitor: no input could be read")
    if labels is not None and len(labels) != n:
        raise ValueError(
            f"there are {n:,} inputs, so there must be {n:,} labels, got {len(labels):,}"
        )
    evidence, drift, moved = Evidence(logs, known=reference.known), None, dict[str, float]()
    if reference.features is not None and seen.features is not None:
        evidence, drift = _compare(reference, evidence, seen.features)
        if seen.columns:
            by_column = column_shifts(reference.features.domains, seen.features)
            order = np.argsort(-np.abs(by_column), kind="stable")
            least = max(MOVED, ERRORS / math.sqrt(n))
            moved = {
                seen.columns[k]: float(by_column[k]) for k in order if abs(by_column[k]) >= least
            }
    warm = at_temperature(logs, temperature)
    predicted = logs.argmax(1)
    order = np.argsort(-logs, axis=1, kind="stable")
    expected = reference.accuracy(evidence)
    held = np.take_along_axis(reference.sets(logs, expected), order, 1)
    counts = np.bincount(predicted, minlength=len(classes))
    before = np.array([reference.shares[name] for name in classes])
    corrected_shares, corrected = estimate_shares(warm, before)
    measured = None
    if labels is not None:
        pairs = zip(predicted, labels, strict=True)
        measured = sum(classes[one] == label for one, label in pairs) / n
    tried = reference.sets.tried.values()
    return PlaceReport(
        inputs=n,
        expected=expected,
        interval=reference.accuracy.interval(evidence),
        error=reference.accuracy.error,
        known_accuracies=reference.accuracy.accuracies,
        estimates=reference.accuracy.tried[reference.accuracy.name],
        shares=dict(zip(classes, (counts / n).tolist(), strict=True)),
        corrected_shares=dict(zip(classes, corrected_shares.tolist(), strict=True)),
        likely=[
            tuple(classes[k] for k, one in zip(row, mine, strict=True) if one)
            for row, mine in zip(order.tolist(), held.tolist(), strict=True)
        ],
        level=reference.sets.level,
        trust=reference.sets.trust,
        decided=_range(one.decided for one in tried),
        decided_right=_range(one.right for one in tried),
        drift=drift,
        beyond=None if drift is None else _beyond(drift, reference.distances.values()),
        moved=moved,
        energy=seen.energy if reference.energies else None,
        energies=reference.energies,
        corrected=corrected,
        measured=measured,
    )


def _compare(reference: Reference, evidence: Evidence, features: Array) -> tuple[Evidence, Drift]:
    known = reference.features
    if known is None:
        raise ValueError("the features of the known domains are missing")
    wanted, came = len(known.domains.centre), features.shape[1]
    if came != wanted:
        raise ValueError(
            f"the model has {came:,} features, but {FILE} is of a model with {wanted:,}; copy it "
            "from the folder of the same fit"
        )
    points = known.domains.project(features)
    generator = np.random.default_rng(SEED)
    drift = measure_drift(known.domains, known.drift, known.usual, points, generator)
    agree = drift.classes == evidence.log_probabilities.argmax(1)
    return replace(evidence, agreement=float(agree.mean()), distance=drift.distance), drift


def _beyond(drift: Drift, distances: Collection[float]) -> bool | None:
    if drift.alarm is None or not distances:
        return None
    return drift.alarm and drift.distance > BEYOND * max(distances)


def _range(values: Iterable[float | None]) -> tuple[float, float] | None:
    known = [one for one in values if one is not None]
    return (min(known), max(known)) if known else None
