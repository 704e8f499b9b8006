"""The temperature against a search on a fine grid, and its effect on domains it has not seen."""

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from shoal.fitting.estimates import Predictions
from shoal.fitting.temperature import (
    Temperature,
    fit_temperature,
    measure_temperature,
    scaled,
)
from shoal.results.metrics import calibration_error, log_loss


def domain(seed: int, n: int, too_sure: float) -> Predictions:
    """Return predictions whose logits are too large by a factor."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, 3))
    labels = np.array([random.choice(3, p=np.exp(row)) for row in log_softmax(logits, 1)])
    return Predictions(log_softmax(too_sure * logits, 1), labels)


def test_it_minimises_the_mean_of_the_domains_losses() -> None:
    domains = [domain(0, 40, 3.0), domain(1, 500, 2.0), domain(2, 200, 5.0)]
    weights = [40 / 70, 500 / 530, 200 / 230]

    def loss(temperature: float) -> float:
        losses = [
            log_loss(np.exp(log_softmax(one.log_probabilities / temperature, 1)), one.labels)
            for one in domains
        ]
        return float(np.average(losses, weights=weights))

    found = fit_temperature(domains)
    best = minimize_scalar(loss, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9}).x
    assert found == pytest.approx(best, rel=1e-5)
    assert 2 < found < 5


@pytest.mark.parametrize("factor", [0.2, 1.0, 8.0])
def test_a_factor_of_the_logits_is_found(factor: float) -> None:
    assert fit_temperature([domain(3, 20_000, factor)]) == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("right", [True, False])
def test_always_right_or_wrong_stays_within_bounds(right: bool) -> None:
    logs = np.log(np.array([[0.9, 0.1]] * 50))
    found = fit_temperature([Predictions(logs, np.full(50, 0 if right else 1))])
    # Beyond, the loss of what is right is 0 in float64.
    assert 0 < found < 0.1 if right else 40 < found < 51


def test_trees_give_probabilities_of_zero() -> None:
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([[1.0, 0.0], [0.8, 0.2], [0.7, 0.3], [1.0, 0.0]]))
    found = fit_temperature([Predictions(logs, np.array([0, 0, 1, 1]))])
    assert np.isfinite(found) and found > 1
    assert np.isfinite(scaled(logs, found)).all()


def test_its_effect_is_measured_on_domains_that_had_no_part_in_it() -> None:
    domains = {"a": domain(4, 300, 3.0), "b": domain(5, 300, 3.0), "c": domain(6, 300, 0.5)}
    found = measure_temperature(domains)
    after = []
    for name, one in domains.items():
        others = fit_temperature([other for key, other in domains.items() if key != name])
        after.append(scaled(one.log_probabilities, others))
    labels = [one.labels for one in domains.values()]
    for score, value in (
        (log_loss, found.log_loss_after),
        (calibration_error, found.calibration_error_after),
    ):
        expected = [score(p, y) for p, y in zip(after, labels, strict=True)]
        assert value == pytest.approx(np.mean(expected))
    before = [log_loss(np.exp(one.log_probabilities), one.labels) for one in domains.values()]
    assert found.log_loss_before == pytest.approx(np.mean(before))
    assert found.value == pytest.approx(fit_temperature(list(domains.values())))
    # Its own temperature would do better than that of the others, which is what must not be told.
    assert found.log_loss_after > np.mean(
        [
            log_loss(scaled(o.log_probabilities, fit_temperature([o])), o.labels)
            for o in domains.values()
        ]
    )
    lower = found.log_loss_after < 0.99 * found.log_loss_before
    flatter = found.calibration_error_after <= found.calibration_error_before + 0.01
    assert found.helps is (lower and flatter)
    with pytest.raises(ValueError, match="two domains or more, got 1"):
        measure_temperature({"a": domains["a"]})


def test_nested_it_is_found_by_runs_that_never_saw_the_domain() -> None:
    domains = {"a": domain(4, 300, 3.0), "b": domain(5, 300, 3.0), "c": domain(6, 300, 0.5)}
    apart = {
        (d, v): domain(k, 100, 1.0 + k) for k, (d, v) in enumerate(permutations("abc", 2), start=10)
    }
    pairs = {pair: lambda one=one: one for pair, one in apart.items()}
    found = measure_temperature(domains, pairs)
    after = [
        log_loss(
            scaled(
                one.log_probabilities,
                fit_temperature([apart[d, v] for v in "abc" if v != d]),
            ),
            one.labels,
        )
        for d, one in domains.items()
    ]
    assert found.nested
    assert found.log_loss_after == pytest.approx(np.mean(after))
    without = measure_temperature(domains)
    assert found.value == without.value and not without.nested
    del pairs["b", "a"]
    assert measure_temperature(domains, pairs) == without


@pytest.mark.parametrize(
    ("loss", "error", "helps"),
    [(0.98, 0.1, True), (0.995, 0.05, False), (0.8, 0.105, True), (0.8, 0.12, False)],
)
def test_a_temperature_must_help_and_not_harm(loss: float, error: float, helps: bool) -> None:
    found = Temperature(
        value=2.0,
        log_loss_before=1.0,
        log_loss_after=loss,
        calibration_error_before=0.1,
        calibration_error_after=error,
    )
    assert found.helps is helps
