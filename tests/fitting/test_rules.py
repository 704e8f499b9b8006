"""Rules on one column: a decision tree as scikit-learn's, scores on rows that were not seen."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from shoal.fitting.rules import (
    LEAF,
    RuleScore,
    combine,
    grow,
    score_categories,
    score_numbers,
)


@pytest.mark.parametrize(("classes", "most", "seed"), [(2, 2, 0), (2, 8, 1), (5, 8, 2), (9, 18, 3)])
def test_thresholds_are_those_of_a_decision_tree(classes: int, most: int, seed: int) -> None:
    random = np.random.RandomState(seed)
    values = random.randn(600)
    labels = (
        np.digitize(values, np.linspace(-1, 1, classes - 1)) + random.randint(0, 2, 600)
    ) % classes
    limits, answers = grow(values, labels, classes, most)
    oracle = DecisionTreeClassifier(max_leaf_nodes=most, min_samples_leaf=LEAF)
    oracle.fit(values[:, None], labels)
    thresholds = sorted(oracle.tree_.threshold[oracle.tree_.feature >= 0])
    np.testing.assert_allclose(limits, thresholds, atol=1e-12)
    new = random.randn(500)
    found = answers[np.searchsorted(limits, new, side="right")]
    assert (found == oracle.predict(new[:, None])).mean() > 0.99  # ties between classes


def test_a_number_with_thresholds_gives_the_class_and_noise_does_not() -> None:
    random = np.random.RandomState(0)
    values = random.randn(3000)
    labels = ((values > -0.5) & (values < 0.8)).astype(int)
    assert score_numbers(values, labels).accuracy > 0.99
    noise = score_numbers(random.randn(3000), labels)
    assert noise.accuracy <= noise.majority + 0.02
    assert noise.skill < 0.05 and abs(noise.sure) < 4
    assert noise.majority == pytest.approx(max(labels.mean(), 1 - labels.mean()))


def test_a_score_is_of_rows_that_were_not_seen() -> None:
    """A category for every two rows is learned by heart, and says nothing of a new one."""
    random = np.random.RandomState(0)
    labels = random.randint(0, 2, 400)
    assert score_categories(np.arange(400), labels).accuracy < 0.6
    # And repeated with its class, it does.
    assert score_categories(np.arange(400).repeat(6), labels.repeat(6)).accuracy > 0.95


def test_several_categories_may_share_a_class() -> None:
    codes = np.arange(300) % 6
    labels = np.array([0, 1, 1, 2, 0, 2])[codes]
    assert score_categories(codes, labels).accuracy == 1
    assert score_numbers(codes.astype(float), labels).accuracy == 1  # few numbers are categories


def test_few_rows_have_thresholds_too() -> None:
    values = np.random.RandomState(0).rand(24)
    assert score_numbers(values, (values > 0.5).astype(int)).accuracy > 0.85


def test_a_missing_number_is_a_value_of_its_own() -> None:
    values = np.random.RandomState(0).randn(400)
    labels = np.arange(400) % 2
    values[labels == 1] = np.nan
    assert score_numbers(values, labels).accuracy == 1


def test_many_classes_have_a_deeper_rule() -> None:
    values = np.random.RandomState(0).rand(4000)
    labels = (values * 20).astype(int)
    assert score_numbers(values, labels).accuracy > 0.95


def test_skill_is_the_share_of_errors_avoided() -> None:
    assert RuleScore(0.95, 0.9, 100).skill == pytest.approx(0.5)
    assert RuleScore(1.0, 1.0, 100).skill == 0
    assert RuleScore(0.6, 0.5, 100).sure == pytest.approx(0.1 / 0.05)
    both = combine([RuleScore(1.0, 0.5, 100), RuleScore(0.5, 0.25, 300)])
    assert both == pytest.approx((0.625, 0.3125, 400))
