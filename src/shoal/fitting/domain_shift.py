"""Domain shift: how well the domain can be told from the inputs, by a small forest."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
# Rows for the forest, of each domain at least, and the number of domains, at most.
ROWS, LEAST, DOMAINS = 2000, 20, 50
TREES, PARTS = 50, 3
# A gain over chance below this is no news.
GAIN = 0.1
# Inputs that the note names.
NAMED = 3


class DomainAccuracy(NamedTuple):
    """How often a forest finds the domain of an input it has not seen, averaged over domains.

    ``inputs`` are the names of those that help it most.
    """

    accuracy: float
    chance: float
    inputs: tuple[str, ...]


def domain_accuracy(
    features: Array, names: Sequence[str], domains: Array, ignored: Collection[str] = ()
) -> DomainAccuracy | None:
    """Return how well the domain is told; None without scikit-learn, or with too little to tell.

    Args:
        features: float ``[n, d]``, NaN for a missing number.
        names: of the d features; equal ones are counted together.
        domains: the number of every example's domain, int ``[n]``.
        ignored: names of features that the forest does not see.
    """
    try:
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.model_selection import StratifiedKFold
    except ModuleNotFoundError:
        return None
    chosen = _sample(domains)
    answers = domains[chosen]
    kinds = np.unique(answers)
    seen = [k for k, name in enumerate(names) if name not in ignored]
    if len(kinds) < 2 or not seen:
        return None
    inputs, names = features[chosen][:, seen], [names[k] for k in seen]
    inputs = np.where(np.isfinite(inputs), inputs, 0.0)
    right, weights = np.zeros(len(answers), dtype=bool), np.zeros(len(names))
    for old, new in StratifiedKFold(PARTS, shuffle=True, random_state=0).split(inputs, answers):
        forest = ExtraTreesClassifier(TREES, min_samples_leaf=2, random_state=0)
        forest.fit(inputs[old], answers[old])
        right[new] = forest.predict(inputs[new]) == answers[new]
        weights += forest.feature_importances_
    accuracy = float(np.mean([right[answers == kind].mean() for kind in kinds]))
    weight: dict[str, float] = {}
    for name, one in zip(names, weights.tolist(), strict=True):
        weight[name] = weight.get(name, 0.0) + one
    best = sorted(weight, key=weight.__getitem__, reverse=True)[:NAMED]
    return DomainAccuracy(accuracy, 1 / len(kinds), tuple(best))


def describe_shift(found: DomainAccuracy | None, inputs: str) -> list[str]:
    """Return a note if the domain is told better than by chance; ``inputs`` says from what."""
    if found is None or found.accuracy < found.chance + GAIN:
        return []
    return [
        f"the domain can be told from the {inputs} with {100 * found.accuracy:.0f} % accuracy "
        f"(chance {100 * found.chance:.0f} %), most of all from {', '.join(found.inputs)}: the "
        "domains differ, so expect a new one to differ as well"
    ]


def _sample(domains: Array) -> Array:
    """Return examples of the largest domains, as many of each as there is room for."""
    counts = np.bincount(domains)
    largest = [k for k in np.argsort(-counts, kind="stable")[:DOMAINS] if counts[k] >= LEAST]
    each = max(LEAST, ROWS // max(len(largest), 1))
    random = np.random.RandomState(0)
    found = [random.permutation(np.flatnonzero(domains == k))[:each] for k in sorted(largest)]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
