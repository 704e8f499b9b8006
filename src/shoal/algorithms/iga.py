"""IGA: the same gradient mean in every training domain (Koyama and Yamaguchi, 2020)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..regularizers import Match
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, fixed, hparam, power


@dataclass(frozen=True)
class IGAHparams(Hparams):
    """λ, and the options of the paper's table:igacmnist."""

    penalty_weight: float = hparam(1e3, power(10, 1, 5), key="penalty", help="λ of the means")
    parameters: str = fixed(
        "all", ("all", "classifier"), key="parameters", help="weights: all, or classifier"
    )
    normalise: bool = fixed(
        False, key="normalise", help="mean over domains and weights, as in Fishr; not the sum"
    )
    warmup_steps: int = fixed(0, key="penalty_anneal_iters", help="step at which λ acts; 0 before")
    ema_decay: float = fixed(
        0.0, "[0, 1)", key="ema", help="γ of the gradients' average; 0 for none"
    )


class IGA(Penalised):
    """Match the gradient means: the squared distances of g_e from their mean."""

    paper = "When is invariance useful in an OOD generalization problem? (Koyama and Yamaguchi)"
    year = 2020
    Hparams = IGAHparams
    hparams: IGAHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step = h.warmup_steps
        self.separate_passes = h.parameters == "all" and h.penalty_weight > 0
        self.match = Match(
            num_domains=self.num_domains,
            penalty_weight=h.penalty_weight * (1 if h.normalise else self.num_domains),
            ema_decay=h.ema_decay,
            warmup_steps=h.warmup_steps,
            normalise=h.normalise,
        ).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ Σ_e ‖g_e − ḡ‖²."""
        if self.hparams.parameters == "classifier" and isinstance(self.model.classifier, nn.Linear):
            rows = forward.mean(self.model.classifier.bias is not None)
        else:
            rows = self._gradient_means(forward)
        return self.match.match(rows, present=True)

    def _gradient_means(self, forward: Forward) -> Tensor:
        """Return g_e ``[E, P]``, by autograd."""
        prefix = "" if self.hparams.parameters == "all" else "classifier."
        named = self.model.named_parameters()
        weights = [p for name, p in named if name.startswith(prefix) and p.requires_grad]
        rows = []
        for losses in forward.domain_losses:
            grads = torch.autograd.grad(
                losses.mean(), weights, create_graph=True, materialize_grads=True
            )
            rows.append(torch.cat([grad.flatten() for grad in grads]))
        return torch.stack(rows)
