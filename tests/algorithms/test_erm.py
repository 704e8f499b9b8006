"""ERM against the pooled risk, written out."""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import Plain, compare, make


def oracle(plain: Plain, batches: list[Batch], step: int) -> Tensor:
    losses = []
    for inputs, labels in batches:
        for x, y in zip(inputs, labels, strict=True):
            losses.append(F.cross_entropy(plain.logits(x[None]), y[None]))
    loss = torch.stack(losses).mean()
    plain.adam(weight_decay=0.1).step(plain.weights, plain.gradients(loss))
    return loss


def test_erm() -> None:
    compare(make("erm", weight_decay=0.1), oracle)
