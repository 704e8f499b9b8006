"""Reference: what a model's folder keeps of the domains that were left out, for a new place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expected_accuracy import ESTIMATORS, AccuracyEstimator, Outcomes, learn_estimator
from .prediction_sets import SetRule, learn_sets

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Its entry in a model's card.
ENTRY = "monitor"
# Numbers of estimators are logits or logarithms; larger ones are no result of a fit.
LARGEST = 100.0


@dataclass(frozen=True, kw_only=True)
class Reference:
    """How to estimate the accuracy at a new place, and how to make its prediction sets.

    Args:
        shares: by class, its share of the training examples.
    """

    accuracy: AccuracyEstimator
    sets: SetRule
    shares: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy.as_json(),
            "sets": self.sets.as_json(),
            "shares": dict(self.shares),
        }

    @staticmethod
    def from_json(found: Any) -> "Reference":
        """Return what ``as_json`` wrote; raise if it is something else."""
        try:
            accuracy, sets = found["accuracy"], found["sets"]
            read = Reference(
                accuracy=AccuracyEstimator(
                    name=str(accuracy["name"]),
                    number=_finite(accuracy["number"]),
                    deviation=_finite(accuracy["deviation"]),
                    accuracies=_numbers(accuracy["accuracies"]),
                    tried={str(k): _numbers(one) for k, one in accuracy["tried"].items()},
                ),
                sets=SetRule(
                    limit=_finite(sets["limit"]),
                    level=_finite(sets["level"]),
                    domains=int(sets["domains"]),
                    trust=_finite(sets["trust"]),
                ),
                shares=_numbers(found["shares"]),
            )
            if read.accuracy.name not in ESTIMATORS:
                raise ValueError(f"there is no estimator {read.accuracy.name!r}")
            if abs(read.accuracy.number) > LARGEST or not 0 <= read.accuracy.deviation <= LARGEST:
                raise ValueError("its numbers are too large")
            for one in read.accuracy.tried.values():
                if not one or one.keys() != read.accuracy.accuracies.keys():
                    raise ValueError("it was not tried on every domain")
            if read.accuracy.name not in read.accuracy.tried:
                raise ValueError(f"{read.accuracy.name} was not tried")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"the entry {ENTRY!r} of the model's card is damaged ({error}); run the same "
                "'shoal fit' again, which writes it anew and repeats no finished run"
            ) from error
        return read


def learn_reference(
    domains: Mapping[str, tuple[Array, Labels]], shares: Mapping[str, float]
) -> Reference:
    """Return the reference that predictions on left-out domains give.

    Args:
        domains: by name, log-probabilities ``[n, C]`` of a run that left the domain out, and its
            labels; two domains or more.
        shares: as in ``Reference``.
    """
    outcomes = {name: Outcomes(logs, logs.argmax(1) == y) for name, (logs, y) in domains.items()}
    return Reference(
        accuracy=learn_estimator(outcomes),
        sets=learn_sets(list(domains.values())),
        shares=shares,
    )


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _numbers(found: Any) -> dict[str, float]:
    return {str(name): _finite(value) for name, value in found.items()}
