"""Prediction sets: the order statistic of the domains' limits, and what sets hold."""

import math

import numpy as np
import pytest

from shoal.monitoring.expected_accuracy import at_temperature
from shoal.monitoring.prediction_sets import (
    SetDomain,
    at_place,
    learn_sets,
    limit_of,
    sets_of,
)


def domain(seed: int, n: int = 200, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = (1 + seed % 4) * rng.normal(size=(n, classes))
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    return logs, rng.integers(0, classes, n)


def left_out(logs: np.ndarray, labels: np.ndarray) -> SetDomain:
    """Return a domain that is expected to be as hard as the model says."""
    return SetDomain(logs, labels, float(np.exp(logs.max(1)).mean()))


def test_the_limit_of_a_domain_covers_as_many_as_asked_and_not_more() -> None:
    logs, labels = domain(0)
    limit = limit_of(logs, labels, 0.9)
    mine = logs[np.arange(200), labels]
    # ⌈201 · 0.9⌉ = 181 of 200.
    assert (mine >= -limit).sum() == 181


@pytest.mark.parametrize(("number", "place"), [(1, 1), (4, 4), (8, 8), (9, 9), (19, 18), (29, 27)])
def test_which_of_the_limits_is_taken(number: int, place: int) -> None:
    domains = [domain(k) for k in range(number)]
    limits = sorted(limit_of(*one) for one in domains)
    found = learn_sets({str(k): left_out(*one) for k, one in enumerate(domains)})
    assert found.limit == pytest.approx(limits[place - 1])
    assert found.single == pytest.approx(limits[place - 1])
    assert found.trust == pytest.approx(place / (number + 1))
    assert (found.trust >= found.level) == (number >= 9)


def test_sets_hold_likely_classes_and_always_the_first() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.22, 0.2, 0.58], [0.24, 0.2, 0.2]])
    expected = [
        [True, False, False],
        [True, True, True],
        [False, False, True],
        [True, False, False],
    ]
    assert sets_of(np.log(p), -math.log(0.25)).tolist() == expected


def test_a_new_domain_is_covered_as_often_as_the_trust_says() -> None:
    """Domains are exchangeable: the largest of K limits covers a new one with K / (K + 1)."""
    covered = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        domains = []
        for _ in range(5):
            scale = rng.uniform(0.5, 3.0)
            z = scale * rng.normal(size=(100, 4))
            logs = z - np.log(np.exp(z).sum(1, keepdims=True))
            domains.append((logs, rng.integers(0, 4, 100)))
        *known, new = domains
        rule = learn_sets({str(k): left_out(*one) for k, one in enumerate(known)})
        covered.append(limit_of(*new) <= rule.limit + 1e-9)
    share = np.mean(covered)
    assert abs(share - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 300)


def test_no_domain_is_an_error() -> None:
    with pytest.raises(ValueError, match="need a domain"):
        learn_sets({})


def test_at_a_place_the_model_is_as_sure_as_is_expected() -> None:
    logs, _ = domain(2)
    for expected in (0.4, 0.6, 0.9):
        moved = at_place(logs, expected)
        assert np.exp(moved).sum(1) == pytest.approx(1.0)
        assert np.exp(moved.max(1)).mean() == pytest.approx(expected, abs=1e-9)
        assert (moved.argmax(1) == logs.argmax(1)).all()


def test_where_the_model_is_too_sure_its_sets_are_larger() -> None:
    """Two domains look alike; in one of them the model is right less often, and it is known."""
    logs, labels = domain(1)
    rule = learn_sets({"a": left_out(logs, labels), "b": left_out(*domain(2))})
    sizes = [rule(logs, expected).sum(1).mean() for expected in (0.9, 0.7, 0.5)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_single_inputs_have_the_limit_at_the_temperature_of_the_model() -> None:
    domains = {str(k): left_out(*domain(k)) for k in range(3)}
    warm = [
        limit_of(at_temperature(one.log_probabilities, 2.0), one.labels) for one in domains.values()
    ]
    assert learn_sets(domains, temperature=2.0).single == pytest.approx(max(warm))


def test_what_was_tried_on_a_domain_uses_the_limits_of_the_others() -> None:
    domains = {str(k): left_out(*domain(k)) for k in range(4)}
    found = learn_sets(domains)
    for name, one in domains.items():
        limit = max(
            limit_of(o.log_probabilities, o.labels) for k, o in domains.items() if k != name
        )
        held = sets_of(one.log_probabilities, limit)
        alone = held.sum(1) == 1
        right = (one.log_probabilities.argmax(1) == one.labels)[alone]
        assert found.tried[name].coverage == pytest.approx(
            held[np.arange(200), one.labels].mean(), abs=1e-6
        )
        assert found.tried[name].decided == pytest.approx(alone.mean(), abs=1e-6)
        if len(right):
            assert found.tried[name].right == pytest.approx(right.mean(), abs=0.02)
