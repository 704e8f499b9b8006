"""CDANN: features that hide the domain, class by class (Li et al., 2018)."""

from typing import Any

from torch import Tensor, nn

from ..networks import draw_weights
from ..randomness import stream
from .adversarial import Adversarial


class CDANN(Adversarial):
    """Match the features of each class: a discriminator that knows the class finds no domain."""

    paper = "Deep Domain Generalization via Conditional Invariant Adversarial Networks (Li et al.)"
    year = 2018

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        def build() -> nn.Embedding:
            return nn.Embedding(max(self.classes, 2), self.width)  # one logit has two classes

        self.embedding = draw_weights(build, stream("class embedding", self.seed), like=self.model)
        self.discriminator_optimiser = self.make_opponent(self.discriminator, self.embedding)

    def condition(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the features plus the embedding of their class."""
        if labels.is_floating_point() and labels.numel() != len(features):
            raise TypeError("CDANN needs the class of each example, got soft targets")
        known: Tensor = features + self.embedding(labels.reshape(-1).long())
        return known

    def weigh(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Return the sum, with a weight of 1 / (largest label + 1) for every class present."""
        labels = labels.reshape(-1)
        counts = (labels[:, None] == labels).sum(1)
        return (losses / (counts * (labels.amax() + 1))).sum()
