"""SAND-mask: a smooth mask by the domains' signs and variances (Shahtalebi et al., 2021).

At DomainBed's default τ = 1 no mean sign exceeds τ: the mask is zero and nothing trains. Random
draws have τ in (0, 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..internals import foreach
from .forward import Batch
from .hparams import Hparams, hparam, power, uniform
from .per_domain import Agreement, PerDomain, apply_masks

TINY = 1e-17


@dataclass(frozen=True)
class SANDMaskHparams(Hparams):
    """Threshold and steepness of the mask."""

    tau: float = hparam(
        1.0,
        uniform(0, 1),
        "[0, 1]",
        key="tau",
        help="τ, the |mean sign| above which a gradient passes",
    )
    k: float = hparam(
        10.0, power(10, -3, 5), key="k", help="how steeply the mask rises above τ, over Var_e(g_e)"
    )


class SANDMask(PerDomain):
    """Mask the gradient coordinates softly, by how far the domains agree in sign and size."""

    paper = "SAND-mask: An Enhanced Gradient Masking Strategy for the Discovery of Invariances "
    paper += "in Domain Generalization (Shahtalebi et al.)"
    year = 2021
    capture = "compiled"
    Hparams = SANDMaskHparams
    hparams: SANDMaskHparams

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step with the masked mean gradient; the loss is the mean of the risks."""
        self.check_batches(batches)
        found = Agreement.of(self, batches, squares=True)
        masks = self._masks(found.agreement, found.squares)
        gradient = apply_masks(found.mean, masks)
        self.optimiser.step(gradient, found.loss.isfinite() & self.all_finite)
        return self.report(loss=found.loss)

    def _masks(self, agreement: list[Tensor], squares: list[Tensor]) -> list[Tensor]:
        """Return max(0, tanh(k / Var_e(g_e) · (agreement − τ))), in place of the squares."""
        if self.num_domains > 1:
            foreach("div_", squares, self.num_domains - 1)
        else:  # one domain has no variance
            foreach("add_", squares, TINY)
        foreach("reciprocal_", squares)
        foreach("mul_", squares, self.hparams.k)
        foreach("sub_", agreement, self.hparams.tau)
        foreach("mul_", squares, agreement)
        foreach("tanh_", squares)
        foreach("clamp_min_", squares, 0)
        # ∞ · 0: the domains' gradients are the same, and agree to τ exactly.
        return [mask.nan_to_num_(nan=TINY) for mask in squares]
