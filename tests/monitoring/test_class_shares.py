"""Class shares by the EM algorithm: where only the shares differ, they are found."""

import numpy as np
import pytest

from shoal.monitoring.class_shares import estimate_shares


def calibrated(shares: np.ndarray, n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return a classifier's log-probabilities, right for equal shares, at a place with others."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, n, p=shares)
    x = rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[y]
    z = 1.5 * x  # log of the ratio of the classes' densities, but for a constant
    return z - np.log(np.exp(z).sum(1, keepdims=True)), y


def test_true_shares_are_found_and_predictions_get_better() -> None:
    truth = np.array([0.75, 0.2, 0.05])
    logs, y = calibrated(truth)
    shares, corrected = estimate_shares(logs, np.ones(3) / 3)
    assert shares == pytest.approx(truth, abs=0.02)
    assert corrected.sum(1) == pytest.approx(1.0)
    exact = np.exp(logs) * truth
    exact /= exact.sum(1, keepdims=True)
    assert np.abs(corrected - exact).max() < 0.05
    assert (corrected.argmax(1) == y).mean() > (logs.argmax(1) == y).mean() + 0.01


def test_shares_as_in_training_change_nothing() -> None:
    logs, _ = calibrated(np.array([0.3, 0.3, 0.4]))
    shares, corrected = estimate_shares(logs, np.array([0.3, 0.3, 0.4]) * 1.0)
    before = np.ones(3) / 3
    same, unchanged = estimate_shares(logs[:1], np.exp(logs[0]))
    assert same == pytest.approx(np.exp(logs[0]), abs=1e-9)
    assert unchanged == pytest.approx(np.exp(logs[:1]))
    assert len(corrected) == len(logs) and shares.sum() == pytest.approx(before.sum())


def test_probabilities_of_zero_are_no_failure() -> None:
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([[1.0, 0.0], [0.0, 1.0]]))
    shares, corrected = estimate_shares(logs, np.array([1.0, 0.0]))
    assert np.isfinite(shares).all() and np.isfinite(corrected).all()
