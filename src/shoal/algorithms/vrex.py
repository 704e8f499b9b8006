"""V-REx: the same risk in every training domain (Krueger et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..regularizers import Match
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, fixed, hparam, power, whole_power


@dataclass(frozen=True)
class VRExHparams(Hparams):
    """λ and its warm-up; a moving average for table:ablationemacmnist."""

    penalty_weight: float = hparam(
        10.0, power(10, -1, 5), key="vrex_lambda", help="λ, from warmup_steps on; 1 before"
    )
    warmup_steps: int = hparam(
        500,
        whole_power(10, 0, 4),
        key="vrex_penalty_anneal_iters",
        help="the step from which λ acts; the optimiser is reset there",
    )
    ema_decay: float = fixed(0.0, "[0, 1)", key="ema", help="γ of the risks' average; 0 for none")


class VREx(Penalised):
    """Match the risks: the spread of R_e."""

    paper = "Out-of-Distribution Generalization via Risk Extrapolation (Krueger et al.)"
    year = 2021
    capture = "compiled"
    Hparams = VRExHparams
    hparams: VRExHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step = h.warmup_steps
        self.match = Match(
            self.num_domains, h.penalty_weight, h.ema_decay, h.warmup_steps, warmup_weight=1.0
        ).to(self.device)
        self.match.allocate(1, next(self.model.parameters()).dtype)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ / E Σ_e (R_e − R̄)²; every domain has a risk, so all are present."""
        return self.match.match(forward.risks, present=True)
