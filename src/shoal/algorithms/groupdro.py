"""GroupDRO: minimise the largest risk of a training domain (Sagawa et al., 2020)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .base import Objective
from .forward import Forward
from .hparams import Hparams, hparam, power


@dataclass(frozen=True)
class GroupDROHparams(Hparams):
    """Step size of the domains' weights."""

    eta: float = hparam(
        0.01, power(10, -3, -1), key="groupdro_eta", help="η, the step size of the domains' weights"
    )


class GroupDRO(Objective):
    """Minimise the risks weighted by q_e, which grows where the risk is large."""

    paper = "Distributionally Robust Neural Networks for Group Shifts (Sagawa et al.)"
    year = 2020
    capture = "graph"
    Hparams = GroupDROHparams
    hparams: GroupDROHparams

    q: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # In float32 a weight would leave the formula after a thousand steps at η = 0.1 if its
        # domain's risk is smaller by 1: it stops at 7e-45. Float64 outlasts a run.
        equal = torch.full(
            (self.num_domains,), 1 / self.num_domains, dtype=torch.float64, device=self.device
        )
        self.register_buffer("q", equal)

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return Σ_e q_e R_e after q_e ← q_e exp(η R_e) / Σ; q is held constant."""
        risks = forward.risks
        with torch.no_grad():
            # Softmax subtracts the largest exponent, which its division undoes: no overflow.
            q = torch.softmax(self.q.log() + self.hparams.eta * risks.double(), 0)
            # A NaN would stay in q for ever; the optimiser skips such a step, too.
            q = torch.where(q.isfinite().all(), q, self.q)
            if self.training:
                self.q.copy_(q)
        return {"loss": (q.to(risks.dtype) * risks).sum(), "worst": risks.amax()}
