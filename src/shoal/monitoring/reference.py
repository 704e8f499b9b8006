"""Reference: what a model's folder keeps of its domains, to tell what it does at a new place.

Numbers are an entry of the model's card; moments of the features are arrays in a file of their own.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drift import SIZES, DriftRule
from .expected_accuracy import ESTIMATORS, AccuracyEstimator, Outcomes, learn_estimator
from .known_domains import DIMENSIONS, VECTORS, KnownDomains
from .prediction_sets import SetDomain, SetRule, SetTrial, learn_sets

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Its entry in a model's card, and its file of arrays.
ENTRY, FILE = "monitor", "reference.safetensors"
ARRAYS = ("centre", "scale", "basis", "means", "counts", "columns", "vectors")
# Numbers of estimators are logits or logarithms; larger ones are no result of a fit.
LARGEST = 100.0


@dataclass(frozen=True, kw_only=True)
class KnownFeatures:
    """The moments of the known domains, and what is usual among them.

    Args:
        usual: the squared distance from its nearest class that one in a hundred examples exceeds.
    """

    domains: KnownDomains
    drift: DriftRule
    usual: float


@dataclass(frozen=True, kw_only=True)
class Reference:
    """How to estimate the accuracy at a new place, its prediction sets and its distance.

    Args:
        shares: by class, its share of the training examples.
        known: the accuracy on held-out examples of the domains trained on; None if not known.
        distances: how far each domain that was left out was from the others, in standard
            deviations; empty if not known.
        energies: the mean of −log Σ exp(logits) on each domain; empty if the model has no logits.
        features: None if the features of the model are not known.
    """

    accuracy: AccuracyEstimator
    sets: SetRule
    shares: Mapping[str, float]
    known: float | None = None
    distances: Mapping[str, float]
    energies: Mapping[str, float]
    features: KnownFeatures | None = None

    def as_json(self) -> dict[str, Any]:
        features = self.features
        return {
            "accuracy": self.accuracy.as_json(),
            "sets": self.sets.as_json(),
            "shares": dict(self.shares),
            "known": self.known,
            "distances": dict(self.distances),
            "energies": dict(self.energies),
            "features": None
            if features is None
            else {
                "domains": list(features.domains.names),
                "drift": asdict(features.drift),
                "usual": features.usual,
            },
        }

    @staticmethod
    def from_json(found: Any, arrays: Mapping[str, Array] | None) -> "Reference":
        """Return what ``as_json`` and ``as_arrays`` wrote; raise if it is something else.

        Args:
            arrays: None if there is no such file; then nothing is known of features.
        """
        try:
            return _read(found, arrays)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"the entry {ENTRY!r} of the model's card, or {FILE}, is damaged ({error}); run "
                "the same 'shoal fit' again, which writes them anew and repeats no finished run"
            ) from error


def learn_reference(
    domains: Mapping[str, tuple[Outcomes, Labels]],
    shares: Mapping[str, float],
    temperature: float = 1.0,
    energies: Mapping[str, float] | None = None,
    features: KnownFeatures | None = None,
) -> Reference:
    """Return the reference that predictions on left-out domains give.

    Args:
        domains: by name, what a run that left the domain out did there, and its labels; two
            domains or more.
        shares, energies, features: as in ``Reference``.
        temperature: that the model divides its logits by.
    """
    known = [outcomes.evidence.known for outcomes, _ in domains.values()]
    accuracy = learn_estimator({name: outcomes for name, (outcomes, _) in domains.items()})
    expected = accuracy.tried[accuracy.name]
    of_sets = {
        name: SetDomain(outcomes.evidence.log_probabilities, labels, expected[name])
        for name, (outcomes, labels) in domains.items()
    }
    return Reference(
        accuracy=accuracy,
        sets=learn_sets(of_sets, temperature),
        shares=shares,
        known=None if None in known else float(np.mean(np.array(known, float))),
        distances={
            name: outcomes.evidence.distance
            for name, (outcomes, _) in domains.items()
            if outcomes.evidence.distance is not None
        },
        energies=energies or {},
        features=features,
    )


def as_arrays(known: KnownDomains) -> dict[str, NDArray[Any]]:
    """Return the arrays of known domains by name, in single precision."""
    arrays: dict[str, NDArray[Any]] = {
        name: np.asarray(getattr(known, name), np.float32) for name in ARRAYS
    }
    return {**arrays, "owners": known.owners.astype(np.int32)}


def _read(found: Any, arrays: Mapping[str, Array] | None) -> Reference:
    accuracy, sets = found["accuracy"], found["sets"]
    estimator = AccuracyEstimator(
        name=str(accuracy["name"]),
        number=_finite(accuracy["number"]),
        deviation=_finite(accuracy["deviation"]),
        error=_finite(accuracy["error"]),
        accuracies=_numbers(accuracy["accuracies"]),
        tried={str(k): _numbers(one) for k, one in accuracy["tried"].items()},
    )
    if estimator.name not in ESTIMATORS:
        raise ValueError(f"there is no estimator {estimator.name!r}")
    if abs(estimator.number) > LARGEST or not 0 <= estimator.deviation <= LARGEST:
        raise ValueError("its numbers are too large")
    for one in estimator.tried.values():
        if not one or one.keys() != estimator.accuracies.keys():
            raise ValueError("it was not tried on every domain")
    if estimator.name not in estimator.tried:
        raise ValueError(f"{estimator.name} was not tried")
    described = found["features"]
    features = None if described is None or arrays is None else _features(described, arrays)
    if features is None and ESTIMATORS[estimator.name].needs:
        raise ValueError(f"{estimator.name} needs {FILE}, which is missing")
    return Reference(
        accuracy=estimator,
        sets=SetRule(
            limit=_finite(sets["limit"]),
            single=_finite(sets["single"]),
            level=_finite(sets["level"]),
            trust=_finite(sets["trust"]),
            tried={
                str(name): SetTrial(
                    coverage=_finite(one["coverage"]),
                    decided=_finite(one["decided"]),
                    right=None if one["right"] is None else _finite(one["right"]),
                )
                for name, one in sets["tried"].items()
            },
        ),
        shares=_numbers(found["shares"]),
        known=None if found["known"] is None else _finite(found["known"]),
        distances=_numbers(found["distances"]),
        energies=_numbers(found["energies"]),
        features=features,
    )


def _features(found: Any, arrays: Mapping[str, Array]) -> KnownFeatures:
    names = tuple(map(str, found["domains"]))
    for name in ARRAYS:
        if arrays[name].dtype.kind != "f":
            raise ValueError(f"{name} holds {arrays[name].dtype}")
        if not _are_possible(name, arrays[name]):
            raise ValueError(f"{name} holds values that are not possible")
    doubles = {name: np.asarray(arrays[name], np.float64) for name in ARRAYS}
    owners = np.asarray(arrays["owners"], np.int64)
    p, d = doubles["basis"].shape
    domains, classes, _ = doubles["means"].shape
    wanted = {
        "centre": (p,),
        "scale": (p,),
        "means": (len(names), classes, d),
        "counts": (domains, classes),
        "columns": (domains, p),
        "vectors": (len(owners), d),
    }
    for name, shape in wanted.items():
        if doubles[name].shape != shape:
            raise ValueError(f"{name} has shape {doubles[name].shape}, not {shape}")
    if d > DIMENSIONS or len(owners) > VECTORS or not ((owners >= 0) & (owners < domains)).all():
        raise ValueError("it has too many coordinates or vectors, or vectors of no domain")
    thresholds = tuple(map(_finite, found["drift"]["thresholds"]))
    if len(thresholds) != len(SIZES):
        raise ValueError(f"there are {len(thresholds)} thresholds, not {len(SIZES)}")
    return KnownFeatures(
        domains=KnownDomains(names=names, owners=owners, **doubles),
        drift=DriftRule(thresholds=thresholds),
        usual=_finite(found["usual"]),
    )


def _are_possible(name: str, values: Array) -> bool:
    """Return whether an array of ``KnownDomains`` can hold these values."""
    if name == "scale":  # infinite for a constant feature
        return bool((values > 0).all())
    if name == "means":  # NaN for a class that no domain has
        return not np.isinf(values).any()
    return bool(np.isfinite(values).all())


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _numbers(found: Any) -> dict[str, float]:
    return {str(name): _finite(value) for name, value in found.items()}
