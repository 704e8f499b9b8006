"""Prediction sets: the order statistic of the domains' limits, and what sets hold."""

import math

import numpy as np
import pytest

from shoal.monitoring.prediction_sets import SetRule, learn_sets, limit_of


def domain(seed: int, n: int = 200, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = (1 + seed % 4) * rng.normal(size=(n, classes))
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    return logs, rng.integers(0, classes, n)


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
    found = learn_sets(domains)
    assert found.limit == limits[place - 1]
    assert found.trust == pytest.approx(place / (number + 1))
    assert (found.trust >= found.level) == (number >= 9)


def test_sets_hold_likely_classes_and_always_the_first() -> None:
    rule = SetRule(limit=-math.log(0.25), level=0.9, domains=3, trust=0.75)
    p = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.22, 0.2, 0.58], [0.24, 0.2, 0.2]])
    expected = [
        [True, False, False],
        [True, True, True],
        [False, False, True],
        [True, False, False],
    ]
    assert rule(np.log(p)).tolist() == expected


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
        covered.append(limit_of(*new) <= learn_sets(known).limit)
    share = np.mean(covered)
    assert abs(share - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 300)


def test_no_domain_is_an_error() -> None:
    with pytest.raises(ValueError, match="need a domain"):
        learn_sets([])
