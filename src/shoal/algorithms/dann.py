"""DANN: features that hide the domain (Ganin et al., 2016)."""

from typing import Any

from torch import Tensor

from .adversarial import Adversarial


class DANN(Adversarial):
    """Match the features: a discriminator cannot find their domain."""

    paper = "Domain-Adversarial Training of Neural Networks (Ganin et al.)"
    year = 2016

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discriminator_optimiser = self.make_opponent(self.discriminator)

    def condition(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the features."""
        return features

    def weigh(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Return the mean."""
        return losses.mean()
