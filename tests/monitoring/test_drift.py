"""Drift: shifts against plain versions, thresholds by simulation, columns, and AUROC."""

from typing import Any

import numpy as np
import pytest

from shoal.monitoring.drift import (
    SIZES,
    DriftRule,
    auroc,
    column_shifts,
    draw_batch,
    learn_drift,
    mean_shifts,
    measure_drift,
    place_distance,
)
from shoal.monitoring.known_domains import KnownDomains, learn_known


def sites(seed: int, number: int = 3, n: int = 600) -> tuple[dict[str, np.ndarray], ...]:
    """Return features and labels of sites: classes far apart, and each site a little moved."""
    rng = np.random.default_rng(seed)
    moved = np.random.default_rng(7).normal(size=(number, 8))
    rows, labels = {}, {}
    for k in range(number):
        y = rng.integers(0, 3, n)
        rows[f"site {k}"] = rng.normal(size=(n, 8)) + 4 * np.eye(8)[y] + moved[k]
        labels[f"site {k}"] = y
    return rows, labels


def learned(*known: Any) -> tuple[DriftRule, float]:
    found = learn_drift(*known)
    assert found is not None
    return found


ROWS, LABELS = sites(0)
KNOWN = learn_known(ROWS, LABELS, 3, np.random.default_rng(0))
POINTS = {name: KNOWN.project(one) for name, one in ROWS.items()}
RULE, USUAL = learned(KNOWN, POINTS, LABELS, np.random.default_rng(0))


def batch(seed: int, moved: float = 0.0, n: int = 100, shares: object = None) -> np.ndarray:
    """Return features of new examples of the first site."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    site = np.random.default_rng(7).normal(size=(3, 8))[0]
    return rng.normal(size=(n, 8)) + 4 * np.eye(8)[y] + site + moved


def points_of(seed: int, moved: float = 0.0, n: int = 100) -> np.ndarray:
    return KNOWN.project(batch(seed, moved, n))


def test_shifts_and_the_distance_by_a_loop() -> None:
    points = points_of(1)
    classes = KNOWN.nearest(points).classes
    found = mean_shifts(KNOWN, points, classes)
    n, d = points.shape
    squares = []
    for e in range(3):
        expected = sum(KNOWN.means[e, c] for c in classes) / n
        square = ((points.mean(0) - expected) ** 2).sum()
        variance = 1 / n
        for c in range(3):
            variance += (classes == c).mean() ** 2 / KNOWN.counts[e, c]
        assert found[e] == pytest.approx(square / variance / d)
        squares.append(square)
    distance = np.sqrt(max(min(squares) - d / n, 0))
    assert place_distance(KNOWN, points, classes) == pytest.approx(distance)


def test_more_points_than_a_thousand_count_as_a_thousand() -> None:
    points = np.tile(points_of(1, moved=0.3), (50, 1))
    classes = KNOWN.nearest(points).classes
    of_mean = 1 / 1000 + ((np.bincount(classes) / 5000) ** 2 / KNOWN.counts).sum(1)
    once = mean_shifts(KNOWN, points[:100], classes[:100])
    before = 1 / 100 + ((np.bincount(classes) / 5000) ** 2 / KNOWN.counts).sum(1)
    assert mean_shifts(KNOWN, points, classes) == pytest.approx(once * before / of_mean)


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.02, 0.49, 0.49)])
def test_class_shares_are_no_drift_and_another_place_is(shares: tuple[float, ...]) -> None:
    near, far = [], []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        rows, labels = sites(seed)
        known = learn_known(rows, labels, 3, generator)
        points = {name: known.project(one) for name, one in rows.items()}
        rule, usual = learned(known, points, labels, generator)
        for k in range(10):
            for moved, found in ((0.0, near), (0.7, far)):
                place = known.project(batch(100 * seed + k, moved, shares=shares))
                found.append(measure_drift(known, rule, usual, place, generator))
    assert np.mean([one.alarm for one in near]) <= 0.08
    assert all(one.alarm for one in far)
    assert {one.nearest for one in near} == {"site 0"}
    assert 0.35 < np.mean([one.auroc or 0.0 for one in near]) < 0.6
    assert np.mean([one.auroc or 0.0 for one in far]) > 0.85


def test_without_vectors_the_classifier_draws_from_the_moments() -> None:
    generator = np.random.default_rng(0)
    bare = KNOWN.without_vectors()
    near = [measure_drift(bare, RULE, USUAL, points_of(k), generator).auroc for k in range(30)]
    far = [measure_drift(bare, RULE, USUAL, points_of(k, 0.7), generator).auroc for k in range(30)]
    assert 0.35 < np.mean([one or 0.0 for one in near]) < 0.6
    assert np.mean([one or 0.0 for one in far]) > 0.85


def test_thresholds_are_interpolated_on_the_logarithm_and_end_at_the_last() -> None:
    rule = DriftRule(thresholds=(5.0, 4.0, 3.0, 2.0, 1.0))
    assert [rule.threshold(n) for n in SIZES] == pytest.approx([5.0, 4.0, 3.0, 2.0, 1.0])
    assert rule.threshold(round(np.sqrt(10 * 1000))) == pytest.approx(3.0)
    assert rule.threshold(10**6) == pytest.approx(1.0)


def test_examples_far_from_all_are_one_in_a_hundred() -> None:
    found = [KNOWN.nearest(points_of(k, n=500)).distances > USUAL for k in range(10)]
    assert 0.002 < np.mean(found) < 0.03


def test_a_batch_has_random_shares_and_no_example_twice() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [50, 40, 10])
    shares = []
    for _ in range(200):
        rows = draw_batch(labels, 30, generator)
        assert len(rows) == len(set(rows.tolist())) == 30
        shares.append((labels[rows] == 0).mean())
    assert np.std(shares) > 0.15
    assert sorted(draw_batch(labels, 500, generator).tolist()) == list(range(100))


def test_columns_that_moved_by_hand() -> None:
    bare = KnownDomains(
        names=("a", "b"),
        centre=np.array([10.0, 0.0, 0.0]),
        scale=np.array([2.0, 1.0, 1.0]),
        basis=np.eye(3),
        means=np.zeros((2, 1, 3)),
        counts=np.ones((2, 1)),
        columns=np.array([[0.0, -1.0, 0.5], [1.0, 0.0, 0.5]]),
        vectors=np.zeros((0, 3)),
        owners=np.zeros(0, np.int64),
    )
    rows = np.array([[14.0, -2.0, 0.5], [14.0, -1.0, 0.5]])
    assert column_shifts(bare, rows) == pytest.approx([1.0, -0.5, 0.0])


def test_auroc_by_all_pairs() -> None:
    rng = np.random.default_rng(0)
    high, low = rng.integers(0, 6, 30), rng.integers(0, 5, 40)
    pairs = [(h > v) + 0.5 * (h == v) for h in high for v in low]
    assert auroc(high, low) == pytest.approx(np.mean(pairs))


def test_too_few_examples_have_no_rule() -> None:
    points = {"a": np.zeros((1, 2)), "b": np.ones((1, 2))}
    labels = {"a": np.array([0]), "b": np.array([1])}
    known = learn_known(points, labels, 2, np.random.default_rng(0))
    projected = {name: known.project(one) for name, one in points.items()}
    assert learn_drift(known, projected, labels, np.random.default_rng(0)) is None
