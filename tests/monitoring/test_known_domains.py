"""Moments of known domains: against plain loops, with gaps, outliers and missing classes."""

import numpy as np
import pytest

from shoal.monitoring.known_domains import (
    DIMENSIONS,
    VECTORS,
    KnownDomains,
    class_means,
    learn_known,
)


def domains(
    sizes: tuple[int, ...] = (300, 200, 400), p: int = 6, classes: int = 3
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return domains whose classes are far apart, with columns of very different scales."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.arange(p)
    rows, labels = {}, {}
    for k, n in enumerate(sizes):
        y = rng.integers(0, classes, n)
        x = rng.normal(size=(n, p)) + 4 * np.eye(p)[y] + 0.5 * k
        rows[f"d{k}"], labels[f"d{k}"] = x * scales, y
    return rows, labels


def learn(rows: dict[str, np.ndarray], labels: dict[str, np.ndarray], c: int = 3) -> KnownDomains:
    return learn_known(rows, labels, c, np.random.default_rng(1))


def test_inside_domains_and_classes_the_covariance_is_nearly_one() -> None:
    rows, labels = domains()
    known = learn(rows, labels)
    rest = []
    for name in rows:
        z = known.project(rows[name])
        for c in range(3):
            rest.append(z[labels[name] == c] - z[labels[name] == c].mean(0))
    together = np.concatenate(rest)
    covariance = together.T @ together / len(together)
    # A tenth of a multiple of the identity was added before the inversion.
    assert np.abs(covariance - np.eye(len(covariance))).max() < 0.15
    for e, name in enumerate(rows):
        z = known.project(rows[name])
        for c in range(3):
            assert known.means[e, c] == pytest.approx(z[labels[name] == c].mean(0))
            assert known.counts[e, c] == (labels[name] == c).sum()


def test_the_nearest_class_is_that_of_a_loop() -> None:
    rows, labels = domains()
    known = learn(rows, labels)
    points = known.project(rows["d1"])[:50]
    found = known.nearest(points)
    for point, c, distance in zip(points, *found, strict=True):
        squares = ((known.means - point) ** 2).sum(-1)
        assert c == np.unravel_index(squares.argmin(), squares.shape)[1]
        assert distance == pytest.approx(squares.min())
    right = known.nearest(known.project(rows["d1"])).classes == labels["d1"]
    assert right.mean() > 0.9


def test_many_points_are_compared_in_parts_with_the_same_result() -> None:
    rows, labels = domains(sizes=(2500, 300))
    known = learn(rows, labels)
    points = known.project(rows["d0"])
    whole, last = known.nearest(points), known.nearest(points[-7:])
    assert len(whole.classes) == 2500
    assert whole.classes[-7:].tolist() == last.classes.tolist()
    assert len(known.nearest(points[:0]).classes) == 0


def test_outliers_and_gaps_are_bounded() -> None:
    rows, labels = domains()
    known = learn(rows, labels)
    strange = np.full((3, 6), np.nan)
    strange[1] = 1e30
    strange[2] = -np.inf
    scaled = known.scaled(strange)
    assert scaled[0].tolist() == [0.0] * 6
    assert np.abs(scaled).max() < 800
    usual = known.scaled(known.centre + known.scale * np.array([-2.5, -3.0, 0.0, 1.0, 3.0, 13.0]))
    assert usual == pytest.approx([-2.5, -3.0, 0.0, 1.0, 3.0, 3 + np.log(11)])
    assert np.isfinite(known.project(strange)).all()
    rows["d0"][3] = 1e30
    again = learn(rows, labels)
    assert again.scale == pytest.approx(known.scale, rel=0.05)


def test_a_constant_column_does_not_count_and_a_rare_one_does() -> None:
    rows, labels = domains()
    rng = np.random.default_rng(2)
    for name, one in rows.items():
        rare = (rng.random(len(one)) < 0.03).astype(float)
        rows[name] = np.column_stack([one, np.full(len(one), 7.0), rare, np.full(len(one), np.nan)])
    known = learn(rows, labels)
    other = rows["d0"].copy()
    other[:, 6] = 1e6
    other[:, 8] = 5.0
    assert known.project(other) == pytest.approx(known.project(rows["d0"]))
    assert np.isfinite(known.scale[7])


def test_a_class_that_a_domain_lacks_is_moved_with_the_domain() -> None:
    points = {
        "a": np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]),
        "b": np.array([[10.0, 0.0], [11.0, 0.0]]),
    }
    labels = {"a": np.array([0, 1, 2]), "b": np.array([0, 1])}
    means = class_means(points, labels, 4)
    # b is five to the right of the mean of both, and has no examples of class 2.
    assert means[1, 2] == pytest.approx([5.0, 2.0])
    assert np.isnan(means[:, 3]).all()


def test_a_class_of_no_domain_is_never_the_nearest() -> None:
    rows, labels = domains()
    known = learn(rows, labels, c=5)
    assert np.isnan(known.means[:, 3:]).all()
    assert known.nearest(known.project(rows["d0"])).classes.max() <= 2


def test_what_is_kept_is_bounded() -> None:
    rng = np.random.default_rng(0)
    rows = {str(k): rng.normal(size=(2000, 100)) for k in range(3)}
    labels = {name: rng.integers(0, 2, 2000) for name in rows}
    known = learn_known(rows, labels, 2, rng)
    assert known.basis.shape == (100, DIMENSIONS)
    assert VECTORS - 3 < len(known.vectors) <= VECTORS
    assert np.bincount(known.owners).tolist() == [VECTORS // 3] * 3
    bare = known.without_vectors()
    assert len(bare.vectors) == len(bare.owners) == 0
    assert bare.means is known.means


def test_the_directions_of_largest_variance_are_found() -> None:
    """Of 100 columns five vary together, much more than the others."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(900, 5)) @ rng.normal(size=(5, 100))
    rows = {str(k): common[k::3] + 0.01 * rng.normal(size=(300, 100)) for k in range(3)}
    labels = {name: rng.integers(0, 2, 300) for name in rows}
    known = learn_known(rows, labels, 2, rng)
    scaled = known.scaled(np.concatenate(list(rows.values())))
    centred = scaled - scaled.mean(0)
    directions, _ = np.linalg.qr(known.basis)
    kept = ((centred @ directions) ** 2).sum() / (centred**2).sum()
    assert kept > 0.999


def test_many_rows_are_projected_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = domains()
    known, features = learn(rows, labels), rows["d0"].astype(np.float32)
    whole = known.project(features)
    monkeypatch.setattr("shoal.monitoring.known_domains.TOGETHER", 70)
    np.testing.assert_allclose(known.project(features), whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(known.project(features[:0]), whole[:0])
