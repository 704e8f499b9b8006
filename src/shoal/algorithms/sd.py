"""SD: small logits, so that no feature starves the others of gradient (Pezeshki et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..regularizers import Warmup
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power


@dataclass(frozen=True)
class SDHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(
        0.1, power(10, -5, -1), key="sd_reg", help="λ of the squared logits"
    )


class SD(Penalised):
    """Decouple the features: the mean square of all logits is small."""

    paper = "Gradient Starvation: A Learning Proclivity in Neural Networks (Pezeshki et al.)"
    year = 2021
    capture = "compiled"
    Hparams = SDHparams
    hparams: SDHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup = Warmup(self.hparams.penalty_weight).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the mean of l², over examples and classes."""
        # As DomainBed has it: a mean over the classes and no 1/2, which the range of λ assumes.
        penalty: Tensor = self.warmup(forward.logits.square().mean())
        return penalty
