"""Estimates: what was measured of each candidate on domains that were left out.

These are plain values: names, numbers and arrays, without files and without torch. A verdict is a
pure function of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ..catalogue import JUDGES
from ..choices import choose
from ..results.metrics import METRICS, Metric

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# From the simplest to the least simple. A "head" is trained on frozen features; a "penalty" is any
# method that adds something to plain training.
FAMILIES = ("logistic regression", "trees", "head", "erm", "penalty")
# The baselines, which train no network. Their titles are words, and not names.
BASELINE_FAMILIES = FAMILIES[:2]


@dataclass(frozen=True)
class Candidate:
    """A way to train that can be deployed.

    Args:
        key: its name in files.
        title: its name in tables.
        family: one of ``FAMILIES``.
        variant: whether it has other settings than the defaults of its method.
    """

    key: str
    title: str
    family: str
    variant: bool = False

    @property
    def name(self) -> str:
        """Its name inside a sentence: "logistic regression", but "ERM"."""
        if self.family not in BASELINE_FAMILIES:
            return self.title
        return self.title[:1].lower() + self.title[1:]


def by_simplicity(candidate: Candidate) -> int:
    """Return the place of a candidate's family, as a key to sort by."""
    return FAMILIES.index(candidate.family)


@dataclass(frozen=True)
class Predictions:
    """A candidate's log-probabilities ``[n, C]`` on a domain that was left out, and the labels."""

    log_probabilities: Array
    labels: Labels


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """The scores of all candidates on the domains that were left out.

    A candidate's score on a domain is that of a run which left the domain out. Whatever a candidate
    chooses for itself, such as λ, must be chosen without that domain. Scores of one domain in
    several trials are averaged; they need not be equally many.

    Args:
        candidates: all that were tried, the simplest first.
        metric: one of ``METRICS``; ``judge`` is one of ``JUDGES``.
        examples: the number of examples of every domain, in the order of tables.
        scores: by candidate and domain, the score of each trial. Domains that a candidate did not
            leave out are missing.
        pairs: by candidate and two domains (d, v), the score on v of a run that left out both.
        inside: by candidate, the score on held-out examples of the training domains.
        calibration_errors: as ``scores``.
        guess: by domain, the score without a model: the class frequencies of the other domains.
        majority: by domain, the score of always predicting the domain's own most frequent class.
        chance: by domain, the score of guessing.
        failed: the runs that failed, as candidate and domain.
        more_seconds: the time in which the candidates that had none could be compared too; None if
            it is not known.
        nesting_seconds: the time in which the choice could be nested; None if it is not known.
        collapsed: candidates that did not even learn their training domains; they are not compared.
        predictions: by candidate and domain; only needed for a temperature.
        pair_predictions: by candidate and two domains as in ``pairs``, a function that reads the
            predictions. All of them together could be more than memory holds.
    """

    candidates: tuple[Candidate, ...]
    metric: str = "accuracy"
    judge: str = "mean"
    examples: Mapping[str, int]
    scores: Mapping[str, Mapping[str, Sequence[float]]]
    pairs: Mapping[str, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    inside: Mapping[str, float] = field(default_factory=dict)
    calibration_errors: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    guess: Mapping[str, float]
    majority: Mapping[str, float]
    chance: Mapping[str, float]
    failed: frozenset[tuple[str, str]] = frozenset()
    more_seconds: float | None = None
    nesting_seconds: float | None = None
    collapsed: frozenset[str] = frozenset()
    predictions: Mapping[str, Mapping[str, Predictions]] = field(default_factory=dict)
    pair_predictions: Mapping[str, Mapping[tuple[str, str], Callable[[], Predictions]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        choose("metric", self.metric, METRICS)
        choose("judge", self.judge, JUDGES)
        keys = [candidate.key for candidate in self.candidates]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError(f"candidates need keys that differ, got {', '.join(keys) or 'none'}")
        for candidate in self.candidates:
            choose("family", candidate.family, FAMILIES)
        if list(self.candidates) != sorted(self.candidates, key=by_simplicity):
            raise ValueError(
                f"candidates must be in the order of their families, {', '.join(FAMILIES)}; got "
                f"{', '.join(f'{one.key} ({one.family})' for one in self.candidates)}"
            )
        for key, found in self.scores.items():
            choose("candidate", key, keys)
            for domain, trials in found.items():
                choose("domain", domain, self.examples)
                if not len(trials):
                    raise ValueError(f"{key} has no trial on {domain!r}; omit the domain")
        for name in ("guess", "majority", "chance"):
            if missing := [one for one in self.examples if one not in getattr(self, name)]:
                raise ValueError(f"{name} lacks the domains {', '.join(missing)}")

    @property
    def measure(self) -> Metric:
        """The metric itself."""
        return METRICS[self.metric]

    @property
    def constant(self) -> str:
        """What is answered without a model: one class, or for the log-loss the shares of all."""
        return "class frequencies" if self.metric == "log-loss" else "most frequent class"

    def candidate(self, key: str) -> Candidate:
        """Return the candidate of this key."""
        return next(one for one in self.candidates if one.key == key)

    @cached_property
    def unscored(self) -> tuple[str, ...]:
        """Domains on which no candidate has a finite score: with one class there is no AUROC."""

        def known(domain: str) -> list[float]:
            return [value for found in self.scores.values() for value in found.get(domain, ())]

        return tuple(
            domain
            for domain in self.examples
            if known(domain) and not any(map(math.isfinite, known(domain)))
        )

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains that count."""
        return tuple(one for one in self.examples if one not in self.unscored)

    def mean(self, key: str, domain: str) -> float:
        """Return a candidate's mean over the trials of a domain; NaN if it has none."""
        trials = self.scores.get(key, {}).get(domain, ())
        return fmean(trials) if len(trials) else math.nan

    def left_out(self, key: str) -> tuple[str, ...]:
        """Return the domains on which a candidate has a score."""
        return tuple(one for one in self.domains if math.isfinite(self.mean(key, one)))

    @cached_property
    def complete(self) -> tuple[Candidate, ...]:
        """The candidates with a score on every domain; only these are compared."""
        return tuple(
            one
            for one in self.candidates
            if self.left_out(one.key) == self.domains and one.key not in self.collapsed
        )

    @property
    def simplicity(self) -> list[int]:
        """The place of each complete candidate's family, the simplest first."""
        return list(map(by_simplicity, self.complete))

    @cached_property
    def trials(self) -> tuple[int, int]:
        """The fewest and the most trials of a domain."""
        counts = [len(trials) for found in self.scores.values() for trials in found.values()]
        return min(counts, default=0), max(counts, default=0)

    @property
    def nested(self) -> bool:
        """Whether every complete candidate has the scores of all pairs of domains."""
        wanted = [(d, v) for d in self.domains for v in self.domains if d != v]
        found = [self.pairs.get(one.key, {}) for one in self.complete]
        return len(self.domains) > 1 and all(
            math.isfinite(mine.get(pair, math.nan)) for mine in found for pair in wanted
        )

    def table(self) -> Array:
        """Return the scores of the complete candidates, ``[M, K]``."""
        return np.array([[self.mean(c.key, d) for d in self.domains] for c in self.complete])
