"""What the methods stand on that take one gradient of each domain."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Classifying
from .forward import Batch, Forward
from .optimiser import Optimiser


class PerDomain(Classifying):
    """A method with a forward and a backward pass for each domain; enters by ``update(batches)``.

    Calling it returns the risk of some batches and no more, so that ``compile()`` compiles that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return ``loss``, the risk of these batches together."""
        return {"loss": Forward.of(self.model, batches).risk}

    def gradient(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return R_e, detached, and g_e for each weight tensor; zero where the risk has no part.

        Two weights that are added get one and the same tensor: change none of them in place.
        """
        risk = self([batch])["loss"]
        grads = torch.autograd.grad(risk, self.optimiser.weights, materialize_grads=True)
        return risk.detach(), grads
