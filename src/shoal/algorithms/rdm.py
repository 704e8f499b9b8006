"""RDM: losses distributed alike in the worst domain and in all (Nguyen et al., 2024)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gradients.domains import SortedDomains
from ..penalties import mmd_of_losses
from ..regularizers import Warmup
from .base import Objective
from .forward import Forward
from .hparams import Hparams, constant, hparam, uniform, whole, whole_power

# Data sets with searches of their own: DomainBed's, by the method's authors.
STRONG, NONE, SMALLER = (5.0, uniform(1, 10)), (0.0, constant(0.0)), (40, whole(30, 60))


@dataclass(frozen=True)
class RDMHparams(Hparams):
    """Weights of both terms, their warm-up, the rate after it; batches of many large images."""

    batch_size: int = hparam(
        64,
        whole_power(2, 3, 9),
        "[1, ∞)",
        key="batch_size",
        help="examples of each training domain in a step",
        large=(88, whole(70, 100)),
        domainnet=SMALLER,
        datasets={"terra-incognita": SMALLER},
    )
    penalty_weight: float = hparam(
        5.0,
        uniform(0.1, 10),
        key="rdm_lambda",
        help="λ of the distance between losses, from warmup_steps on; 0 before",
        domainnet=(0.5, uniform(0.1, 1)),
        datasets={"pacs": STRONG, "terra-incognita": STRONG},
    )
    variance_weight: float = hparam(
        0.004,
        uniform(0.001, 0.007),
        key="variance_weight",
        help="λ of the losses' variances, from warmup_steps on; 0 before",
        domainnet=NONE,
        datasets={"terra-incognita": NONE, "office-home": NONE},
    )
    warmup_steps: int = hparam(
        1500,
        whole(800, 2700),
        key="rdm_penalty_anneal_iters",
        help="the step from which both act; the optimiser is reset there",
        domainnet=(2400, whole(1500, 3000)),
    )
    lr_after_warmup: float = hparam(
        1.5e-5, uniform(8e-6, 2e-5), key="rdm_lr", help="learning rate from warmup_steps on"
    )


class RDM(Objective):
    """Match the distribution of losses in the worst domain with that of all domains."""

    paper = "Domain Generalisation via Risk Distribution Matching (Nguyen et al.)"
    year = 2024
    capture = "compiled"
    Hparams = RDMHparams
    hparams: RDMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.reset_step, self.reset_lr = h.warmup_steps, h.lr_after_warmup
        self.distance, self.variance = (
            Warmup(weight, h.warmup_steps, warmup_weight=0.0).to(self.device)
            for weight in (h.penalty_weight, h.variance_weight)
        )

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the risk, plus MMD and variances of the losses, each weighted."""
        losses, worst = forward.losses, _in_worst(forward)
        distance = self.distance(mmd_of_losses(losses, worst))
        spreads = _variance(losses, torch.ones_like(worst)) + _variance(losses, worst)
        variance, risk = self.variance(spreads), forward.risk
        loss = risk + distance + variance
        return {"loss": loss, "risk": risk, "penalty": distance, "variance": variance}


def _in_worst(forward: Forward) -> Tensor:
    """Return which examples are in the domain with the largest risk, bool ``[n]``."""
    risks = forward.risks.detach()
    worst = torch.arange(len(risks), device=risks.device) == risks.argmax()
    return SortedDomains(forward.sizes, risks.device).expand(worst)


def _variance(losses: Tensor, part: Tensor) -> Tensor:
    """Return the variance of some losses with 1/(n − 1); zero for one."""
    members = part.to(losses.dtype)
    count = members.sum()
    mean = (members * losses).sum() / count
    return (members * (losses - mean).square()).sum() / (count - 1).clamp(min=1)
