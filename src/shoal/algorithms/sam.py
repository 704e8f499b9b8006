"""SAM: the gradient at the worst weights nearby, for a flat minimum (Foret et al., 2021)."""

from torch import Tensor

from .perturbed import TINY, Perturbed


class SAM(Perturbed):
    """Minimise the risk at θ + ρ g / ‖g‖, the worst point within ρ to first order."""

    paper = "Sharpness-Aware Minimization for Efficiently Improving Generalization (Foret et al.)"
    year = 2021
    share = 0.0

    def reach(self, norm: Tensor) -> Tensor:
        """Return ρ / ‖g‖, the norm over all weights together."""
        return self.hparams.rho / (norm + TINY)
