"""AND-mask: step only where the domains' gradients agree in sign (Parascandolo et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .forward import Batch
from .hparams import Hparams, hparam, uniform
from .per_domain import Agreement, PerDomain, apply_masks


@dataclass(frozen=True)
class ANDMaskHparams(Hparams):
    """The threshold of the mask."""

    tau: float = hparam(
        1.0,
        uniform(0.5, 1),
        "[0, 1]",
        key="tau",
        help="τ, the least |mean sign| of a gradient to pass",
    )


class ANDMask(PerDomain):
    """Mask the gradient coordinates in whose sign the domains disagree."""

    paper = "Learning explanations that are hard to vary (Parascandolo et al.)"
    year = 2021
    capture = "compiled"
    Hparams = ANDMaskHparams
    hparams: ANDMaskHparams

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step with the masked mean gradient; the loss is the mean of the risks."""
        self.check_batches(batches)
        found = Agreement.of(self, batches)
        masks = [agreement.ge_(self.hparams.tau) for agreement in found.agreement]
        gradient = apply_masks(found.mean, masks)
        self.optimiser.step(gradient, found.loss.isfinite() & self.all_finite)
        return self.report(loss=found.loss)
