"""Temperature: one number that calibrates probabilities for domains that were left out.

Probabilities become softmax(log p / T). T is fitted to predictions on domains that were left out,
because a model is surer of itself on domains that it knows, where T would be too small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results.metrics import calibration_error, log_loss
from .estimates import Predictions
from .paired import weighted_mean, weights_of

Array = NDArray[np.float64]
# 1/T is searched between these; the loss hardly changes beyond them.
COLDEST, HOTTEST = 1 / 50, 50.0
STEPS = 200
# The share of the log-loss that it must take away to be used, and what the calibration error may
# rise by.
MATTERS = 0.01
# Log-probabilities below that of 2.2e-16 count as it: trees give probabilities of zero.
LOWEST = float(np.log(np.finfo(np.float64).eps))


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A temperature and its effect on domains that had no part in it.

    The losses and errors are weighted means over domains. For "after", each domain gets the
    temperature that the others give.

    Args:
        value: from all domains; probabilities get softer above 1.
        nested: whether the domain was left out of the runs that give its temperature, too.
    """

    value: float
    nested: bool = False
    log_loss_before: float
    log_loss_after: float
    calibration_error_before: float
    calibration_error_after: float

    @property
    def helps(self) -> bool:
        """Whether it lowers the log-loss on domains that had no part in it by more than noise.

        The calibration error must not rise for it: a few hard domains can ask for a temperature
        that is far too high for the others.
        """
        lower = self.log_loss_after < (1 - MATTERS) * self.log_loss_before
        return lower and self.calibration_error_after <= self.calibration_error_before + MATTERS

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"helps": self.helps}


def fit_temperature(domains: Sequence[Predictions]) -> float:
    """Return the T with the lowest weighted mean of the domains' mean log-losses.

    The loss is convex in 1/T, so its derivative has one zero. Newton's steps find it; a step that
    leaves the bracket is replaced by a bisection.
    """
    weights = weights_of([len(one.labels) for one in domains])
    logs = [np.maximum(np.asarray(one.log_probabilities, np.float64), LOWEST) for one in domains]
    labels = [one.labels for one in domains]
    low, high, inverse = COLDEST, HOTTEST, 1.0
    for _ in range(STEPS):
        slopes = [_slopes(z, y, inverse) for z, y in zip(logs, labels, strict=True)]
        slope, curvature = weighted_mean(np.array(slopes).T, weights)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following
    return float(1 / inverse)


def _slopes(logs: Array, labels: NDArray[np.int64], inverse: float) -> tuple[float, float]:
    """Return the first and second derivative of a domain's mean log-loss by 1/T."""
    p = scaled(logs, 1 / inverse)
    mean = (p * logs).sum(1)
    mine = logs[np.arange(len(labels)), labels]
    spread = (p * np.square(logs - mean[:, None])).sum(1)
    return float((mean - mine).mean()), float(spread.mean())


def scaled(log_probabilities: Array, temperature: float) -> Array:
    """Return softmax(log p / T), in float64."""
    z = np.maximum(np.asarray(log_probabilities, np.float64), LOWEST) / temperature
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def measure_temperature(
    predictions: Mapping[str, Predictions],
    pairs: Mapping[tuple[str, str], Callable[[], Predictions]] | None = None,
) -> Temperature:
    """Return the temperature of a candidate, and its effect with each domain left out in turn.

    Args:
        predictions: by domain, of runs that left it out; two domains or more.
        pairs: by two domains (d, v), reads the predictions on v of a run that left out both. If all
            are there, the temperature for d is found by them.
    """
    if len(predictions) < 2:
        raise ValueError(
            f"a temperature needs predictions on two domains or more, got {len(predictions)}"
        )
    weights = weights_of([len(one.labels) for one in predictions.values()])
    wanted = {d: [(d, v) for v in predictions if v != d] for d in predictions}
    pairs = pairs or {}
    nested = all(pair in pairs for mine in wanted.values() for pair in mine)
    rows = []
    for domain, one in predictions.items():
        if nested:
            others = [pairs[pair]() for pair in wanted[domain]]
        else:
            others = [predictions[v] for _, v in wanted[domain]]
        both = [scaled(one.log_probabilities, t) for t in (1.0, fit_temperature(others))]
        rows.append([s(p, one.labels) for s in (log_loss, calibration_error) for p in both])
    losses = weighted_mean(np.array(rows).T, weights).tolist()
    return Temperature(
        value=fit_temperature(list(predictions.values())),
        nested=nested,
        log_loss_before=losses[0],
        log_loss_after=losses[1],
        calibration_error_before=losses[2],
        calibration_error_after=losses[3],
    )
