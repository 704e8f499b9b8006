"""Known domains: the moments of their features, which new data is compared with.

Features are scaled and projected to a few coordinates. In these, the examples of one class
in one domain scatter around their mean equally in every direction, so a Euclidean distance is a
Mahalanobis distance. Nothing else is needed to say how far new data is from each domain, and which
class it is nearest to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Coordinates of the projection.
DIMENSIONS = 64
# Scaled features beyond this are outliers: only the logarithm of what is more counts, or one of
# them would outweigh all others.
USUAL = 3.0
# The share of a multiple of the identity in the covariance; few examples say little about it.
RIDGE = 0.1
# Examples that moments are learned from, and vectors that are kept.
EXAMPLES, VECTORS = 5000, 2000
# Rows whose distances from all means are in memory at a time.
ROWS = 1000
# Rows that are projected at once.
TOGETHER = 65_536
# Products with the data until the principal directions are found.
PRODUCTS = 4


class Nearest(NamedTuple):
    """Of each point, the class of the nearest mean, and the squared distance from it, ``[n]``."""

    classes: Labels
    distances: Array


@dataclass(frozen=True, kw_only=True)
class KnownDomains:
    """Moments of the features of E domains with C classes.

    Args:
        names: of the domains.
        centre, scale: of every feature, ``[p]``.
        basis: of the projection, ``[p, d]``.
        means: of every domain and class, ``[E, C, d]``; NaN for a class of no domain.
        counts: the examples that these means are from, ``[E, C]``.
        columns: the mean of every scaled feature by domain, ``[E, p]``.
        vectors: a few projected examples, ``[m, d]``, and ``owners`` their domains ``[m]``.
    """

    names: tuple[str, ...]
    centre: Array
    scale: Array
    basis: Array
    means: Array
    counts: Array
    columns: Array
    vectors: Array
    owners: Labels

    def scaled(self, features: Array) -> Array:
        """Return features in units of their spread, outliers less; missing ones are usual."""
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.nan_to_num((features - self.centre) / self.scale, nan=0.0)
        more = np.log1p(np.maximum(np.abs(found) - USUAL, 0.0))
        return np.asarray(np.clip(found, -USUAL, USUAL) + np.sign(found) * more)

    def project(self, features: Array) -> Array:
        """Return the points ``[n, d]`` of features ``[n, p]``."""
        parts = np.split(features, range(TOGETHER, len(features), TOGETHER))
        return np.concatenate([self.scaled(part) @ self.basis for part in parts])

    def nearest(self, points: Array) -> Nearest:
        """Return the class of the mean that is nearest to each point, whatever its domain."""
        classes, dimensions = self.means.shape[1:]
        means = self.means.reshape(-1, dimensions)
        lengths = (means**2).sum(1)
        found, distances = [np.zeros(0, np.int64)], [np.zeros(0)]
        for rows in np.split(points, range(ROWS, len(points), ROWS)):
            squares = (rows**2).sum(1)[:, None] - 2 * rows @ means.T + lengths
            squares = np.where(np.isnan(squares), np.inf, squares)
            best = squares.argmin(1)
            found.append(best % classes)
            distances.append(np.maximum(squares[np.arange(len(rows)), best], 0.0))
        return Nearest(np.concatenate(found), np.concatenate(distances))

    def without_vectors(self) -> "KnownDomains":
        """Return the moments alone."""
        return replace(self, vectors=self.vectors[:0], owners=self.owners[:0])


def learn_known(
    features: Mapping[str, Array],
    labels: Mapping[str, Labels],
    classes: int,
    generator: np.random.Generator,
) -> KnownDomains:
    """Return the moments of domains.

    Args:
        features: ``[n, p]`` by domain; missing ones are NaN. Of large domains a sample is used.
        labels: ``[n]`` by domain.
        classes: C.
    """
    share = max(EXAMPLES // len(features), 1)
    chosen = {name: generator.permutation(len(rows))[:share] for name, rows in features.items()}
    rows = {name: np.asarray(features[name][chosen[name]], np.float64) for name in features}
    ys = {name: labels[name][chosen[name]] for name in features}
    together = np.concatenate(list(rows.values()))
    centre, scale = _centre_and_scale(together)
    known = KnownDomains(
        names=tuple(features),
        centre=centre,
        scale=scale,
        basis=np.zeros((together.shape[1], 0)),
        means=np.zeros((len(rows), classes, 0)),
        counts=np.stack([np.bincount(y, minlength=classes) for y in ys.values()]).astype(float),
        columns=np.zeros((len(rows), together.shape[1])),
        vectors=np.zeros((0, 0)),
        owners=np.zeros(0, np.int64),
    )
    scaled = {name: known.scaled(one) for name, one in rows.items()}
    columns = np.stack([one.mean(0) for one in scaled.values()])
    directions = _principal_directions(np.concatenate(list(scaled.values())), generator)
    basis = directions @ _whitening([one @ directions for one in scaled.values()], ys, classes)
    points = {name: one @ basis for name, one in scaled.items()}
    kept = VECTORS // len(points)
    return replace(
        known,
        basis=basis,
        means=class_means(points, ys, classes),
        columns=columns,
        vectors=np.concatenate([one[:kept] for one in points.values()]),
        owners=np.repeat(np.arange(len(points)), [min(kept, len(p)) for p in points.values()]),
    )


def class_means(points: Mapping[str, Array], labels: Mapping[str, Labels], classes: int) -> Array:
    """Return the mean of every domain and class, ``[E, C, d]``.

    A class that a domain lacks gets the mean of the class in the other domains, moved as far as the
    domain's other classes are from theirs.
    """
    dimensions = next(iter(points.values())).shape[1]
    means = np.full((len(points), classes, dimensions), np.nan)
    for e, (name, mine) in enumerate(points.items()):
        for c in np.unique(labels[name]):
            means[e, c] = mine[labels[name] == c].mean(0)
    of_class = _mean_of_known(means, 0)
    offsets = _mean_of_known(means - of_class, 1)
    return np.where(np.isnan(means), of_class + offsets[:, None], means)


def _mean_of_known(values: Array, axis: int) -> Array:
    """Return the mean of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis))


