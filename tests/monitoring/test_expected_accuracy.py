"""Accuracy without labels: estimators against plain versions, and what they learn from domains."""

import math

import numpy as np
import pytest

from shoal.monitoring.expected_accuracy import (
    ESTIMATORS,
    LEAST,
    AccuracyEstimator,
    Evidence,
    Outcomes,
    agreement,
    confidence,
    difference,
    distance,
    entropies,
    learn_estimator,
    threshold,
)
from shoal.results.student import quantile


def outcomes(seed: int, n: int = 400, noise: float = 1.0, sharpness: float = 1.0) -> Outcomes:
    """Return predictions whose classes are drawn from their own probabilities, if sharpness is 1.

    A sharpness above 1 makes them too sure.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 4)) / noise
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(4, p=row) for row in p])
    z = sharpness * logits
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    seen = Evidence(logs, agreement=0.5 + 0.4 / noise / 3, distance=1 + noise, known=0.9)
    return Outcomes(seen, logs.argmax(1) == labels)


DOMAINS = [outcomes(k) for k in range(3)]


def named(domains: list[Outcomes]) -> dict[str, Outcomes]:
    return {f"domain {k}": one for k, one in enumerate(domains)}


def test_estimators_on_three_rows_by_hand() -> None:
    p = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])
    logs = np.log(p)
    seen = Evidence(logs, agreement=2 / 3, distance=1.5, known=0.8)
    expected = [-(row * np.log(row)).sum() for row in p]
    assert entropies(logs) == pytest.approx(expected)
    assert confidence(seen, 0.0) == pytest.approx((0.5 + 0.9 + 0.8) / 3)
    # At temperature 2, probabilities are as their square roots.
    roots = np.sqrt(p)
    assert confidence(seen, math.log(2)) == pytest.approx(
        np.mean(roots.max(1) / roots.sum(1)), rel=1e-12
    )
    assert threshold(seen, math.log(0.6)) == pytest.approx(2 / 3)
    assert threshold(seen, math.log(0.4)) == pytest.approx(1 / 3)
    mean = (0.5 + 0.9 + 0.8) / 3
    odds = mean / (1 - mean) * math.exp(-0.7)
    assert difference(seen, -0.7) == pytest.approx(odds / (1 + odds))
    odds = 2 * math.exp(0.3)
    assert agreement(seen, 0.3) == pytest.approx(odds / (1 + odds))
    odds = 4 * math.exp(-1.5 * 0.2)
    assert distance(seen, 0.2) == pytest.approx(odds / (1 + odds))


def test_probabilities_of_zero_have_an_entropy() -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.array([[1.0, 0.0]]))
        assert entropies(logs) == pytest.approx([0.0])


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_the_exact_number_is_exactly_right(name: str, sharpness: float) -> None:
    domain = outcomes(0, sharpness=sharpness)
    number = ESTIMATORS[name].exact(domain)
    assert ESTIMATORS[name].estimate(domain.evidence, number) == pytest.approx(
        domain.accuracy, abs=1e-6
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("right", [True, False])
def test_all_right_or_all_wrong_is_no_failure(name: str, right: bool) -> None:
    domain = outcomes(0, n=50)
    alike = Outcomes(domain.evidence, np.full(50, right))
    number = ESTIMATORS[name].exact(alike)
    assert math.isfinite(number)
    found = ESTIMATORS[name].estimate(domain.evidence, number)
    assert found > 0.9 if right else found < 0.4


def test_the_temperature_of_calibrated_predictions_is_one() -> None:
    domain = outcomes(1, n=20_000)
    assert math.exp(ESTIMATORS["confidence"].exact(domain)) == pytest.approx(1.0, abs=0.05)
    too_sure = outcomes(1, n=20_000, sharpness=3.0)
    assert math.exp(ESTIMATORS["confidence"].exact(too_sure)) == pytest.approx(3.0, abs=0.15)


def test_an_easier_place_is_expected_to_be_easier() -> None:
    """The model is three times too sure everywhere, and places differ in how hard they are."""
    known = [
        outcomes(k, noise=noise, sharpness=3.0) for k, noise in enumerate((1.2, 0.8, 0.6, 0.4))
    ]
    found = learn_estimator(named(known))
    for noise in (1.0, 0.5, 0.25):
        new = outcomes(99, n=2000, noise=noise, sharpness=3.0)
        assert found(new.evidence) == pytest.approx(new.accuracy, abs=0.06)
        interval = found.interval(new.evidence)
        assert interval is not None and interval[0] < new.accuracy < interval[1]
    assert set(found.tried) == set(ESTIMATORS)


def test_numbers_residuals_and_the_deviation_are_those_of_a_plain_loop() -> None:
    known = [outcomes(k, n=100 + 50 * k, noise=0.5 + 0.2 * k, sharpness=2.0) for k in range(4)]

    def logit(p: float, n: int) -> float:
        p = min(max(p, 0.5 / n), 1 - 0.5 / n)
        return math.log(p / (1 - p))

    squares, tried, by_domain = {}, {}, {}
    for name, (estimate, exact, _) in ESTIMATORS.items():
        residuals, estimates = [], []
        for k, one in enumerate(known):
            others = [exact(other) for j, other in enumerate(known) if j != k]
            found = estimate(one.evidence, sum(others) / 3)
            n = len(one.right)
            residuals.append(logit(one.accuracy, n) - logit(found, n))
            estimates.append(found)
        squares[name], tried[name] = np.mean(np.square(residuals)), estimates
        by_domain[name] = np.square(residuals)
    best = min(squares, key=squares.__getitem__)
    found = learn_estimator(named(known))
    assert found.name == best
    assert found.number == pytest.approx(np.mean([ESTIMATORS[best].exact(one) for one in known]))
    pooled = (squares[best] + np.median(list(squares.values()))) / 2
    assert found.deviation == pytest.approx(math.sqrt(pooled))
    for name, estimates in tried.items():
        assert list(found.tried[name].values()) == pytest.approx(estimates)
    assert list(found.accuracies.values()) == [one.accuracy for one in known]
    gaps = []
    for k, one in enumerate(known):
        # The estimator is chosen without the domain, too.
        chosen = min(by_domain, key=lambda name: np.delete(by_domain[name], k).sum())
        gaps.append(abs(one.accuracy - tried[chosen][k]))
    assert found.error == pytest.approx(np.mean(gaps))


def test_the_error_of_the_luckiest_estimator_is_not_promised() -> None:
    """All five say nothing of the accuracy; the closest one on three domains is chosen by luck."""
    rng = np.random.default_rng(0)

    def place() -> Outcomes:
        logs = np.log(rng.dirichlet([rng.uniform(0.2, 2.0)] * 3, 200))
        distance = rng.uniform(0.5, 2.0)
        seen = Evidence(logs, agreement=rng.uniform(0.5, 0.9), distance=distance, known=0.9)
        return Outcomes(seen, rng.random(200) < rng.uniform(0.5, 0.95))

    promised, lucky, found = [], [], []
    for _ in range(80):
        estimator = learn_estimator({str(k): place() for k in range(3)})
        new = place()
        found.append(abs(estimator(new.evidence) - new.accuracy))
        promised.append(estimator.error)
        mine = estimator.tried[estimator.name]
        lucky.append(np.mean([abs(mine[k] - one) for k, one in estimator.accuracies.items()]))
    assert np.mean(lucky) < 0.8 * np.mean(found)
    assert 0.8 < np.mean(promised) / np.mean(found) < 1.25


def test_the_interval_by_hand() -> None:
    logs = np.log(np.tile([0.8, 0.2], (100, 1)))
    found = AccuracyEstimator(
        name="difference",
        number=0.0,
        deviation=0.3,
        error=0.0,
        accuracies=dict.fromkeys("abcde", 0.5),
        tried={"difference": dict.fromkeys("abcde", 0.5)},
    )
    middle = math.log(4)
    room = quantile(0.95, 4) * math.sqrt(0.3**2 + 1 / (100 * 0.8 * 0.2))
    expected = [1 / (1 + math.exp(-(middle + side * room))) for side in (-1, 1)]
    assert found.interval(Evidence(logs)) == pytest.approx(tuple(expected))


def test_few_domains_have_no_interval_and_one_has_nothing() -> None:
    domains = [outcomes(k) for k in range(LEAST)]
    logs = domains[0].evidence
    assert learn_estimator(named(domains[:2])).interval(logs) is None
    assert learn_estimator(named(domains)).interval(logs) is not None
    with pytest.raises(ValueError, match="two domains or more, got 1"):
        learn_estimator(named(domains[:1]))


def test_what_features_do_not_tell_is_not_tried() -> None:
    known = named(
        [Outcomes(Evidence(one.evidence.log_probabilities), one.right) for one in DOMAINS]
    )
    assert set(learn_estimator(known).tried) == {"threshold", "confidence", "difference"}


def test_agreement_is_taken_where_confidence_lies() -> None:
    """The model is equally sure everywhere; a second classifier agrees as often as it is right."""
    domains = {}
    for k, right in enumerate((0.9, 0.7, 0.5, 0.8)):
        seen = Evidence(outcomes(0).evidence.log_probabilities, right + 0.02, 1.0, 0.95)
        domains[str(k)] = Outcomes(seen, np.arange(400) < 400 * right)
    found = learn_estimator(domains)
    assert found.name == "agreement"
    new = Evidence(outcomes(0).evidence.log_probabilities, 0.62, 1.0, 0.95)
    assert found(new) == pytest.approx(0.6, abs=0.02)


def test_all_inputs_can_be_right_or_wrong() -> None:
    """No expit is 1, but 20 of 20 inputs often are right, and the interval must say so."""
    alike = dict.fromkeys("abcde", 0.97)
    for p in (0.97, 0.03):
        found = AccuracyEstimator(
            name="difference",
            number=math.log(p / (1 - p)),
            deviation=0.1,
            error=0.0,
            accuracies=alike,
            tried={"difference": alike},
        )
        ends = found.interval(Evidence(np.log(np.full((20, 2), 0.5))))
        assert ends is not None
        assert ends[1] == 1.0 and 0.5 < ends[0] < 0.97 if p > 0.5 else ends[0] == 0.0
    # With many inputs, 1 is as far as any other share.
    high = found.interval(Evidence(np.log(np.full((20_000, 2), 0.5))))
    assert high is not None and 0.0 < high[0] < high[1] < 0.1


@pytest.mark.parametrize("level", [0.9, 0.97])
def test_nine_in_ten_places_are_inside_also_of_few_inputs(level: float) -> None:
    """Places differ by 0.3 logits; the model knows how sure to be, but for that."""
    rng = np.random.default_rng(0)

    def place(n: int) -> Outcomes:
        odds = level / (1 - level) * math.exp(0.3 * rng.normal())
        logs = np.log(np.tile([level, 1 - level], (n, 1)))
        return Outcomes(Evidence(logs), rng.random(n) < odds / (1 + odds))

    inside = []
    for _ in range(60):
        found = learn_estimator({str(k): place(500) for k in range(6)})
        for _ in range(5):
            new = place(20)
            interval = found.interval(new.evidence)
            assert interval is not None
            inside.append(interval[0] <= new.accuracy <= interval[1])
    assert np.mean(inside) > 0.88


def test_one_sure_input_is_not_taken_for_a_guess() -> None:
    """A mean probability and an accuracy on known domains are no shares of the inputs."""
    one = Evidence(np.log([[0.96, 0.04]]), distance=0.0, known=0.96)
    assert difference(one, 0.0) == pytest.approx(0.96)
    assert distance(one, 0.0) == pytest.approx(0.96)


def test_a_place_like_the_known_ones_has_a_moderate_number() -> None:
    """What is lost on a domain that is not far from the others is not lost by its distance."""
    logs = outcomes(0).evidence.log_probabilities
    known = {
        str(k): Outcomes(Evidence(logs, distance=0.0, known=0.9), np.arange(400) < right)
        for k, right in enumerate((364, 352, 358))
    }
    number = ESTIMATORS["distance"].exact(known["1"])
    assert 0 < number < 5
    for one in known.values():
        exact = ESTIMATORS["distance"].exact(one)
        assert distance(one.evidence, exact) == pytest.approx(one.accuracy)
