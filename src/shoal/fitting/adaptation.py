"""Adaptations: ways to fit a trained model to new data without their labels.

Papers adapt to a stream of small batches, so that the order of arrival matters. Here all inputs are
one batch: a command gets a whole folder at once, and its order must not matter.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..algorithms.base import Algorithm, UpdateAlgorithm
from ..monitoring.class_shares import estimate_shares
from ..networks.base import Network
from ..randomness import stream

Array = NDArray[np.float64]
# The names of adaptations, in models' cards and on pages.
T3A, PRIOR, BATCH_NORM = "T3A", "prior correction", "batch norm"
ADAPTATIONS = (T3A, PRIOR, BATCH_NORM)
# The most images in a batch that batch norm takes its statistics of.
TOGETHER = 64

M = TypeVar("M", bound=nn.Module)


def t3a(features: Tensor, weight: Tensor, bias: Tensor, kept: int | None = None) -> Tensor:
    """Return the logits of T3A (Iwasawa and Matsuo, 2021), float64 ``[n, C]``.

    The supports of a class are the row of the head's weight and the features that the head
    predicts as the class. The new row is the normalised sum of the normalised supports, without
    bias. A row of the weight stays in its class, also if the head takes it for another one.

    Args:
        features: of all inputs, ``[n, p]``.
        weight, bias: of the linear head, ``[C, p]`` and ``[C]``.
        kept: K, the number of supports of a class that are kept, those of lowest entropy; None for
            all of them.
    """
    z, w = features.double(), weight.detach().double()
    # No probability depends on what all rows share, but T3A would. Of two classes, scikit-learn
    # puts everything into the second row, and the first is zero.
    w = w - w.mean(0)
    classes = len(w)
    supports = torch.cat([w, z])
    logits = supports @ w.T + bias.detach().double()
    mine = torch.cat([torch.arange(classes, device=z.device), logits[classes:].argmax(1)])
    supports = normalize(supports, dim=1)
    if kept is not None:
        chosen = _surest(logits, mine, kept)
        supports, mine = supports[chosen], mine[chosen]
    sums = torch.zeros_like(w).index_add_(0, mine, supports)
    return z @ normalize(sums, dim=1).T


def _surest(logits: Tensor, classes: Tensor, kept: int) -> Tensor:
    """Return the indices of the ``kept`` rows of lowest entropy of each class."""
    logs = logits.log_softmax(-1)
    order = (-(logs.exp() * logs).sum(-1)).argsort(stable=True)
    found = [order[classes[order] == k][:kept] for k in range(logits.shape[1])]
    return torch.cat(found)


def predicts_by_network(algorithm: Algorithm) -> bool:
    """Return whether a method's logits are those of its network's head on its features."""
    return type(algorithm).predict is UpdateAlgorithm.predict and isinstance(
        algorithm.model, Network
    )


def linear_head(algorithm: Algorithm) -> nn.Linear | None:
    """Return the head of a method that predicts by a linear head on features; None for others."""
    head = algorithm.model.classifier if predicts_by_network(algorithm) else None
    return head if isinstance(head, nn.Linear) else None


def correct_shares(log_probabilities: Array, shares: Array) -> Array:
    """Return the log-probabilities for the class shares of these inputs, as in ``estimate_shares``.

    Args:
        log_probabilities: of the model, ``[n, C]``, right for its training data. A temperature
            for other domains would count their class shares twice.
        shares: of the classes in training, ``[C]``.
    """
    _, corrected = estimate_shares(log_probabilities, shares)
    return np.asarray(np.log(np.maximum(corrected, np.finfo(np.float64).tiny)))


def with_statistics_of(module: M, batches: Iterable[Tensor]) -> M:
    """Return a copy of a module in which batch norm has the statistics of these inputs.

    Every layer takes the mean over batches of their means and variances, and hands each batch on
    normalised by its own. So batches of many shuffled inputs are needed: one of a single class
    would lose what makes it that class.
    """
    found = deepcopy(module).eval()
    norms = [part for part in found.modules() if follows_inputs(part)]
    for part in norms:
        part.reset_running_stats()  # type: ignore[operator]
        part.momentum = None  # type: ignore[assignment]
        part.training = True
    with torch.no_grad():
        for batch in batches:
            found(batch)
    return found.eval()


def shuffled_batches(number: int) -> tuple[Tensor, ...]:
    """Return the indices of inputs in batches for ``with_statistics_of``, always the same ones.

    The inputs are shuffled, because a folder lists its files class by class, perhaps. No batch is
    larger than another one by more than one input, because all of them count alike.
    """
    order = torch.randperm(number, generator=stream("batch norm"))
    return order.tensor_split(max(1, -(-number // TOGETHER)))


def follows_inputs(part: nn.Module) -> bool:
    """Return whether a layer is a batch norm with statistics of its own."""
    return isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats
