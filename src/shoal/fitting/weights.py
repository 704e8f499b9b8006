"""Weights: how likely each example is in a batch, by its own weight and that of its class."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import Domain
from ..datasets.encoding import Array
from ..training.placement import Sampling
from .inputs import Examples, as_array

# The class weight that makes all classes of a domain equally likely.
BALANCED = "balanced"


def sampling_of(examples: Examples, sample_weight: Any, class_weight: Any) -> Sampling:
    """Return how batches are drawn.

    An example's probability in its domain is proportional to its weight times that of its class.
    Inputs in memory are drawn in an order of their own, so the order of the rows plays no part.

    Args:
        sample_weight: of every example, ``[n]``, as the user gave the examples; None for 1.
        class_weight: None, "balanced", for which ``is_balanced`` asks, or weights by class.
    """
    n = sum(map(len, examples.rows))
    weights = example_weights(sample_weight, n)
    domains = examples.dataset.domains
    by_class = class_weights(class_weight, examples.classes)
    found = Sampling(
        examples={domain.name: _own_order(domain) for domain in domains},
        weights={
            domain.name: torch.from_numpy(weights[rows])
            for domain, rows in zip(domains, examples.rows, strict=True)
        },
        class_weights=torch.from_numpy(by_class),
    )
    for domain in domains:
        if not found.likelihoods(domain).any():
            raise ValueError(
                f"all weights of the domain {domain.name!r} are zero, so there is nothing to draw "
                "from it; leave out its examples, or give some of them a weight"
            )
    return found


def is_balanced(class_weight: Any) -> bool:
    """Return whether all classes of a domain are equally likely."""
    return isinstance(class_weight, str) and class_weight == BALANCED


def example_weights(given: Any, n: int) -> Array:
    """Return the weight of each of n examples, float64 ``[n]``; 1 for each if None."""
    if given is None:
        return np.ones(n)
    try:
        weights = np.array(as_array(given), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be numbers ({error})") from error
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must be [n] with n = {n}, got {list(weights.shape)}")
    _check("sample_weight", weights)
    if not weights.any():
        raise ValueError("sample_weight must have a weight that is not zero, all of them are zero")
    return weights


def class_weights(given: Any, classes: Array) -> Array:
    """Return the weight of each class, float64 ``[C]``; 1 for each if None or "balanced"."""
    if given is None or is_balanced(given):
        return np.ones(len(classes))
    if not isinstance(given, Mapping):
        raise ValueError(
            f"class_weight must be None, {BALANCED!r} or a dict from classes to weights, got "
            f"{given!r}"
        )
    known = classes.tolist()
    unknown = [name for name in given if name not in known]
    # A fold of a cross-validation can lack a class; a class without a weight shows a wrong name.
    if unknown and any(name not in given for name in known):
        raise ValueError(f"class_weight names {unknown[0]!r}, but the classes of y are {known}")
    weights = np.array([given.get(name, 1.0) for name in known], dtype=np.float64)
    _check("class_weight", weights)
    return weights


def _check(what: str, weights: Array) -> None:
    wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise ValueError(f"{what} must be finite numbers, 0 or more, got {wrong[0]}")


def _own_order(domain: Domain) -> Tensor:
    """Return the examples of a domain, sorted by a hash of input and label; files as they are."""
    if not domain.in_memory:
        return torch.arange(len(domain))
    rows, labels = domain.tensor.cpu().numpy(), domain.labels.tolist()

    def key(place: int) -> tuple[bytes, int]:
        return hashlib.blake2b(rows[place].tobytes(), digest_size=16).digest(), labels[place]

    return torch.tensor(sorted(range(len(domain)), key=key))
