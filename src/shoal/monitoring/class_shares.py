"""Class shares: how frequent each class is at a new place, from probabilities alone."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# EM ends when no share changes by more than this, or after so many steps.
SETTLED, STEPS = 1e-7, 2000
# Probabilities below it count as it, so that no input rules out all classes.
LOWEST = float(np.finfo(np.float64).eps)


def estimate_shares(log_probabilities: Array, before: Array) -> tuple[Array, Array]:
    """Return the class shares ``[C]`` of inputs, and their corrected probabilities ``[n, C]``.

    If only the shares differ from those of training, the probabilities that a model gives are off
    by the ratio of both. EM (Saerens et al., 2002) alternates: p(y | x) ∝ p_train(y | x) · q(y) /
    q_train(y), and q is the mean of p(y | x). A class without training examples keeps its share of
    zero.

    Args:
        log_probabilities: of the model, ``[n, C]``.
        before: q_train, the shares in training, ``[C]``.
    """
    p = np.maximum(np.exp(np.asarray(log_probabilities, np.float64)), LOWEST)
    p /= p.sum(1, keepdims=True)
    ratio = np.where(before > 0, 1.0, 0.0)  # q / q_train
    for _ in range(STEPS if len(p) else 0):
        # The mean of p · ratio / (p @ ratio), divided by q_train, without forming it.
        moved = ratio * (p.T @ (1 / (p @ ratio))) / len(p)
        old, ratio = ratio, np.divide(moved, before, out=np.zeros_like(moved), where=before > 0)
        if (np.abs(ratio - old) * before).max() <= SETTLED:
            break
    corrected = p * ratio
    corrected /= corrected.sum(1, keepdims=True)
    return np.asarray(ratio * before), np.asarray(corrected)
