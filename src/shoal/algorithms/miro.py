"""MIRO: features that stay near those of the pretrained network (Cha et al., 2022)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..networks import FrozenCopy, head_sizes, moved_stages
from ..regularizers import Warmup
from .base import UpdateAlgorithm
from .forward import Batch
from .hparams import Hparams, choice, hparam
from .optimiser import Optimiser

# The variances at the start, the least that they can be, and their learning rate beside lr.
START, LEAST, FASTER = 0.1, 1e-5, 10


WEIGHTS = choice(1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class MIROHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(
        0.1,
        WEIGHTS,
        key="penalty_weight",
        help="λ of the distance from the initial network",
        datasets=dict.fromkeys(("pacs", "vlcs"), (0.01, WEIGHTS)),
    )


class MIRO(UpdateAlgorithm):
    """Match the features with the initial network's: each stage may move where it is uncertain.

    The initial network is ``model`` when the method is made, and a part of its state. Which outputs
    are compared is up to the network: its ``stages``, or else its features alone. Without
    pretrained weights there is nothing worth staying near.
    """

    paper = "Domain Generalization by Mutual-Information Regularization (Cha et al.)"
    year = 2022
    capture = "compiled"
    stays_near_start = True
    Hparams = MIROHparams
    hparams: MIROHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        width, _ = head_sizes(self.model.classifier)  # type: ignore[arg-type]
        self.initial = FrozenCopy(self.model.features, width)  # type: ignore[arg-type]
        weight = next(self.model.parameters())
        start = math.log(math.expm1(START - LEAST))  # softplus(start) is START − LEAST
        self.variances = nn.ParameterList(
            torch.full((n,), start, dtype=weight.dtype, device=weight.device)
            for n in self.initial.widths
        )
        self.warmup = Warmup(h.penalty_weight).to(self.device)
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.variance_optimiser = Optimiser(
            self.variances.parameters(), FASTER * h.lr, h.weight_decay
        )

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return risk, penalty and their sum.

        The penalty is λ Σ_m ½ mean[(f_m − f_m⁰)² / σ_m² + log σ_m²], over all entries of stage m, a
        variance for each channel.
        """
        inputs = torch.cat([inputs for inputs, _ in batches])
        labels = torch.cat([labels for _, labels in batches])
        features, gaps = moved_stages(self.model.features, self.initial, inputs)  # type: ignore[arg-type]
        logits = precise(self.model.classifier(features))  # type: ignore[operator]
        risk = individual_losses(logits, labels, None).mean()
        terms = []
        for stage, gap in enumerate(gaps):  # torch 2.8 compiles no zip over a ParameterList
            variance = F.softplus(precise(self.variances[stage])) + LEAST
            terms.append((gap / variance + variance.log()).mean() / 2)
        penalty = self.warmup(torch.stack(terms).sum())
        return {"loss": risk + penalty, "risk": risk, "penalty": penalty}

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down the loss, of the network and of the variances."""
        self.check_batches(batches)
        terms = self(batches)
        ours, theirs = self.optimiser, self.variance_optimiser
        grads = torch.autograd.grad(
            terms["loss"], [*ours.weights, *theirs.weights], allow_unused=True
        )
        finite = terms["loss"].detach().isfinite() & self.all_finite
        ours.step(grads[: len(ours.weights)], finite)
        theirs.step(grads[len(ours.weights) :], finite & ours.all_finite)
        return self.report(**terms)
