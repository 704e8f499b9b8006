"""IB-ERM: features that vary little within a domain (Ahuja et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..regularizers import Warmup
from ..statistics import feature_variance
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power, whole_power


@dataclass(frozen=True)
class IBERMHparams(Hparams):
    """λ and its warm-up."""

    penalty_weight: float = hparam(
        100.0, power(10, -1, 5), key="ib_lambda", help="λ, from warmup_steps on; 0 before"
    )
    warmup_steps: int = hparam(
        500,
        whole_power(10, 0, 4),
        key="ib_penalty_anneal_iters",
        help="the step from which λ acts; the optimiser is reset there",
    )


class IB_ERM(Penalised):
    """Minimise the risk with features of small variance: an information bottleneck."""

    paper = (
        "Invariance Principle Meets Information Bottleneck for OOD Generalization (Ahuja et al.)"
    )
    year = 2021
    capture = "compiled"
    Hparams = IBERMHparams
    hparams: IBERMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step = h.warmup_steps
        self.warmup = Warmup(h.penalty_weight, h.warmup_steps, warmup_weight=0.0).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the mean of Var_e(z), over domains and features."""
        penalty: Tensor = self.warmup(feature_variance(forward.features, forward.sizes).mean())
        return penalty
