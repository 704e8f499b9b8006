"""IRM: the same optimal classifier in every training domain (Arjovsky et al., 2019)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..penalties import irm
from ..regularizers import Warmup
from ..statistics import scale_slopes
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power, whole_power


@dataclass(frozen=True)
class IRMHparams(Hparams):
    """λ and its warm-up."""

    penalty_weight: float = hparam(
        100.0, power(10, -1, 5), key="irm_lambda", help="λ, from warmup_steps on; 1 before"
    )
    warmup_steps: int = hparam(
        500,
        whole_power(10, 0, 4),
        key="irm_penalty_anneal_iters",
        help="the step from which λ acts; the optimiser is reset there",
    )


class IRM(Penalised):
    """Match the optimal classifiers: the slope of R_e in a scale of the logits is zero."""

    paper = "Invariant Risk Minimization (Arjovsky et al.)"
    year = 2019
    capture = "compiled"
    Hparams = IRMHparams
    hparams: IRMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step = h.warmup_steps
        self.warmup = Warmup(h.penalty_weight, h.warmup_steps, warmup_weight=1.0).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ / E Σ_e of the slope on even examples times the slope on odd ones."""
        slopes = scale_slopes(forward.logits, forward.labels, forward.sizes)
        penalty: Tensor = self.warmup(irm(slopes))
        return penalty
