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

from ..randomness import Draws
from ..regularizers import Warmup
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, hparam, power

PAPER = "Invariant Causal Mechanisms through Distribution Matching (Chevalley et al.)"


@dataclass(frozen=True)
class CausIRLHparams(Hparams):
    """λ; there is no warm-up."""

    penalty_weight: float = hparam(
        1.0, power(10, -1, 1), key="mmd_gamma", help="λ of the groups' distance"
    )


class CausIRL(Penalised):
    """λ times the distance of two groups; a method defines the distance."""

    Hparams = CausIRLHparams
    hparams: CausIRLHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.warmup = Warmup(self.hparams.penalty_weight).to(self.device)
        self.draws = Draws("causirl", self.seed, device=self.device)

    @abstractmethod
    def distance(self, features: Tensor, groups: Tensor) -> Tensor:
        """Return the distance of groups 0 and 1, which ``groups`` gives for each example."""

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the distance; zero if a group has fewer than two examples."""
        groups = self._split(forward.sizes)
        smaller = torch.minimum(groups.sum(), (1 - groups).sum())
        distance = torch.where(smaller >= 2, self.distance(forward.features, groups), 0.0)
        penalty: Tensor = self.warmup(distance)
        return penalty

    def _split(self, sizes: Sequence[int]) -> Tensor:
        """Return the group of each example: the first s_e of a domain are in 0, the rest in 1.

        s_e is uniform in 0 … n_e − 1. The examples of a batch are in random order.
        """
        cuts = self.draws.uniform(len(sizes)).unbind()
        parts = [
            torch.arange(n, device=self.device) >= (cut * n).floor()
            for cut, n in zip(cuts, sizes, strict=True)
        ]
        return torch.cat(parts).long()
