"""Stopping: a training ends with its best weights, by the held-out parts of its domains.

All updates are made. The weights of the record with the smallest held-out loss are kept beside
them, and the training ends with these: later records are dropped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..algorithms.base import Algorithm
from ..results.records import Record
from ..scalars import widest
from .evaluation import Evaluation, EvaluationSet

# The key of the loss in a record.
LOSS = "held_out_loss"


class Stopping:
    """Follows the records of a training, and keeps the weights of the best one.

    Args:
        held_out: the held-out part of each training domain; if there is none, the last record is
            the best.
        weights: returns all tensors that predictions depend on, by name.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        evaluate: Evaluation,
        held_out: Sequence[EvaluationSet],
        weights: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self.algorithm, self.evaluate = algorithm, evaluate
        self.held_out, self.weights = held_out, weights
        self._loss, self._step = math.inf, -1
        self._best: dict[str, Tensor] = {}

    def measure(self) -> dict[str, float]:
        """Return the held-out loss for a record: cross-entropy, the mean over the domains."""
        found = []
        for part in self.held_out:
            logits = torch.cat(list(self.evaluate.logits(part)))
            logits = logits.to(widest(logits.device))
            labels = part.labels.to(logits.device)
            found.append(float(functional.cross_entropy(logits, labels)))
        return {LOSS: fmean(found)} if found else {}

    def follow(self, record: Record) -> None:
        """Keep the current weights if their record is the best so far."""
        loss = float(record.extra.get(LOSS, math.nan))
        if loss < self._loss:
            self._loss, self._step = loss, record.step
            self._best = {name: tensor.clone() for name, tensor in self.weights().items()}

    def end(self, records: Sequence[Record]) -> list[Record]:
        """Give the method the best weights, and return the records up to theirs."""
        if not self._best:
            return list(records)
        self.algorithm.load_state_dict(self._best, strict=False)
        return [record for record in records if record.step <= self._step]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"loss": self._loss, "step": self._step, "weights": self._best}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self._loss, self._step = state["loss"], state["step"]
        self._best = dict(state["weights"])
