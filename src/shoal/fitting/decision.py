"""Decision: the candidate to deploy, how it compares with others, and on which domains it fails.

A test never decides what is deployed, only which words are used. "Probably" better means that, if
no candidate were better than the one that all are compared with, any of them would be called so in
at most 10 % of cases; for "clearly" it is 5 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ..results.aggregation import TrialMean
from .choice import ROUNDING, choose_candidate, counts_too_little
from .estimates import Candidate, Estimates
from .expectation import Expectation, expect
from .paired import adjusted_p, effective_number, standard_error, weighted_mean, weights_of
from .temperature import Temperature, measure_temperature

Array = NDArray[np.float64]
# The key of what is always guessed without a model.
GUESS = "guess"
# Words by the largest p-value and the fewest domains, of the full weight, that they need.
WORDS = (("clearly", 0.05, 4), ("probably", 0.1, 3))
# What the card calls them.
SURE = {"clearly": "clear", "probably": "likely", "": "undecided"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The scores of a candidate minus those of another, over the same domains.

    Args:
        difference: the weighted mean over domains, as the metric has it; of a loss, less is better.
        error: its standard error.
        wins, losses: the number of domains on which the candidate is better or worse.
        pairs: the number of domains.
        p: one-sided, that the candidate is better; adjusted for all candidates.
        word: "clearly", "probably", or "" if it is not shown to be better.
    """

    difference: float
    error: float
    wins: int
    losses: int
    pairs: int
    p: float
    word: str


