"""Runs: frozen descriptions, named by the hash of everything that their numbers depend on.

Free of torch, so that plans can be read without it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import (
    EVALUATED,
    OPTIMISERS,
    PRECISIONS,
    SCHEDULES,
    STARTS,
    STOPS,
    LearningRateSchedule,
    OptimiserName,
)
from ..choices import choose
from ..escapes import brief
from ..results.records import IDENTIFYING, Record, RunResult

if TYPE_CHECKING:
    from ..algorithms.optimiser import Optimisation

SCHEMA = 1
IMAGES = ("cached", "exact")
# Fields of a protocol that were added later: at their defaults they are not part of a run.
LATER = ("start", "stop")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of a run, besides its method and its data.

    A field that is added later must not enter the identity at its default (``LATER``), so that
    older runs keep their names.

    Args:
        steps: number of updates.
        record_every: updates between two records.
        holdout: the share of every domain that is held out.
        network: a name of ``shoal.networks``; None chooses by the images' shape.
        weights: "imagenet", None to draw them, or the SHA-256 of a file.
        precision: "float32" or "bf16".
        images: "cached", or "exact" to decode and augment the originals in every step.
        augment: whether training images of large sets are augmented.
        balanced: whether all classes of a domain are equally likely in a batch.
        frozen_statistics: whether batch norm keeps the statistics of the weights it starts from.
        optimiser, schedule, clip: as in ``shoal.algorithms.optimiser.Optimisation``.
        evaluate: "needed" for the splits that selection needs, or "all".
        start: "network", as it is built, or "linear-probe": its head is fitted first.
        stop: the weights that the run ends with: of its "last" update, or those with the smallest
            loss on the "held-out" parts of the training domains, of all its records.
    """

    steps: int = 5001
    record_every: int = 100
    holdout: float = 0.2
    network: str | None = None
    weights: str | None = None
    precision: str = "float32"
    images: str = "cached"
    augment: bool = True
    balanced: bool = False
    frozen_statistics: bool = True
    optimiser: OptimiserName = "adam"
    schedule: LearningRateSchedule = "constant"
    clip: float | None = None
    evaluate: str = "needed"
    start: str = "network"
    stop: str = "last"

    def __post_init__(self) -> None:
        for name in ("holdout", "clip"):
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(number))  # JSON has 1 and 1.0
        for name in ("network", "weights"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ValueError(f"{name} must be a name or None, got {brief(value)}")
        for name in ("augment", "balanced", "frozen_statistics"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {brief(value)}")
        for name in ("steps", "record_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number, 1 or more, got {brief(value)}")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout must be 0 or more and below 1, got {self.holdout}")
        choose("precision", self.precision, PRECISIONS)
        choose("kind of images", self.images, IMAGES)
        choose("choice of splits", self.evaluate, EVALUATED)
        choose("optimiser", self.optimiser, OPTIMISERS)
        choose("schedule", self.schedule, SCHEDULES)
        choose("start", self.start, STARTS)
        choose("stop", self.stop, STOPS)
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ValueError(f"clip must be a norm above 0, or None for none, got {self.clip}")

    def canonical(self) -> dict[str, Any]:
        """Return the protocol as plain values, without later fields at their defaults."""
        return dict(self._canonical)

    @cached_property
    def _canonical(self) -> dict[str, Any]:
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in LATER or getattr(self, f.name) != f.default
        }

    @property
    def optimisation(self) -> "Optimisation":
        """The optimiser, its schedule and its clipping."""
        from ..algorithms.optimiser import Optimisation

        return Optimisation(
            self.optimiser, schedule=self.schedule, steps=self.steps, clip=self.clip
        )


_PROTOCOLS: dict[str, Protocol] = {}


def _shared_protocol(values: Mapping[str, Any]) -> Protocol:
    """Return the protocol of these values; the thousands of runs of a plan share one."""
    key = repr(values)  # unlike the values, it tells 1 from 1.0
    if key not in _PROTOCOLS:
        _PROTOCOLS[key] = Protocol(**values)
    return _PROTOCOLS[key]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: everything that its numbers depend on, and nothing about the machine.

    Args:
        dataset: its name; ``fingerprint`` is a hash of its content.
        algorithm: a name of the registry, or the name of a user's own method.
        test_domains: the domains that are not trained on, in any order.
        trial: seeds the splits, and data sets that are drawn.
        draw: of the hyperparameters; 0 for the defaults.
        hparams: values of the hyperparameters, plain numbers and texts.
    """

    dataset: str
    fingerprint: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int = 0
    draw: int = 0
    hparams: Mapping[str, Any] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        object.__setattr__(self, "test_domains", tuple(sorted(set(self.test_domains))))
        for name, value in self.hparams.items():
            if not isinstance(value, (bool, int, float, str)):
                raise ValueError(
                    f"the hyperparameter {name} must be a bool, int, float or str, because it is "
                    f"saved as JSON, got {type(value).__name__}"
                )

    @cached_property
    def identity(self) -> str:
        """The SHA-256 of the run's canonical JSON."""
        return hashlib.sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()

    def canonical(self) -> dict[str, Any]:
        """Return the run as plain values."""
        plain = {
            "test_domains": list(self.test_domains),
            "hparams": dict(self.hparams),
            "protocol": self.protocol.canonical(),
        }
        return {f.name: getattr(self, f.name) for f in fields(self)} | plain | {"schema": SCHEMA}

    def result(self, records: Sequence[Record], path: Path) -> RunResult:
        """Return the run with its records so far, as selection and reports see it."""
        return RunResult(
            dataset=self.dataset,
            algorithm=self.algorithm,
            test_domains=self.test_domains,
            trial=self.trial,
            draw=self.draw,
            hparams=self.hparams,
            records=tuple(records),
            path=path,
            fingerprint=self.fingerprint,
            protocol=self.protocol.canonical(),
        )

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Run":
        """Return the run that ``canonical`` described; unknown fields are refused."""
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise ValueError(f"expected a run of schema {SCHEMA}, got {brief(values)}")
        given = {key: value for key, value in values.items() if key != "schema"}
        try:
            given["protocol"] = _shared_protocol(given["protocol"])
            found = Run(**given)
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"another version of shoal wrote this run: {error}") from error
        for name, kind in {**IDENTIFYING, "fingerprint": str}.items():
            value = values.get(name, {} if kind is dict else 0)
            if type(value) is not kind:
                raise ValueError(f"the {name} of a run must be {kind.__name__}, got {brief(value)}")
        if not all(isinstance(name, str) for name in found.test_domains):
            raise ValueError(f"test domains must be names, got {brief(found.test_domains)}")
        return found
