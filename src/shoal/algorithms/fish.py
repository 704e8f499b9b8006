"""Fish: one step per domain in turn, then a share of their sum (Shi et al., 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..internals import foreach
from .forward import Batch
from .hparams import Hparams, choice, hparam
from .per_domain import PerDomain


@dataclass(frozen=True)
class FishHparams(Hparams):
    """The step of the outer loop."""

    meta_lr: float = hparam(
        0.5, choice(0.05, 0.1, 0.5), key="meta_lr", help="share of the inner loop's steps to take"
    )


class Fish(PerDomain):
    """Match the gradient means: their inner products, to first order."""

    paper = "Gradient Matching for Domain Generalization (Shi et al.)"
    year = 2022
    capture = "compiled"
    Hparams = FishHparams
    hparams: FishHparams

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step on each domain in turn, then keep a share meta_lr of the change.

        The loss is the mean of the risks along these steps; DomainBed reports the last.
        """
        self.check_batches(batches)
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        moving = [weight.detach() for weight in self.optimiser.weights] + buffers
        start = [values.clone() for values in moving]
        risks = []
        finite = self.all_finite
        for batch in batches:
            risk, grads = self.gradient(batch)
            risks.append(risk)
            finite = finite & risk.isfinite()
            self.optimiser.step(grads, finite)
            finite = finite & self.optimiser.all_finite
        # θ + meta_lr (θ' − θ), or θ if a risk or a gradient was not finite.
        part = torch.where(finite, start[0].new_full((), self.hparams.meta_lr), 0.0)
        foreach("sub_", moving, start)
        foreach("mul_", moving, part)
        foreach("add_", moving, start)
        for buffer, before in zip(buffers, start[len(start) - len(buffers) :], strict=True):
            buffer.copy_(torch.where(finite, buffer, before))  # 0 · NaN is not zero
        return self.report(loss=torch.stack(risks).mean())