@dataclass(frozen=True, kw_only=True)
class CandidateRow:
    """A candidate's line in a table.

    Args:
        cells: by domain, over trials.
        average: the weighted mean over domains; None if a domain is missing.
        worst: the worst of the domains' means; None if a domain is missing.
        calibration_error: the weighted mean over the domains that have one; None without any.
        inside: the score on held-out examples of the training domains.
    """

    key: str
    title: str
    cells: Mapping[str, TrialMean]
    average: float | None
    worst: float | None
    calibration_error: float | None = None
    inside: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """A domain on which the deployed candidate is worse than its most frequent class or chance.

    Args:
        majority: the score of always predicting the domain's own most frequent class.
        chance: the score of guessing.
        below_majority, below_chance: whether the candidate is worse than these.
    """

    domain: str
    score: float
    majority: float
    chance: float
    below_majority: bool
    below_chance: bool


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows from estimates.

    Args:
        deploy: the key of the candidate to deploy.
        best: the key of the candidate that the judge likes best; None without a comparison.
        differences: each complete candidate minus the simplest one.
        from_plain: the deployed candidate minus plain training; None if that is not another one.
        from_best: the deployed candidate minus the best one; None if they are the same.
        gain: the deployed candidate minus the guess without a model.
        shortfalls: domains on which it is worse than their most frequent class, or than chance.
        expectation: None if not every domain was left out.
        temperature: None without predictions of the deployed candidate on all domains.
    """

    estimates: Estimates
    deploy: str
    best: str | None = None
    differences: Mapping[str, Difference]
    from_plain: Difference | None = None
    from_best: Difference | None = None
    gain: Difference | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    expectation: Expectation | None = None
    temperature: Temperature | None = None

    @property
    def compared(self) -> bool:
        """Whether every domain was left out by at least one candidate."""
        return self.best is not None

    @property
    def simplest(self) -> Candidate:
        """The candidate that all others are compared with."""
        return (self.estimates.complete or self.estimates.candidates)[0]

    @property
    def plain(self) -> Candidate | None:
        """Plain training, if it is among the complete candidates."""
        return next((one for one in self.estimates.complete if one.family == "erm"), None)

    @property
    def beaten(self) -> bool | None:
        """Whether the deployed candidate beats the guess by more than the error; None: unknown."""
        if self.gain is None:
            return None
        better = self.estimates.measure.sign * self.gain.difference
        return better - self.gain.error > ROUNDING

    @property
    def sure(self) -> str:
        """How sure it is that the deployed candidate is better than the simplest one.

        "clear", "likely" or "undecided"; "untested" if there is nothing to compare, or no test.
        """
        if len(self.estimates.complete) < 2 or not self.testable:
            return "untested"
        found = self.differences.get(self.deploy)
        return SURE[found.word if found else ""]

    @property
    def testable(self) -> bool:
        """Whether there can be words: not for a worst domain, which is one, nor for two domains."""
        enough = self.counted >= WORDS[-1][-1] and not self.too_little
        return self.estimates.judge == "mean" and enough

    @property
    def too_little(self) -> bool:
        """Whether the domains have too few examples to choose a candidate."""
        return counts_too_little(domain_weights(self.estimates))

    @cached_property
    def counted(self) -> int:
        """The effective number of domains, rounded."""
        return round(effective_number(domain_weights(self.estimates)))

    @cached_property
    def rows(self) -> tuple[CandidateRow, ...]:
        """The lines of a table: of all candidates that have left out every domain, if any has."""
        estimates = self.estimates
        tried = [one for one in estimates.candidates if estimates.scores.get(one.key)]
        whole = [one for one in tried if estimates.left_out(one.key) == estimates.domains]
        return tuple(_row(estimates, one) for one in whole or tried)

    @cached_property
    def guess(self) -> CandidateRow:
        """The line of the guess without a model."""
        values = {name: [self.estimates.guess[name]] for name in self.estimates.domains}
        return _line(self.estimates, GUESS, self.estimates.constant, values)


def make_decision(estimates: Estimates) -> Decision:
    """Return the decision; the simplest candidate is taken if none has left out every domain."""
    if not estimates.complete or len(estimates.domains) < 2:
        tried = [one for one in estimates.candidates if estimates.left_out(one.key)]
        key = (tried or estimates.candidates)[0].key
        return Decision(
            estimates=estimates,
            deploy=key,
            differences={},
            shortfalls=_shortfalls(estimates, key),
        )
    keys, table = [one.key for one in estimates.complete], estimates.table()
    weights = domain_weights(estimates)
    chosen = choose_candidate(
        estimates.measure.sign * table, weights, estimates.judge, estimates.simplicity
    )
    deploy, best = keys[chosen.deploy], keys[chosen.best]
    guess = np.array([[estimates.guess[name] for name in estimates.domains]])
    plain = next((one.key for one in estimates.complete if one.family == "erm"), None)
    return Decision(
        estimates=estimates,
        deploy=deploy,
        best=best,
        differences=_differences(estimates, keys[0]),
        from_plain=_differences(estimates, plain).get(deploy) if plain is not None else None,
        from_best=_differences(estimates, best).get(deploy),
        gain=_compare(estimates, table[[chosen.deploy]] - guess)[0],
        shortfalls=_shortfalls(estimates, deploy),
        expectation=expect(estimates),
        temperature=_temperature(estimates, deploy),
    )


def _temperature(estimates: Estimates, key: str) -> Temperature | None:
    predictions = estimates.predictions.get(key, {})
    if not set(predictions) >= set(estimates.domains):
        return None
    mine = {one: predictions[one] for one in estimates.domains}
    return measure_temperature(mine, estimates.pair_predictions.get(key))


def domain_weights(estimates: Estimates) -> Array:
    """Return the weight of each domain that counts."""
    return weights_of([estimates.examples[name] for name in estimates.domains])


def _differences(estimates: Estimates, baseline: str) -> dict[str, Difference]:
    """Return each complete candidate minus the baseline, which is one of them."""
    keys, table = [one.key for one in estimates.complete], estimates.table()
    others = [k for k, key in enumerate(keys) if key != baseline]
    if not others:
        return {}
    found = _compare(estimates, table[others] - table[keys.index(baseline)])
    return {keys[k]: one for k, one in zip(others, found, strict=True)}


def _compare(estimates: Estimates, differences: Array) -> list[Difference]:
    """Return the comparison of each row ``[M, K]``; p-values are adjusted for all rows."""
    weights, sign = domain_weights(estimates), estimates.measure.sign
    counted = round(effective_number(weights))
    tested = estimates.judge == "mean" and not counts_too_little(weights)
    means, errors = weighted_mean(differences, weights), standard_error(differences, weights)
    found = []
    for row, mean, error, p in zip(
        sign * differences, means, errors, adjusted_p(sign * differences, weights), strict=True
    ):
        found.append(
            Difference(
                difference=float(mean),
                error=float(error),
                wins=int((row > ROUNDING).sum()),
                losses=int((row < -ROUNDING).sum()),
                pairs=len(row),
                p=float(p),
                word=word_for(float(p), counted) if tested else "",
            )
        )
    return found


def word_for(p: float, domains: int) -> str:
    """Return the word for an adjusted p-value from so many domains; "" if there is none."""
    words = [word for word, limit, least in WORDS if p <= limit and domains >= least]
    return words[0] if words else ""


def _shortfalls(estimates: Estimates, key: str) -> tuple[Shortfall, ...]:
    """Return the domains on which a candidate is worse than their most frequent class or chance."""
    sign, found = estimates.measure.sign, []
    for domain in estimates.left_out(key):
        score = estimates.mean(key, domain)
        majority, chance = estimates.majority[domain], estimates.chance[domain]
        below = [sign * (floor - score) > ROUNDING for floor in (majority, chance)]
        if any(below):
            found.append(
                Shortfall(
                    domain=domain,
                    score=score,
                    majority=majority,
                    chance=chance,
                    below_majority=below[0],
                    below_chance=below[1],
                )
            )
    return tuple(found)


def _row(estimates: Estimates, one: Candidate) -> CandidateRow:
    errors = estimates.calibration_errors.get(one.key, {})
    return _line(
        estimates,
        one.key,
        one.title,
        estimates.scores[one.key],
        calibration_error=_average(estimates, errors),
        inside=_finite(estimates.inside.get(one.key, math.nan)),
    )


def _line(
    estimates: Estimates,
    key: str,
    title: str,
    scores: Mapping[str, Sequence[float]],
    *,
    calibration_error: float | None = None,
    inside: float | None = None,
) -> CandidateRow:
    """Return a line; its average and worst are of the domains' means."""
    cells = {name: TrialMean.of(scores[name]) for name in estimates.domains if name in scores}
    cells = {name: cell for name, cell in cells.items() if math.isfinite(cell.mean)}
    whole = len(cells) == len(estimates.domains) > 0
    sign = estimates.measure.sign
    return CandidateRow(
        key=key,
        title=title,
        cells=cells,
        average=_average(estimates, scores) if whole else None,
        worst=sign * min(sign * cell.mean for cell in cells.values()) if whole else None,
        calibration_error=calibration_error,
        inside=inside,
    )


def _average(estimates: Estimates, values: Mapping[str, Sequence[float]]) -> float | None:
    """Return the weighted mean of the domains' means, over the domains that have values."""
    means = {name: fmean(values[name]) for name in estimates.domains if len(values.get(name, ()))}
    means = {name: value for name, value in means.items() if math.isfinite(value)}
    if not means:
        return None
    weights = weights_of([estimates.examples[name] for name in means])
    return float(weighted_mean(np.array(list(means.values())), weights))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
