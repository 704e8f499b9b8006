"""Metrics: scores of probabilities ``[n, C]`` against labels ``[n]``, of all examples and by class.

A domain can lack classes. Each metric says which classes count then. If the probabilities are not
finite, every score is NaN: a model that gives no probabilities has no score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
# Bins of equal width for the calibration error, as in training.
BINS = 15


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A way to score probabilities.

    Args:
        title: its name in text.
        larger_is_better: whether a larger score is a better one.
        percent: whether people write it in percent; all such scores are between 0 and 1.
        bounded: whether scores are between 0 and 1; the others are positive.
        score: takes probabilities and labels.
        chance: the score of guessing each of the C classes equally often, from labels and C.
    """

    title: str
    larger_is_better: bool
    percent: bool
    bounded: bool
    score: Callable[[ArrayLike, ArrayLike], float]
    chance: Callable[[ArrayLike, int], float]

    @property
    def sign(self) -> int:
        """1 if a larger score is better, otherwise −1."""
        return 1 if self.larger_is_better else -1

    @property
    def unit(self) -> str:
        """What people write after a score."""
        return " %" if self.percent else ""

    @property
    def scale(self) -> int:
        """The factor from a score to the number that people write."""
        return 100 if self.percent else 1

    @property
    def digits(self) -> int:
        """The decimals of that number in a table."""
        return 1 if self.percent else 3

    def show(self, value: float) -> str:
        """Return a score as text: 76.3 %, or 0.873."""
        return f"{self.scale * value:.{self.digits}f}{self.unit}"

    def show_roughly(self, value: float) -> str:
        """Return a score as text, without the digits that an estimate does not have."""
        return f"{100 * value:.0f} %" if self.percent else f"{value:.2f}"

    def show_difference(self, value: float, error: float) -> str:
        """Return a difference and its standard error as text, such as +2.5 ± 1.1 points."""
        if self.percent:
            return f"{100 * value:+z.1f} ± {100 * error:.1f} points"
        return f"{value:+z.3f} ± {error:.3f} {self.title}"

    def show_range(self, low: float, high: float) -> str:
        """Return two scores as text, such as 62 and 97 %."""
        return f"{self.show_roughly(low).removesuffix(self.unit)} and {self.show_roughly(high)}"


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of examples whose most probable class is their label."""
    p, y = _checked(probabilities, labels)
    return float(np.mean(p.argmax(1) == y)) if _finite(p) else math.nan


def balanced_accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean recall of the classes that occur among the labels."""
    found = by_class(probabilities, labels)
    return _mean_of_known(found.recall)


