"""IB-IRM: IRM, with features that vary little within a domain (Ahuja et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..penalties import irm
from ..regularizers import Warmup
from ..statistics import feature_variance, scale_slopes
from .base import Objective
from .forward import Forward
from .hparams import hparam, power, whole_power
from .irm import IRMHparams


@dataclass(frozen=True)
class IBIRMHparams(IRMHparams):
    """λ and warm-up of IRM, then those of the features' variance."""

    bottleneck_weight: float = hparam(
        100.0,
        power(10, -1, 5),
        key="ib_lambda",
        help="λ of the features' variance, from bottleneck_warmup_steps on; 0 before",
    )
    bottleneck_warmup_steps: int = hparam(
        500,
        whole_power(10, 0, 4),
        key="ib_penalty_anneal_iters",
        help="the step from which that λ acts; the optimiser is reset there, too",
    )


class IB_IRM(Objective):
    """Match the optimal classifiers of features of small variance."""

    paper = (
        "Invariance Principle Meets Information Bottleneck for OOD Generalization (Ahuja et al.)"
    )
    year = 2021
    capture = "compiled"
    Hparams = IBIRMHparams
    hparams: IBIRMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step = (h.warmup_steps, h.bottleneck_warmup_steps)
        self.warmup = Warmup(h.penalty_weight, h.warmup_steps, warmup_weight=1.0).to(self.device)
        self.bottleneck = Warmup(
            h.bottleneck_weight, h.bottleneck_warmup_steps, warmup_weight=0.0
        ).to(self.device)

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the risk plus IRM's penalty and the mean of Var_e(z), each weighted."""
        slopes = scale_slopes(forward.logits, forward.labels, forward.sizes)
        penalty = self.warmup(irm(slopes))
        variance = self.bottleneck(feature_variance(forward.features, forward.sizes).mean())
        risk = forward.risk
        loss = risk + penalty + variance
        return {"loss": loss, "risk": risk, "penalty": penalty, "variance": variance}
