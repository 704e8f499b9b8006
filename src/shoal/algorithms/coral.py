"""CORAL: the same mean and covariance of the features in every domain (Sun and Saenko, 2016)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..penalties import pairwise
from ..regularizers import Warmup
from ..statistics import feature_moments
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power


@dataclass(frozen=True)
class CORALHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(1.0, power(10, -1, 1), key="mmd_gamma", help="λ of the moments")


class CORAL(Penalised):
    """Match the features' means and covariances, pair by pair of domains."""

    paper = "Deep CORAL: Correlation Alignment for Deep Domain Adaptation (Sun and Saenko)"
    year = 2016
    capture = "compiled"
    Hparams = CORALHparams
    hparams: CORALHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup = Warmup(self.hparams.penalty_weight).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the pairs' mean of the mean squares of μ_i − μ_j and Cov_i − Cov_j."""
        # As DomainBed has it: with a term for the means, and without the paper's 1/4.
        penalty: Tensor = self.warmup(pairwise(feature_moments(forward.features, forward.sizes)))
        return penalty
