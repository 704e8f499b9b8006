"""Class shares: how frequent each class is at a new place, from probabilities alone."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ROUNDS = 200
# Every class has this share at least, so that no class is ruled out for good.
LEAST = 1e-6


def estimate_shares(log_probabilities: Array, before: Array) -> tuple[Array, Array]:
    """Return the class shares ``[C]`` of inputs, and their corrected probabilities ``[n, C]``.

    If only the shares differ from those of training, the probabilities that a model gives are off
    by the ratio of both. The EM algorithm finds the shares that agree with the probabilities which
    they correct (Saerens et al., 2002). The model must be calibrated.

    Args:
        log_probabilities: ``[n, C]``.
        before: the shares in training, ``[C]``.
    """
    p = np.exp(log_probabilities)
    before = np.maximum(before, LEAST)
    before = before / before.sum()
    shares, corrected = before, p
    for _ in range(ROUNDS):
        corrected = p * (shares / before)
        corrected /= np.maximum(corrected.sum(1, keepdims=True), np.finfo(np.float64).tiny)
        shares = np.maximum(corrected.mean(0), LEAST)
        shares /= shares.sum()
    return shares, corrected
