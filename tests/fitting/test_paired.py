"""Paired differences: weights, errors, and p-values against scipy and brute force."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from shoal.fitting.paired import (
    adjusted_p,
    effective_number,
    holm,
    standard_error,
    t_values,
    weighted_mean,
    weights_of,
)
from shoal.results.student import quantile, tail


@pytest.mark.parametrize("degrees", [0.3, 1, 1.26, 2, 4.5, 11, 1000])
def test_students_t_is_scipys(degrees: float) -> None:
    for t in (-40.0, -1.5, 0.0, 0.1, 1.0, 2.3, 12.7, 80.0):
        assert tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-9)
    for p in (0.001, 0.05, 0.5, 0.9, 0.975):
        assert quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-9, abs=1e-12)
    assert (tail(math.inf, degrees), tail(-math.inf, degrees)) == (0, 1)


def test_a_quantile_needs_a_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        quantile(1, 3)


def test_a_domain_of_five_rows_does_not_count_like_one_of_1500() -> None:
    found = weights_of([5, 30, 1500])
    assert found == pytest.approx([5 / 35, 0.5, 1500 / 1530])
    assert effective_number(weights_of([200, 200, 200])) == pytest.approx(3)
    assert effective_number(weights_of([1500, 1500, 5])) == pytest.approx(2.26, abs=0.02)


def test_with_equal_weights_it_is_the_ordinary_t() -> None:
    values = np.array([0.03, -0.01, 0.05, 0.02])
    weights = np.full(4, 0.8)
    assert standard_error(values, weights) == pytest.approx(values.std(ddof=1) / 2)
    assert t_values(values, weights) == pytest.approx(stats.ttest_1samp(values, 0).statistic)
    (p,) = adjusted_p(values[None], weights)
    assert p == pytest.approx(stats.ttest_1samp(values, 0, alternative="greater").pvalue)


def test_the_error_is_unbiased_where_small_domains_vary_more() -> None:
    random = np.random.default_rng(0)
    weights = np.array([0.14, 0.5, 0.9, 1.0])
    values = random.normal(size=(100_000, 4)) / np.sqrt(weights)
    squared = np.square(standard_error(values, weights)).mean()
    assert squared == pytest.approx(weighted_mean(values, weights).var(), rel=0.02)


def test_one_domain_and_no_difference() -> None:
    assert standard_error(np.array([[0.1]]), np.ones(1)) == [math.inf]
    assert adjusted_p(np.array([[0.1]]), np.ones(1)) == [1]
    assert t_values(np.zeros(4), np.ones(4)) == 0
    # 0.7 - 0.6 is not 0.8 - 0.7 in binary, but no domain differs from another here.
    equal = np.array([0.7 - 0.6, 0.8 - 0.7, 0.9 - 0.8])
    assert t_values(equal, np.ones(3)) == math.inf


def test_holm() -> None:
    assert holm(np.array([0.04, 0.01, 0.03, 0.5])) == pytest.approx([0.09, 0.04, 0.09, 0.5])


def test_five_domains_use_t_with_holm_and_six_use_flips() -> None:
    random = np.random.default_rng(1)
    weights = np.full(5, 1.0)
    values = random.normal(0.5, 1, (3, 5))
    plain = stats.ttest_1samp(values, 0, axis=1, alternative="greater").pvalue
    assert adjusted_p(values, weights) == pytest.approx(holm(plain))
    # The smallest p of 64 flips is 1/64, whatever t is.
    assert adjusted_p(np.full((1, 6), 0.1), np.ones(6)) == pytest.approx([1 / 64])


def brute_force(values: np.ndarray, weights: np.ndarray) -> list[float]:
    """Return the p-values from every flip of signs, one by one."""

    def t(row: np.ndarray) -> float:
        share = weights / weights.sum()
        mean = sum(share * row)
        error = math.sqrt(sum(share**2 * (row - mean) ** 2 / (1 - share)))
        return mean / error

    observed = [t(row) for row in values]
    largest = [
        max(t(np.array(signs) * row) for row in values)
        for signs in itertools.product((1, -1), repeat=values.shape[1])
    ]
    return [np.mean([one >= mine - 1e-12 for one in largest]) for mine in observed]


def test_flips_are_those_of_whole_domains_and_of_the_largest_t() -> None:
    random = np.random.default_rng(2)
    for domains in (6, 7):
        values = random.normal(0.4, 1, (3, domains))
        weights = random.uniform(0.2, 1, domains)
        assert adjusted_p(values, weights) == pytest.approx(brute_force(values, weights))


def test_many_domains_take_random_flips_and_the_same_ones_again() -> None:
    values = np.random.default_rng(3).normal(0.45, 1, (2, 14))
    found = adjusted_p(values, np.ones(14))
    assert (found == adjusted_p(values, np.ones(14))).all()
    assert found == pytest.approx(brute_force(values, np.ones(14)), abs=0.02)
    # What was seen is one of the flips.
    assert adjusted_p(np.full((1, 14), 0.1), np.ones(14)) == [1 / 4096]
