"""Which candidate is chosen, and what its choice is worth on domains that had no part in it."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit

from shoal.fitting.choice import choose_candidate, judged
from shoal.fitting.decision import make_decision
from shoal.fitting.expectation import expect, prediction_interval
from tests.fitting.estimated import estimates

ALIKE = np.ones(4)


def chosen(gains: list[list[float]], weights: np.ndarray | None = None, judge: str = "mean"):  # type: ignore[no-untyped-def]
    table = np.array(gains)
    found = choose_candidate(table, np.ones(table.shape[1]) if weights is None else weights, judge)
    return found.deploy, found.best


def test_the_simplest_within_one_paired_standard_error() -> None:
    base = [0.70, 0.72, 0.74, 0.76]
    # Gains of 3, −1, 2 and 0 points: 1.0 ± 0.91.
    ahead = [0.73, 0.71, 0.76, 0.76]
    assert chosen([base, ahead]) == (1, 1)
    # Of 4, −1, 2 and −1: 1.0 ± 1.22.
    assert chosen([base, [0.74, 0.71, 0.76, 0.75]]) == (0, 1)
    assert chosen([ahead, base]) == (0, 0)
    assert chosen([base, base]) == (0, 0)


def test_the_error_is_of_the_difference_not_of_the_scores() -> None:
    # Domains differ by 30 points, the candidates by 1 on each of them.
    assert chosen([[0.5, 0.6, 0.7, 0.8], [0.51, 0.61, 0.71, 0.811]]) == (1, 1)


def test_a_candidate_that_is_worse_than_a_simpler_one_is_passed_over() -> None:
    best = np.array([0.80, 0.80, 0.80, 0.80])
    simplest = best - [0.010, 0.011, 0.009, 0.010]  # 1.0 ± 0.04 points behind
    erratic = best - [0.10, -0.05, -0.05, 0.06]  # 1.5 ± 3.8 points behind
    assert chosen([simplest.tolist(), erratic.tolist(), best.tolist()]) == (2, 2)


def test_one_domain_has_no_error() -> None:
    assert chosen([[0.7], [0.8], [0.75]]) == (1, 1)


def test_the_worst_domain_judges() -> None:
    steady, turning = [0.79, 0.80, 0.79, 0.78], [0.93, 0.92, 0.94, 0.44]
    assert chosen([turning, steady], judge="worst") == (1, 1)
    assert chosen([steady, turning], judge="mean") == (0, 1)
    assert judged(np.array([turning]), ALIKE, "worst") == [0.44]


def test_domains_of_a_few_rows_choose_the_simplest() -> None:
    """Of 1, 2, 4 and 5 rows, say; with the rows of 30 more, the best is chosen again."""
    base, ahead = [0.70, 0.72, 0.74, 0.76], [0.80, 0.82, 0.84, 0.86]
    rows = np.array([1, 2, 4, 5])
    assert chosen([base, ahead], rows / (rows + 30)) == (0, 1)
    assert chosen([base, ahead], rows / (rows + 30), judge="worst") == (0, 1)
    assert chosen([base, ahead], (rows + 30) / (rows + 60)) == (1, 1)


def test_five_rows_decide_neither_the_mean_nor_the_worst() -> None:
    weights = np.array([1, 1, 1, 5 / 35])
    good, lucky = [0.80, 0.81, 0.82, 0.2], [0.77, 0.78, 0.79, 0.4]
    assert chosen([lucky, good], weights) == (1, 1)
    assert chosen([lucky, good]) == (0, 0)
    mean = np.average(good, weights=weights)
    assert judged(np.array([good]), weights, "worst") == pytest.approx(
        [0.2 * 5 / 35 + mean * 30 / 35]
    )
    assert chosen([lucky, [0.88, 0.89, 0.9, 0.2]], weights, "worst") == (1, 1)
    assert chosen([lucky, [0.88, 0.89, 0.9, 0.2]], judge="worst") == (0, 0)


def test_a_choice_is_scored_on_the_domain_that_had_no_part_in_it() -> None:
    # Fishr is best on average because of d alone: without d, ERM is chosen.
    made = estimates({"erm": [0.70, 0.70, 0.70, 0.70], "fishr": [0.70, 0.699, 0.70, 0.90]})
    found = expect(made)
    assert expect(estimates({"fishr": [0.70, 0.699, 0.70, 0.90]})).mean > 0.74
    assert found.chosen == dict.fromkeys("abcd", "erm")
    assert found.scores["d"] == 0.70
    assert not found.nested
    assert found.mean == pytest.approx(np.mean(list(found.scores.values())))


def pairs(made: dict[str, float]) -> dict[str, dict[tuple[str, str], float]]:
    return {
        key: {(d, v): value for d in "abc" for v in "abc" if d != v} for key, value in made.items()
    }


def test_nested_choices_are_made_by_runs_that_left_out_two_domains() -> None:
    scores = {"erm": [0.7, 0.7, 0.7], "fishr": [0.8, 0.81, 0.82]}
    assert expect(estimates(scores)).chosen == dict.fromkeys("abc", "fishr")
    both = pairs({"erm": 0.6, "fishr": 0.5})
    both["fishr"]["c", "a"], both["fishr"]["c", "b"] = 0.65, 0.66
    found = expect(estimates(scores, pairs=both))
    # The scores on a and b of runs without c and a, and without c and b, choose for c.
    assert found.chosen == {"a": "erm", "b": "erm", "c": "fishr"}
    assert found.scores == {"a": 0.7, "b": 0.7, "c": 0.82}
    assert found.nested
    del both["fishr"]["a", "b"]
    assert not expect(estimates(scores, pairs=both)).nested


def test_the_interval_is_students_on_the_logit_scale() -> None:
    scores = np.array([0.6, 0.7, 0.75, 0.9])
    found = prediction_interval(scores, np.full(4, 500))
    values = logit(scores)
    room = stats.t.ppf(0.95, 3) * values.std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert found == pytest.approx((expit(values.mean() - room), expit(values.mean() + room)))
    assert found is not None and 0 < found[0] < 0.6 and 0.9 < found[1] < 1


def test_perfect_scores_are_kept_away_from_1() -> None:
    found = prediction_interval(np.array([1.0, 1.0, 0.9]), np.array([50, 100, 80]))
    values, weights = logit([0.99, 0.995, 0.9]), np.array([50 / 80, 100 / 130, 80 / 110])
    mean, share = np.average(values, weights=weights), weights / weights.sum()
    number = 1 / np.square(share).sum()
    variance = (share * (values - mean) ** 2).sum() / (1 - np.square(share).sum())
    room = stats.t.ppf(0.95, number - 1) * math.sqrt(variance * (1 + 1 / number))
    assert expit(mean + room) > 0.99  # so far up there is no telling from 1
    assert found == pytest.approx((expit(mean - room), 1.0))


def test_an_interval_can_hold_0_and_1() -> None:
    examples = np.array([25, 30, 40])
    assert prediction_interval(np.ones(3), examples) == (pytest.approx(0.965, abs=0.001), 1.0)
    assert prediction_interval(np.zeros(3), examples) == (0.0, pytest.approx(0.035, abs=0.001))
    found = prediction_interval(np.array([0.5, 0.6, 0.55]), examples)
    assert found is not None and 0.3 < found[0] < 0.5 and 0.6 < found[1] < 0.8


def test_two_domains_have_no_interval_and_a_loss_has_one_without_a_top() -> None:
    assert prediction_interval(np.array([0.6, 0.7]), np.array([500, 500])) is None
    # The third has too few examples to count as a domain.
    assert prediction_interval(np.array([0.6, 0.7, 0.9]), np.array([500, 500, 3])) is None
    found = prediction_interval(np.array([0.5, 1.0, 2.0]), np.full(3, 500), bounded=False)
    room = stats.t.ppf(0.95, 2) * math.log(2) * math.sqrt(4 / 3)
    assert found == pytest.approx((math.exp(-room), math.exp(room)))


def test_of_a_loss_the_smallest_is_the_best() -> None:
    made = estimates(
        {"erm": [0.7, 0.71, 0.72], "fishr": [0.5, 0.52, 0.54]}, metric="log-loss", majority=0.69
    )
    assert expect(made).chosen == dict.fromkeys("abc", "fishr")


def test_of_one_family_the_best_is_chosen_not_the_first() -> None:
    # Extra trees are 2.0 ± 1.2 points ahead of the forest, and both belong to the trees.
    scores = {
        "logistic": [0.60, 0.61, 0.62, 0.60],
        "forest": [0.84, 0.85, 0.86, 0.83],
        "extra": [0.89, 0.84, 0.88, 0.85],
        "erm": [0.90, 0.84, 0.88, 0.85],
    }
    made = estimates(scores)
    gains = made.table()
    assert choose_candidate(gains, ALIKE, "mean", made.simplicity).deploy == 2
    assert choose_candidate(gains, ALIKE, "mean", [0, 1, 2, 3]).deploy == 2
    near = np.array([[0.80, 0.82, 0.81, 0.83], [0.83, 0.80, 0.83, 0.82]])
    assert choose_candidate(near, ALIKE, "mean", [0, 0]).deploy == 1
    assert choose_candidate(near, ALIKE, "mean", [0, 1]).deploy == 0
    assert make_decision(made).deploy == "extra"
