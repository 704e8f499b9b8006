"""SAGM: a flat minimum by gradients that agree with those nearby (Wang et al., 2023)."""

from dataclasses import dataclass

from torch import Tensor

from .hparams import choice, hparam
from .perturbed import TINY, Perturbed, PerturbedHparams

# The two values of the published runs. The authors' own search, 0.01 to 0.1, is not what they used.
ALPHAS = choice(5e-4, 1e-3)


@dataclass(frozen=True)
class SAGMHparams(PerturbedHparams):
    """ρ, and α that pulls the second point back."""

    alpha: float = hparam(
        1e-3,
        ALPHAS,
        key="alpha",
        help="α, by which the second point is pulled back along the gradient",
        domainnet=(5e-4, ALPHAS),
        datasets={"office-home": (5e-4, ALPHAS)},
    )


class SAGM(Perturbed):
    """Minimise the risk at θ and at θ + (ρ / ‖g‖ − α) g, whose gradients should agree."""

    paper = "Sharpness-Aware Gradient Matching for Domain Generalization (Wang et al.)"
    year = 2023
    Hparams = SAGMHparams
    hparams: SAGMHparams
    share = 0.5

    def reach(self, norm: Tensor) -> Tensor:
        """Return ρ / ‖g‖ − α, the norm over all weights together."""
        return self.hparams.rho / (norm + TINY) - self.hparams.alpha
