"""Mixup: train between the domains, on mixed inputs and mixed losses (Yan et al., 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..randomness import Draws
from ..statistics import individual_losses
from .base import Classifying
from .forward import Batch, Forward
from .gathering import Stacked, shares
from .hparams import Hparams, hparam, power
from .optimiser import Optimiser


@dataclass(frozen=True)
class MixupHparams(Hparams):
    """The distribution of λ, DomainBed's of today; the published runs had α = 0.1 in all draws."""

    alpha: float = hparam(
        0.2, power(10, -1, 1), key="mixup_alpha", help="α of λ ~ Beta(α, α), the part of the first"
    )


class Mixup(Classifying):
    """Mix the examples of pairs of domains, and their losses alike."""

    paper = "Improve Unsupervised Domain Adaptation with Mixup Training (Yan et al.)"
    year = 2020
    capture = "compiled"
    Hparams = MixupHparams
    hparams: MixupHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        if not h.alpha > 0:
            raise ValueError(f"alpha must be above 0, got {h.alpha}")
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.draws = Draws("mixup", self.seed, device=self.steps.device)

    def forward(self, inputs: Tensor, sides: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return ``loss``, the weighted sum of losses with the (labels, weights) of both sides."""
        (labels, weights), (others, their_weights) = sides
        found = Forward.of(self.model, [(inputs, labels)])
        their_losses = individual_losses(found.logits, others, None)
        # Not a product, which autocast would make in half precision.
        both = found.losses * weights.to(found.losses) + their_losses * their_weights.to(
            their_losses
        )
        return {"loss": both.sum()}

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down λ CE(y_i) + (1 − λ) CE(y_j) of λ x_i + (1 − λ) x_j.

        The domains stand in a ring, in random order, and each is mixed with the next, up to the
        shorter batch of the two.
        """
        self.check_batches(batches)
        first = Stacked.of(batches).pick(self.draws.permutation(self.num_domains))
        inputs, labels, sizes = (
            values.roll(-1, 0) for values in (first.inputs, first.labels, first.sizes)
        )
        part = self.draws.beta(self.hparams.alpha, self.num_domains)
        weight = part.to(inputs.dtype).view(-1, *[1] * (inputs.ndim - 1))
        mixed = inputs.lerp(first.inputs, weight).flatten(0, 1)
        share = shares(first.sizes.minimum(sizes), inputs.shape[1]) / self.num_domains
        part = part[:, None]
        sides = (
            (first.labels.flatten(0, 1), (part * share).flatten()),
            (labels.flatten(0, 1), ((1 - part) * share).flatten()),
        )
        terms = self(mixed, sides)
        self.optimiser.minimise(terms["loss"], self.sound)
        return self.report(**terms)
