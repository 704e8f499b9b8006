"""EQRM: the smallest risk that a likely domain does not exceed (Eastwood et al., 2022)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..penalties import quantile
from ..scalars import Scalars
from .base import Objective
from .forward import Forward
from .hparams import Hparams, hparam, power, uniform, whole_power


@dataclass(frozen=True)
class EQRMHparams(Hparams):
    """The quantile, and when and how fast it is minimised."""

    quantile: float = hparam(
        0.75,
        uniform(0.5, 0.99),
        "(0, 1)",
        key="eqrm_quantile",
        help="α, the probability that a domain's risk is below the one to minimise",
    )
    # DomainBed does not round the draws, so that its counter never equals one.
    warmup_steps: int = hparam(
        2500,
        whole_power(10, 2.5, 3.5),
        key="eqrm_burnin_iters",
        help="the step from which the quantile is minimised; the optimiser is reset there",
    )
    lr_after_warmup: float = hparam(
        1e-6, power(10, -7, -5), key="eqrm_lr", help="learning rate from warmup_steps on"
    )


class EQRM(Objective):
    """Minimise a quantile of the domains' risks, after a warm-up on their mean."""

    paper = "Probable Domain Generalization via Quantile Risk Minimization (Eastwood et al.)"
    year = 2022
    capture = "compiled"
    Hparams = EQRMHparams
    hparams: EQRMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step, self.reset_lr = h.warmup_steps, h.lr_after_warmup
        self.scalars = Scalars(level=h.quantile, start=h.warmup_steps).to(self.device)

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the α-quantile of the risks' density, and before its start their mean."""
        level, start = self.scalars.values.unbind()
        mean, q = forward.risks.mean(), quantile(forward.risks, level)
        return {"loss": torch.where(self.steps >= start, q, mean), "risk": mean, "quantile": q}
