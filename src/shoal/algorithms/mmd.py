"""MMD: the same distribution of the features in every training domain (Li et al., 2018)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..penalties import mmd
from ..regularizers import Warmup
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power


@dataclass(frozen=True)
class MMDHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(
        1.0, power(10, -1, 1), key="mmd_gamma", help="λ of the discrepancy"
    )


class MMD(Penalised):
    """Match the features' distributions under Gaussian kernels, pair by pair of domains."""

    paper = "Domain Generalization with Adversarial Feature Learning (Li et al.)"
    year = 2018
    capture = "compiled"
    Hparams = MMDHparams
    hparams: MMDHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup = Warmup(self.hparams.penalty_weight).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the pairs' mean of the squared maximum mean discrepancy."""
        # Without the paper's autoencoder and its adversary, as in DomainBed.
        penalty: Tensor = self.warmup(mmd(forward.features, forward.sizes))
        return penalty
