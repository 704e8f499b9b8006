"""MTL: a classifier that sees its domain's mean features (Blanchard et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..networks import Preprocessing, draw_weights, head_sizes
from ..randomness import stream
from .base import Algorithm
from .forward import Batch, sizes_of
from .hparams import Hparams, choice, hparam
from .optimiser import Optimiser


@dataclass(frozen=True)
class MTLHparams(Hparams):
    """Weight of a batch in its domain's embedding."""

    batch_weight: float = hparam(
        0.99,
        choice(0.5, 0.9, 0.99, 1.0),
        "[0, 1]",
        key="mtl_ema",
        help="weight of the batch's mean in its domain's embedding; 1 for no moving average",
    )


class WithMean(nn.Module):
    """A classifier of 2p inputs on features and an embedding of their domain.

    ``preprocessing`` is that of the network which the features are from.
    """

    def __init__(
        self, features: nn.Module, classifier: nn.Linear, preprocessing: Preprocessing | None
    ) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.preprocessing = preprocessing

    def classify(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Return the logits of features joined with embeddings, both ``[n, p]``."""
        logits: Tensor = self.classifier(torch.cat([features, embeddings], 1))
        return logits

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch of one domain, whose embedding is the batch's mean."""
        features = self.features(inputs)
        return self.classify(features, features.mean(0).expand_as(features))


class MTL(Algorithm):
    """Show the classifier the domain: its mean features next to each example's.

    The features of ``model`` are trained in place. Its classifier is neither trained nor used:
    ``self.model`` has another one, twice as wide. Predict with the method, not with ``model``.
    What ``model`` does in ``train()``, such as freezing batch norm, must be done by its features.
    """

    paper = "Domain Generalization by Marginal Transfer Learning (Blanchard et al.)"
    year = 2021
    predicts_batchwise = True
    Hparams = MTLHparams
    hparams: MTLHparams
    model: WithMean
    embeddings: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        width, classes = head_sizes(self.model.classifier)

        def build() -> nn.Linear:
            return nn.Linear(2 * width, classes)

        wide = draw_weights(build, stream("wide classifier", self.seed), like=self.model)
        preprocessing = getattr(self.model, "preprocessing", None)
        self.model = WithMean(self.model.features, wide, preprocessing)
        self.optimiser = Optimiser(
            self.model.parameters(), self.hparams.lr, self.hparams.weight_decay
        )
        self.register_buffer("embeddings", wide.weight.new_zeros(self.num_domains, width))

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down the sum of the domains' risks."""
        self.check_batches(batches)
        sizes = sizes_of(batches)
        weight = self.hparams.batch_weight
        features = self.model.features(torch.cat([inputs for inputs, _ in batches]))
        means = torch.stack([part.mean(0) for part in features.split(sizes)])
        # DomainBed uses noise as the embedding; the paper uses the mean.
        embeddings = weight * means + (1 - weight) * self.embeddings
        rows = [embedding.expand(n, -1) for embedding, n in zip(embeddings, sizes, strict=True)]
        logits = precise(self.model.classify(features, torch.cat(rows)))
        losses = individual_losses(logits, torch.cat([labels for _, labels in batches]), None)
        loss = torch.stack([part.mean() for part in losses.split(sizes)]).sum()
        self.optimiser.minimise(loss, self.all_finite)
        followed = torch.where(loss.isfinite() & self.all_finite, embeddings, self.embeddings)
        self.embeddings.copy_(followed.detach())
        return self.report(loss=loss)

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits of ``inputs``, taken as a batch of one domain."""
        logits: Tensor = self.model(inputs)
        return logits
