"""Adaptation record: what adaptations did on every domain left out, and which one is offered."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ..results.metrics import METRICS
from .adaptation import ADAPTATIONS

# Its entry in a model's card.
ENTRY = "adaptation"
# The least mean gain, the standard errors that it must exceed, what no domain may lose, and the
# fewest domains whose standard error says something.
WORTH, ERRORS, HARM, FEWEST = 0.01, 2.0, 0.02, 3
# Temperatures that a fit finds are between 1 / 50 and 50.
HOTTEST = 50.0


@dataclass(frozen=True)
class Gain:
    """The gain of an adaptation over the domains left out: mean, standard error, worst domain."""

    mean: float
    error: float
    worst: float
    domain: str
    domains: int

    @staticmethod
    def of(before: Mapping[str, float], after: Mapping[str, float]) -> "Gain":
        """Return the gain from these scores by domain."""
        gains = {domain: after[domain] - score for domain, score in before.items()}
        values, worst = list(gains.values()), min(gains, key=gains.__getitem__)
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        return Gain(fmean(values), error, gains[worst], worst, len(values))

    @property
    def helps(self) -> bool:
        """Whether the adaptation may be offered.

        The mean gain must be a point or more and larger than two standard errors, which two domains
        do not have in any useful way, and no domain may lose more than two points.
        """
        clear = self.domains >= FEWEST and self.mean > ERRORS * self.error
        return clear and self.mean >= WORTH and self.worst >= -HARM

    def __str__(self) -> str:
        points = f"{100 * self.mean:+.1f} points on average"
        known = f" (± {100 * self.error:.1f})" if math.isfinite(self.error) else ""
        return f"{points}{known}, at worst {100 * self.worst:+.1f} on {self.domain}"


def choose_adaptation(
    before: Mapping[str, float],
    after: Mapping[str, Mapping[str, float]],
) -> str | None:
    """Return the adaptation with the largest mean gain of those that help; None if none does.

    Args:
        before: scores by domain, without adaptation.
        after: the same by adaptation.
    """
    gains = {name: Gain.of(before, mine) for name, mine in after.items()}
    helping = [name for name, gain in gains.items() if gain.helps]
    return max(helping, key=lambda name: gains[name].mean, default=None)


@dataclass(frozen=True, kw_only=True)
class AdaptationRecord:
    """What each adaptation did on the domains that were left out.

    Args:
        metric: of the scores, one of ``METRICS``.
        before: scores by domain, without adaptation.
        after: the same by adaptation.
        offered: the one that ``shoal predict --adapt`` applies; None for none.
        temperature: of the adapted log-probabilities of the offered one.
        shares: by class, its share in the training of the model.
    """

    metric: str
    before: Mapping[str, float]
    after: Mapping[str, Mapping[str, float]]
    offered: str | None
    temperature: float
    shares: Mapping[str, float]

    def gain(self, name: str) -> Gain:
        return Gain.of(self.before, self.after[name])

    def refusal(self) -> str:
        """Return why no adaptation is offered, with the numbers."""
        told = "; ".join(f"{name} {self.gain(name)}" for name in self.after)
        return (
            f"no adaptation of this model is offered, because none clearly helped on the domains "
            f"left out ({METRICS[self.metric].title}: {told}); predict without adapting"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "before": dict(self.before),
            "after": {name: dict(mine) for name, mine in self.after.items()},
            "offered": self.offered,
            "temperature": self.temperature,
            "shares": dict(self.shares),
        }

    @staticmethod
    def from_json(found: Any, classes: Collection[str]) -> "AdaptationRecord":
        """Return what ``as_json`` wrote for a model of these classes; raise for anything else."""
        try:
            offered = found["offered"]
            read = AdaptationRecord(
                metric=str(found["metric"]),
                before=_shares(found["before"]),
                after={str(name): _shares(mine) for name, mine in found["after"].items()},
                offered=None if offered is None else str(offered),
                temperature=_number(found["temperature"], 1 / HOTTEST, HOTTEST),
                shares=_shares(found["shares"]),
            )
            if read.metric not in METRICS:
                raise ValueError(f"there is no metric {read.metric!r}")
            for name, mine in read.after.items():
                if name not in ADAPTATIONS:
                    raise ValueError(f"there is no adaptation {name!r}")
                if not mine or mine.keys() != read.before.keys():
                    raise ValueError(f"{name} was not tried on every domain")
            if read.offered is not None and read.offered not in read.after:
                raise ValueError(f"{read.offered} was not tried")
            if read.shares.keys() != set(classes) or not 0.99 < sum(read.shares.values()) < 1.01:
                raise ValueError("the shares of the classes do not add up to 1")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"the entry {ENTRY!r} of the model's card is damaged ({error}); run the same "
                "'shoal fit' again, which writes it anew and repeats no finished run"
            ) from error
        return read


def _number(value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is not between {least:g} and {most:g}")
    return float(value)


def _shares(found: Any) -> dict[str, float]:
    return {str(name): _number(value, 0.0, 1.0) for name, value in found.items()}
