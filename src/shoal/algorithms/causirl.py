"""CausIRL: the same features in two groups, each a random mix of all domains (Chevalley et al.).

The mixes are new domains: whatever a mix of interventions cannot change is taken for the cause. A
step compares two groups, however many domains there are.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import without_value_checks
from ..randomness import Draws
from ..regularizers import Warmup
from .base import UpdateAlgorithm
from .forward import Batch, Forward
from .hparams import Hparams, hparam, power
from .optimiser import Optimiser

PAPER = "Invariant Causal Mechanisms through Distribution Matching (Chevalley et al.)"


@dataclass(frozen=True)
class CausIRLHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(
        1.0, power(10, -1, 1), key="mmd_gamma", help="λ of the groups' distance"
    )


class CausIRL(UpdateAlgorithm):
    """Risk plus λ times the distance of two groups; a method defines the distance.

    Calling it returns the terms of the loss; ``compile()`` compiles just that.
    """

    Hparams = CausIRLHparams
    hparams: CausIRLHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.warmup = Warmup(h.penalty_weight).to(self.device)
        self.draws = Draws("causirl", self.seed, device=self.device)

    @abstractmethod
    def distance(self, features: Tensor, groups: Tensor) -> Tensor:
        """Return the distance of groups 0 and 1, which ``groups`` gives for each example."""

    def forward(self, batches: Sequence[Batch], cuts: Tensor) -> dict[str, Tensor]:
        """Return risk, penalty and their sum.

        Args:
            cuts: where each domain is split, as a share of its examples, ``[E]``. They are drawn
                outside: compiled code could draw once more in its backward, after the count moved.
        """
        found = Forward.of(self.model, batches)
        groups = split(found.sizes, cuts)
        smaller = torch.minimum(groups.sum(), (1 - groups).sum())
        # Fewer than two examples have no covariance.
        distance = torch.where(smaller >= 2, self.distance(found.features, groups), 0.0)
        risk, penalty = found.risk, self.warmup(distance)
        return {"loss": risk + penalty, "risk": risk, "penalty": penalty}

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down the loss, with a new split of every domain."""
        self.check_batches(batches)
        with without_value_checks():  # a loss that is not finite shows in the terms
            terms = self(batches, self.draws.uniform(self.num_domains))
        self.optimiser.minimise(terms["loss"], self.all_finite)
        return self.report(**terms)


def split(sizes: Sequence[int], cuts: Tensor) -> Tensor:
    """Return the group of each example: the first ⌊cut · n_e⌋ of a domain are in 0, others in 1.

    The examples of a batch are in random order.
    """
    parts = [
        torch.arange(n, device=cuts.device) >= (cut * n).floor()
        for n, cut in zip(sizes, cuts.unbind(), strict=True)
    ]
    return torch.cat(parts).long()
