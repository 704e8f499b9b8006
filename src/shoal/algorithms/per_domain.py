"""Per-domain gradients: one pass for each domain, agreement of signs, masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..internals import foreach, norms
from .base import UpdateAlgorithm
from .forward import Batch, Forward
from .optimiser import Optimiser


class PerDomain(UpdateAlgorithm):
    """A method with a forward and a backward pass for each domain; it defines ``update(batches)``.

    Calling it returns the risk of some batches; ``compile()`` compiles just that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return ``loss``, the risk of these batches together."""
        return {"loss": Forward.of(self.model, batches).risk}

    def gradient(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return R_e, detached, and g_e for each weight tensor; zero if the risk does not use it.

        Two weights that are added share one gradient tensor: change none of them in place.
        """
        risk = self([batch])["loss"]
        grads = torch.autograd.grad(risk, self.optimiser.weights, materialize_grads=True)
        return risk.detach(), grads


@dataclass(frozen=True)
class Agreement:
    """Mean and agreement of E gradients, for each weight tensor.

    Only one domain's gradients are in memory at a time.
    """

    loss: Tensor  # mean of the domains' risks
    mean: list[Tensor]
    agreement: list[Tensor]  # |mean_e sign(g_e)|, 0 to 1
    squares: list[Tensor]  # Σ_e (g_e − ḡ)²; empty unless requested

    @staticmethod
    def of(method: PerDomain, batches: Sequence[Batch], squares: bool = False) -> "Agreement":
        """Take the gradients domain by domain with Welford's sums, which do not cancel."""
        risk, grads = method.gradient(batches[0])
        risks, signs = [risk], foreach("sign", grads)
        mean = [grad.clone() for grad in grads]
        spread = [torch.zeros_like(grad) for grad in grads] if squares else []
        for k, batch in enumerate(batches[1:], 2):
            risk, grads = method.gradient(batch)
            risks.append(risk)
            foreach("add_", signs, foreach("sign", grads))
            gaps = foreach("sub", grads, mean)
            foreach("add_", mean, gaps, alpha=1 / k)
            if squares:
                foreach("addcmul_", spread, gaps, gaps, value=(k - 1) / k)
        foreach("abs_", signs)
        foreach("div_", signs, len(batches))
        return Agreement(torch.stack(risks).mean(), mean, signs, spread)


def apply_masks(gradient: list[Tensor], masks: list[Tensor]) -> list[Tensor]:
    """Return mask · gradient / (1e-10 + mean(mask)) for each weight tensor, in place."""
    # Masks are 0 or more, so their 1-norms are their sums.
    means = norms(masks, 1)
    foreach("div_", means, [float(mask.numel()) for mask in masks])
    foreach("add_", means, 1e-10)
    foreach("mul_", gradient, masks)
    foreach("div_", gradient, means)
    return gradient
