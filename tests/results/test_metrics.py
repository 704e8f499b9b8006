"""Metrics against scikit-learn's, and what they make of classes that a domain lacks."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

from shoal.catalogue import FIT_METRICS
from shoal.results.metrics import (
    METRICS,
    accuracy,
    balanced_accuracy,
    by_class,
    calibration_error,
    class_shares,
    constant_score,
    log_loss,
    macro_auroc,
    macro_f1,
)
from shoal.training.evaluation import Outcome

CLASSES = 4


def made(seed: int, n: int = 60, present: tuple[int, ...] = (0, 1, 2, 3)):  # type: ignore[no-untyped-def]
    """Return probabilities with many ties and labels of some classes."""
    random = np.random.default_rng(seed)
    labels = random.choice(present, n)
    logits = random.normal(size=(n, CLASSES)).round(1)
    logits[np.arange(n), labels] += 1.0
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True), labels


CASES = [made(0), made(1, 7), made(2, 200, (0, 2, 3)), made(3, 40, (1, 3))]


@pytest.mark.parametrize(("p", "y"), CASES)
def test_each_is_scikit_learns(p: np.ndarray, y: np.ndarray) -> None:
    predicted, present = p.argmax(1), np.unique(y)
    assert accuracy(p, y) == pytest.approx(oracle.accuracy_score(y, predicted), abs=1e-12)
    recalls = oracle.recall_score(y, predicted, labels=present, average="macro")
    assert balanced_accuracy(p, y) == pytest.approx(recalls, abs=1e-12)
    f1 = oracle.f1_score(y, predicted, labels=present, average="macro")
    assert macro_f1(p, y) == pytest.approx(f1, abs=1e-12)
    aurocs = [oracle.roc_auc_score(y == k, p[:, k]) for k in present]
    assert macro_auroc(p, y) == pytest.approx(np.mean(aurocs), abs=1e-12)
    loss = oracle.log_loss(y, p, labels=range(CLASSES))
    assert log_loss(p, y) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize(("p", "y"), CASES)
def test_by_class(p: np.ndarray, y: np.ndarray) -> None:
    found, predicted = by_class(p, y), p.argmax(1)
    matrix = oracle.confusion_matrix(y, predicted, labels=range(CLASSES))
    assert (found.confusion == matrix).all()
    for k in range(CLASSES):
        mine, guessed = y == k, predicted == k
        assert found.prevalence[k] == pytest.approx(mine.mean())
        if mine.any():
            assert found.recall[k] == pytest.approx(guessed[mine].mean())
            assert found.auroc[k] == pytest.approx(oracle.roc_auc_score(mine, p[:, k]))
        else:
            assert math.isnan(found.recall[k]) and math.isnan(found.auroc[k])
        if guessed.any():
            assert found.precision[k] == pytest.approx(mine[guessed].mean())
        else:
            assert math.isnan(found.precision[k])


@pytest.mark.parametrize(("p", "y"), CASES)
def test_the_calibration_error_is_that_of_the_records(p: np.ndarray, y: np.ndarray) -> None:
    p[0] = [1 / 15, 2 / 15, 3 / 15, 9 / 15]  # on the edge of a bin
    confidences, predictions = torch.from_numpy(p).max(1)
    recorded = Outcome(torch.from_numpy(y), predictions, confidences).calibration_error
    assert calibration_error(p, y) == pytest.approx(recorded, abs=1e-12)


def test_a_tie_counts_half() -> None:
    p = np.array([[0.5, 0.5], [0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    # Positives have 0.5 and 0.8, negatives 0.5 and 0.1: one tie of four pairs.
    assert macro_auroc(p, [0, 1, 1, 0]) == pytest.approx(3.5 / 4)


def test_a_class_that_the_domain_lacks_does_not_count_even_if_predicted() -> None:
    p = np.eye(3)[[0, 1, 1, 2]]
    # Class 2 is predicted once. Class 0: precision 1, recall 1/2; class 1: both 1.
    assert macro_f1(p, [0, 1, 1, 0]) == pytest.approx((2 / 3 + 1) / 2)


def test_a_domain_of_one_class_has_no_auroc() -> None:
    p, _ = made(5)
    assert math.isnan(macro_auroc(p, np.full(len(p), 2)))
    assert not math.isnan(balanced_accuracy(p, np.full(len(p), 2)))


def test_probabilities_that_are_not_finite_have_no_score() -> None:
    p, y = made(6)
    p[3, 1] = np.nan
    for metric in METRICS.values():
        assert math.isnan(metric.score(p, y))
    assert math.isnan(calibration_error(p, y))


def test_a_probability_of_zero_is_not_an_infinite_loss() -> None:
    assert log_loss([[1.0, 0.0]], [1]) == pytest.approx(-math.log(np.finfo(float).eps))


def test_answers_without_a_model() -> None:
    y = np.array([0] * 6 + [1] * 3 + [2])
    shares = class_shares(y, CLASSES)
    found = {name: constant_score(one, shares, y) for name, one in METRICS.items()}
    entropy = -sum(s * math.log(s) for s in (0.6, 0.3, 0.1))
    f1 = 2 * 0.6 / 1.6 / 3
    assert found == pytest.approx(
        {"accuracy": 0.6, "balanced": 1 / 3, "f1": f1, "auroc": 0.5, "log-loss": entropy}
    )
    # A guess takes each of the four classes equally often.
    random = np.random.default_rng(0)
    labels = np.tile(y, 4000)
    guesses = random.integers(CLASSES, size=len(labels))
    p = np.eye(CLASSES)[guesses]
    for name in ("accuracy", "balanced", "f1", "auroc"):
        one = METRICS[name]
        assert one.score(p, labels) == pytest.approx(one.chance(labels, CLASSES), abs=0.01), name
    uniform = np.full((len(y), CLASSES), 1 / CLASSES)
    assert METRICS["log-loss"].chance(y, CLASSES) == pytest.approx(log_loss(uniform, y))


def test_numbers_as_text() -> None:
    percent, plain = METRICS["accuracy"], METRICS["auroc"]
    assert (percent.show(0.7634), plain.show(0.7634)) == ("76.3 %", "0.763")
    assert (percent.show_range(0.624, 0.971), plain.show_range(0.6, 0.9)) == (
        "62 and 97 %",
        "0.60 and 0.90",
    )
    assert percent.show_difference(-0.0004, 0.01) == "+0.0 ± 1.0 points"
    assert plain.show_difference(0.0123, 0.004) == "+0.012 ± 0.004 AUROC"


@pytest.mark.parametrize(
    ("p", "y", "wrong"),
    [
        (np.ones((3, 2)), [0, 1], r"got shapes \[3, 2\] and \[2\]"),
        (np.ones((0, 2)), [], r"one example or more, got shapes \[0, 2\]"),
        (np.ones((2, 2)), [0, 2], "labels must be from 0 to 1, .* got 0 to 2"),
    ],
)
def test_what_cannot_be_scored(p: np.ndarray, y: list[int], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        accuracy(p, y)


def test_the_command_line_knows_all_metrics() -> None:
    assert tuple(METRICS) == FIT_METRICS
