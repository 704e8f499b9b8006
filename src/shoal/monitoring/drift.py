"""Drift: how far the data of one place is from every domain that was seen.

The mean of a place, compared with the mean that a known domain would have with the same classes, is
the sign of another place. Which classes arrive does not matter: each point is compared with the
mean of its nearest class. How large the sign is by chance is learned from batches of known domains
with random class shares.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .known_domains import KnownDomains, class_means

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Batch sizes with a threshold of their own; larger batches are judged as if they had the last.
SIZES = (10, 30, 100, 300, 1000)
# The share of known batches below the threshold, the batches of each size, and the parts of the
# data of which each is compared with moments of the others.
SHARE, BATCHES, PARTS = 0.98, 200, 5
# Parts of the cross-validation of the classifier that tells a place from a known domain.
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class DriftRule:
    """Shifts above a threshold are no chance.

    Args:
        thresholds: for batches of ``SIZES``.
    """

    thresholds: tuple[float, ...]

    def threshold(self, n: int) -> float:
        """Return the threshold for n inputs."""
        return float(np.interp(np.log(n), np.log(SIZES), self.thresholds))


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a place is from the known domains.

    Args:
        shifts: by domain, the squared distance of the mean; 1 is chance.
        threshold: shifts of known domains are below it; None for fewer than ten inputs.
        auroc: with which a classifier tells the place from the nearest domain; None for fewer than
            ten inputs. 0.5 is chance.
        distance: of the mean from that of the nearest domain, in standard deviations.
        classes, distances: of each input, the nearest class, and how far it is, squared.
        usual: the distance that one in a hundred known examples exceeds.
    """

    shifts: Mapping[str, float]
    threshold: float | None
    auroc: float | None
    distance: float
    classes: Labels
    distances: Array
    usual: float

    @property
    def nearest(self) -> str:
        """The known domain that the place is most like."""
        return min(self.shifts, key=self.shifts.__getitem__)

    @property
    def shift(self) -> float:
        return self.shifts[self.nearest]

    @property
    def alarm(self) -> bool | None:
        """Whether the place is unlike every known domain; None if there are too few inputs."""
        return None if self.threshold is None else self.shift > self.threshold


def mean_shifts(known: KnownDomains, points: Array, classes: Labels) -> Array:
    """Return the shift of points from every domain, ``[E]``.

    It is the squared distance of their mean from the mean that the domain would have with the same
    classes, in units of what chance gives: the variance of the points' mean and of the classes'
    means, times the number of coordinates. More than ``SIZES[-1]`` points count as that many: no
    two samples are equal to that degree.

    Args:
        classes: of each point.
    """
    shares = np.bincount(classes, minlength=known.means.shape[1]) / len(points)
    of_mean = max(1 / len(points), 1 / SIZES[-1])
    # A class that a domain lacks has a guess for its mean, less certain than one example.
    by_class = (shares**2 / np.maximum(known.counts, 0.5)).sum(1)
    squares = _squared_distances(known, points, shares)
    return np.asarray(squares / (of_mean + by_class) / points.shape[1])


def place_distance(known: KnownDomains, points: Array, classes: Labels) -> float:
    """Return how far the mean of points is from that of the nearest domain with their classes."""
    shares = np.bincount(classes, minlength=known.means.shape[1]) / len(points)
    nearest = float(np.nanmin(_squared_distances(known, points, shares)))
    return math.sqrt(max(nearest - points.shape[1] / len(points), 0.0))


def _squared_distances(known: KnownDomains, points: Array, shares: Array) -> Array:
    """Return the distance of the points' mean from that of each domain with these class shares."""
    there = shares > 0
    expected = np.einsum("c,ecd->ed", shares[there], known.means[:, there])
    return np.asarray(((points.mean(0) - expected) ** 2).sum(1))