def _centre_and_scale(rows: Array) -> tuple[Array, Array]:
    """Return the median of every column, and its spread between the first and last tenth.

    Of a column with one value nearly everywhere, the spread is the standard deviation; of a
    constant one it is infinite, so that the column does not count.
    """
    rows = np.where(np.isfinite(rows), rows, np.nan)
    empty = np.isnan(rows).all(0)
    rows = np.where(empty, 0.0, rows)
    low, centre, high = np.nanquantile(rows, [0.1, 0.5, 0.9], axis=0)
    # For a normal distribution this is the standard deviation.
    spread = (high - low) / 2.5631
    # What is smaller is a rounding error of a constant.
    least = 1e-7 * np.abs(centre)
    scale = np.where(spread > least, spread, np.nanstd(rows, axis=0))
    constant = scale <= least
    return np.asarray(centre), np.asarray(np.where(constant, np.inf, scale))


def _principal_directions(rows: Array, generator: np.random.Generator) -> Array:
    """Return directions ``[p, d]`` in which the rows vary most, by subspace iteration."""
    number = min(DIMENSIONS, *rows.shape)
    centred = rows - rows.mean(0)
    directions = np.linalg.qr(generator.normal(size=(rows.shape[1], number)))[0]
    for _ in range(PRODUCTS):
        directions = np.linalg.qr(centred.T @ (centred @ directions))[0]
    return np.asarray(directions)


def _whitening(points: list[Array], labels: Mapping[str, Labels], classes: int) -> Array:
    """Return the map ``[d, d]`` after which the covariance inside domains and classes is 1."""
    by_name = dict(zip(labels, points, strict=True))
    means = class_means(by_name, labels, classes)
    rest = np.concatenate(
        [one - means[e, labels[name]] for e, (name, one) in enumerate(by_name.items())]
    )
    covariance = rest.T @ rest / len(rest)
    size = max(float(np.trace(covariance)) / len(covariance), 1e-12)
    covariance = (1 - RIDGE) * covariance + RIDGE * size * np.eye(len(covariance))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)).T)
