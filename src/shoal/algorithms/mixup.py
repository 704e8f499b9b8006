"""Mixup: train between the domains, on mixed inputs and mixed losses (Yan et al., 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..gradients.examples import individual_losses
from ..randomness import Draws
from .base import UpdateAlgorithm
from .forward import Batch, Forward, Stacked, shares
from .hparams import Hparams, hparam, power
from .optimiser import Optimiser


@dataclass(frozen=True)
class MixupHparams(Hparams):
    """The distribution of λ, from DomainBed today; the published runs had α = 0.1 in all draws."""

    alpha: float = hparam(
        0.2,
        power(10, -1, 1),
        "(0, ∞)",
        key="mixup_alpha",
        help="α of λ ~ Beta(α, α), the share of the first example",
    )


class Mixup(UpdateAlgorithm):
    """Mix the examples of pairs of domains, and their losses in the same way."""

    paper = "Improve Unsupervised Domain Adaptation with Mixup Training (Yan et al.)"
    year = 2020
    capture = "compiled"
    Hparams = MixupHparams
    hparams: MixupHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.draws = Draws("mixup", self.seed, device=self.device)

    def forward(self, batches: Sequence[Batch], order: Tensor, part: Tensor) -> dict[str, Tensor]:
        """Return ``loss`` of the domains in this order, each by a share ``part`` with the next."""
        first = Stacked.of(batches).pick(order)
        inputs, labels, sizes = (
            values.roll(-1, 0) for values in (first.inputs, first.labels, first.sizes)
        )
        weight = part.to(inputs.dtype).view(-1, *[1] * (inputs.ndim - 1))
        mixed = inputs.lerp(first.inputs, weight).flatten(0, 1)
        found = Forward.of(self.model, [(mixed, first.labels.flatten(0, 1))])
        their_losses = individual_losses(found.logits, labels.flatten(0, 1), None)
        share = shares(first.sizes.minimum(sizes), inputs.shape[1]) / self.num_domains
        weights, their_weights = (
            (side[:, None] * share).flatten().to(found.losses) for side in (part, 1 - part)
        )
        # Not a matrix product, which autocast would compute in half precision.
        both = found.losses * weights + their_losses * their_weights
        return {"loss": both.sum()}

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down λ CE(y_i) + (1 − λ) CE(y_j) of λ x_i + (1 − λ) x_j.

        The domains form a ring in random order. Each is mixed with the next, up to the shorter
        batch of the two.
        """
        self.check_batches(batches)
        order = self.draws.permutation(self.num_domains)
        terms = self(batches, order, self.draws.beta(self.hparams.alpha, self.num_domains))
        self.optimiser.minimise(terms["loss"], self.all_finite)
        return self.report(**terms)