def learn_drift(
    known: KnownDomains,
    points: Mapping[str, Array],
    labels: Mapping[str, Labels],
    generator: np.random.Generator,
) -> tuple[DriftRule, float] | None:
    """Return the rule, and the distance from its nearest class that 1 % of known examples exceed.

    None if there are too few examples to compare some of them with the others.

    Each part of the data makes batches of one domain, with random class shares, which are compared
    with the means of all other parts.

    Args:
        known: the moments of these points.
        points, labels: of every domain, projected.
    """
    classes = known.means.shape[1]
    part = {name: generator.permutation(len(one)) % PARTS for name, one in points.items()}
    shifts: dict[int, list[float]] = {size: [] for size in SIZES}
    distances = []
    for k in range(PARTS):
        rest = {name: one[part[name] != k] for name, one in labels.items()}
        others = replace(
            known,
            means=class_means(
                {name: one[part[name] != k] for name, one in points.items()}, rest, classes
            ),
            counts=np.stack([np.bincount(y, minlength=classes) for y in rest.values()]),
        )
        mine = {name: one[part[name] == k] for name, one in points.items()}
        found = {name: others.nearest(one) for name, one in mine.items()}
        distances += [one.distances for one in found.values()]
        names = [name for name, one in mine.items() if len(one)]
        for size in SIZES:
            for number in range(BATCHES // PARTS if names else 0):
                name = names[number % len(names)]
                truth = labels[name][part[name] == k]
                drawn = draw_batch(truth, size, generator)
                shift = mean_shifts(others, mine[name][drawn], found[name].classes[drawn])
                shifts[size] += [float(np.nanmin(shift))] if np.isfinite(shift).any() else []
    together = np.concatenate(distances)
    together = together[np.isfinite(together)]
    if not len(together) or not all(shifts.values()):
        return None
    thresholds = tuple(float(np.quantile(one, SHARE)) for one in shifts.values())
    return DriftRule(thresholds=thresholds), float(np.quantile(together, 0.99))


def draw_batch(labels: Labels, size: int, generator: np.random.Generator) -> Labels:
    """Return indices of a batch whose class shares are drawn evenly from all that there are.

    No example is there twice, so a class that runs out leaves its place to the others, and the
    batch has all examples if there are fewer than ``size``.
    """
    present, left = np.unique(labels, return_counts=True)
    shares = generator.dirichlet(np.ones(len(present)))
    taken = np.zeros(len(present), np.int64)
    while (missing := min(size, len(labels)) - int(taken.sum())) > 0:
        open_ = np.where(taken < left, shares + 1e-9, 0.0)
        taken = np.minimum(taken + generator.multinomial(missing, open_ / open_.sum()), left)
    return np.concatenate(
        [
            generator.permutation(np.flatnonzero(labels == c))[:number]
            for c, number in zip(present, taken, strict=True)
        ]
    )


def measure_drift(
    known: KnownDomains,
    rule: DriftRule,
    usual: float,
    points: Array,
    generator: np.random.Generator,
) -> Drift:
    """Return how far points of one place, ``[n, d]``, are from the known domains."""
    found = known.nearest(points)
    shifts = np.nan_to_num(mean_shifts(known, points, found.classes), nan=np.inf)
    enough = len(points) >= SIZES[0]
    return Drift(
        shifts=dict(zip(known.names, shifts.tolist(), strict=True)),
        threshold=rule.threshold(len(points)) if enough else None,
        auroc=_auroc(known, int(shifts.argmin()), points, found.classes, generator)
        if enough
        else None,
        distance=place_distance(known, points, found.classes),
        classes=found.classes,
        distances=found.distances,
        usual=usual,
    )


def column_shifts(known: KnownDomains, features: Array) -> Array:
    """Return by how much the mean of every feature is outside those of the domains, ``[p]``.

    In units of the feature's spread, with its sign; 0 inside.
    """
    mean = known.scaled(features).mean(0)
    low, high = known.columns.min(0), known.columns.max(0)
    return np.asarray(np.maximum(mean - high, 0.0) + np.minimum(mean - low, 0.0))


def _auroc(
    known: KnownDomains,
    domain: int,
    points: Array,
    classes: Labels,
    generator: np.random.Generator,
) -> float:
    """Return the cross-validated AUROC of a linear classifier of the place against a domain.

    Both are taken from the means of their classes in the domain, so that class shares do not count.
    Without vectors, the domain's are drawn from its moments.
    """
    means = known.means[domain]
    vectors = known.vectors[known.owners == domain]
    if len(vectors) < FOLDS:
        number = max(len(points), 100)
        rest = generator.normal(size=(number, means.shape[1]))
    else:
        rest = vectors - means[known.nearest(vectors).classes]
    mine = points - means[classes]
    known_rows = ~np.isnan(mine).any(1)
    rows = np.concatenate([rest[~np.isnan(rest).any(1)], mine[known_rows]])
    new = np.repeat([0.0, 1.0], [len(rows) - known_rows.sum(), known_rows.sum()])
    fold = generator.permutation(len(rows)) % FOLDS
    scores = np.zeros(len(rows))
    for k in range(FOLDS):
        scores[fold == k] = _discriminant(rows[fold != k], new[fold != k], rows[fold == k])
    return auroc(scores[new == 1], scores[new == 0])


def _discriminant(rows: Array, new: Array, others: Array) -> Array:
    """Return the scores of other rows, by ridge regression with both sides weighing the same."""
    weights = np.where(new == 1, 0.5 / max(new.sum(), 1), 0.5 / max((1 - new).sum(), 1))
    centre = weights @ rows
    centred = rows - centre
    gram = (centred * weights[:, None]).T @ centred + 0.1 * np.eye(rows.shape[1])
    return np.asarray((others - centre) @ np.linalg.solve(gram, (weights * (new - 0.5)) @ centred))


def auroc(high: Sequence[float] | Array, low: Sequence[float] | Array) -> float:
    """Return the probability that one of ``high`` is above one of ``low``; ties count half."""
    ordered = np.sort(np.asarray(low))
    below = np.searchsorted(ordered, high, "left")
    up_to = np.searchsorted(ordered, high, "right")
    return float((below + up_to).mean() / 2 / len(ordered))