def macro_f1(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean F1 of the classes that occur among the labels.

    A class that a domain lacks does not count, even if it is predicted there: otherwise a single
    such prediction would lower the mean of two classes by a third.
    """
    found = by_class(probabilities, labels)
    right = np.diag(found.confusion)
    both = found.confusion.sum(0) + found.confusion.sum(1)
    present = ~np.isnan(found.recall)
    return _mean_of_known(2 * right[present] / both[present])


def macro_auroc(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean, over classes, of the AUROC of a class against all others.

    Classes that none or all examples have do not count. NaN if there is no other: a domain with
    one class has no AUROC.
    """
    return _mean_of_known(by_class(probabilities, labels).auroc)


def log_loss(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of −log p of the label; probabilities below 2.2e-16 count as that."""
    p, y = _checked(probabilities, labels)
    if not _finite(p):
        return math.nan
    mine = np.clip(p[np.arange(len(y)), y], np.finfo(np.float64).eps, 1)
    return float(-np.log(mine).mean())


def calibration_error(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the expected calibration error (Guo et al., 2017) over 15 bins of equal width.

    It is the one that runs record: a confidence of k/15 belongs to the bin that ends there.
    """
    p, y = _checked(probabilities, labels)
    if not _finite(p):
        return math.nan
    confidence = p.max(1)
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, confidence - (p.argmax(1) == y), minlength=BINS)
    return float(np.abs(gaps).sum() / len(y))


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Scores of each class, ``[C]``; NaN where a class has none.

    Args:
        recall: the share of a class's examples that are predicted as it; NaN if it has none.
        precision: the share of its predictions that are right; NaN if it is never predicted.
        auroc: of its probability, against all other classes; NaN if none or all examples have it.
        prevalence: the share of examples that have it.
        confusion: how often label i was predicted as class j, ``[C, C]``.
    """

    recall: Array
    precision: Array
    auroc: Array
    prevalence: Array
    confusion: Labels


def by_class(probabilities: ArrayLike, labels: ArrayLike) -> ClassScores:
    """Return the scores of each class."""
    p, y = _checked(probabilities, labels)
    classes = p.shape[1]
    counts = np.bincount(y, minlength=classes)
    if not _finite(p):
        unknown = np.full(classes, math.nan)
        return ClassScores(
            recall=unknown,
            precision=unknown,
            auroc=unknown,
            prevalence=counts / len(y),
            confusion=np.zeros((classes, classes), np.int64),
        )
    pairs = y * classes + p.argmax(1)
    confusion = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    right, predicted = np.diag(confusion), confusion.sum(0)
    return ClassScores(
        recall=_share(right, counts),
        precision=_share(right, predicted),
        auroc=np.array([auroc(p[:, k], y == k) for k in range(classes)]),
        prevalence=counts / len(y),
        confusion=confusion,
    )


def auroc(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Return how often a positive example scores higher than a negative one; a tie counts half.

    NaN if there are no positive or no negative examples.
    """
    n = int(positive.sum())
    if n in (0, len(positive)):
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal scores, from 1
    ranks = middle[inverse][positive].sum()
    return float((ranks - n * (n + 1) / 2) / (n * (len(positive) - n)))


def constant_score(metric: Metric, shares: ArrayLike, labels: ArrayLike) -> float:
    """Return the score of predicting the same probabilities ``[C]`` for every example.

    With a domain's own class shares, this is the score of always predicting its most frequent
    class; for the log-loss, that of its class frequencies.
    """
    p, y = np.asarray(shares, np.float64), np.asarray(labels)
    return metric.score(np.broadcast_to(p, (len(y), len(p))), y)


def class_shares(labels: ArrayLike, classes: int) -> Array:
    """Return the share of each class among labels, ``[C]``."""
    y = np.asarray(labels)
    return np.bincount(y, minlength=classes) / len(y)


def _chance_of_f1(labels: ArrayLike, classes: int) -> float:
    """Return the macro F1 of guessing: precision is a class's share s, recall 1/C."""
    shares = class_shares(labels, classes)
    present = shares[shares > 0]
    return float((2 * present / classes / (present + 1 / classes)).mean())


METRICS = {
    "accuracy": Metric(
        title="accuracy",
        larger_is_better=True,
        percent=True,
        bounded=True,
        score=accuracy,
        chance=lambda _, classes: 1 / classes,
    ),
    "balanced": Metric(
        title="balanced accuracy",
        larger_is_better=True,
        percent=True,
        bounded=True,
        score=balanced_accuracy,
        chance=lambda _, classes: 1 / classes,
    ),
    "f1": Metric(
        title="macro F1",
        larger_is_better=True,
        percent=True,
        bounded=True,
        score=macro_f1,
        chance=_chance_of_f1,
    ),
    "auroc": Metric(
        title="AUROC",
        larger_is_better=True,
        percent=False,
        bounded=True,
        score=macro_auroc,
        chance=lambda *_: 0.5,
    ),
    "log-loss": Metric(
        title="log-loss",
        larger_is_better=False,
        percent=False,
        bounded=False,
        score=log_loss,
        chance=lambda _, classes: math.log(classes),
    ),
}


def _checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, Labels]:
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    if p.ndim != 2 or y.ndim != 1 or len(p) != len(y) or not len(y):
        raise ValueError(
            "a score needs probabilities [n, C] and labels [n] of one example or more, got shapes "
            f"{list(p.shape)} and {list(y.shape)}"
        )
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(
            f"labels must be from 0 to {p.shape[1] - 1}, because there are probabilities of "
            f"{p.shape[1]} classes; got {y.min()} to {y.max()}"
        )
    return p, y.astype(np.int64)


def _finite(p: Array) -> bool:
    return bool(np.isfinite(p).all())


def _share(part: Labels, whole: Labels) -> Array:
    """Return part / whole; NaN where the whole is zero."""
    return np.asarray(part / np.where(whole > 0, whole, math.nan))


def _mean_of_known(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
