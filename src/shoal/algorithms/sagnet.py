"""SagNet: classify by content and not by style (Nam et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..networks import draw_weights, head_sizes
from ..randomness import Draws, stream
from .base import UpdateAlgorithm
from .forward import Batch
from .hparams import Hparams, hparam, power
from .optimiser import Optimiser

EPS = 1e-5


@dataclass(frozen=True)
class SagNetHparams(Hparams):
    """λ of the third stage."""

    penalty_weight: float = hparam(
        0.1, power(10, -2, 1), key="sag_w_adv", help="λ of the features' step against style"
    )


class SagNet(UpdateAlgorithm):
    """Remove the class from the style: the mean and variance of an example's features."""

    paper = "Reducing Domain Gap by Reducing Style Bias (Nam et al.)"
    year = 2021
    Hparams = SagNetHparams
    hparams: SagNetHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        width, classes = head_sizes(self.model.classifier)  # type: ignore[arg-type]
        if width < 2 or classes < 2:
            raise ValueError(
                "SagNet needs 2 features or more, because their variance is style, and a logit for "
                f"each class, got {width} features and {classes} logits"
            )

        def build() -> nn.Linear:
            return nn.Linear(width, classes)

        self.style = draw_weights(build, stream("style classifier", self.seed), like=self.model)
        self.draws = Draws("sagnet", self.seed, device=self.device)
        self.features_optimiser = self._optimiser(self.model.features)
        self.content_optimiser = self._optimiser(self.model.classifier)
        self.style_optimiser = self._optimiser(self.style)

    def _optimiser(self, network: Any) -> Optimiser:
        return Optimiser(network.parameters(), self.hparams.lr, self.hparams.weight_decay)

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Learn the class from content, then from style, then train the features against style."""
        self.check_batches(batches)
        inputs = torch.cat([inputs for inputs, _ in batches])
        labels = torch.cat([labels for _, labels in batches])
        model: Any = self.model

        logits = precise(model.classifier(self._other_style(model.features(inputs))))
        content = individual_losses(logits, labels, None).mean()
        finite = content.detach().isfinite() & self.all_finite
        both = (self.features_optimiser, self.content_optimiser)
        weights = [weight for optimiser in both for weight in optimiser.weights]
        grads = torch.autograd.grad(content, weights, allow_unused=True)
        for optimiser in both:
            optimiser.step(grads[: len(optimiser.weights)], finite)
            grads = grads[len(optimiser.weights) :]
            finite = finite & optimiser.all_finite

        with torch.no_grad():  # only the style classifier learns
            styled = self._other_content(model.features(inputs))
        style = individual_losses(precise(self.style(styled)), labels, None).mean()
        self.style_optimiser.minimise(style, finite)

        logits = precise(self.style(self._other_content(model.features(inputs))))
        against = -self.hparams.penalty_weight * F.log_softmax(logits, 1).mean()
        finite = finite & style.detach().isfinite() & self.style_optimiser.all_finite
        self.features_optimiser.minimise(against, finite)
        return self.report(loss=content, style=style, adversarial=against)

    def _other_style(self, features: Tensor) -> Tensor:
        """Return each example's content in a style between its own and another example's."""
        content, mean, variance = _split(features)
        share = self.draws.uniform(len(features)).to(features.dtype)[:, None]
        other = self.draws.permutation(len(features))
        mean = share * mean + (1 - share) * mean[other]
        variance = share * variance + (1 - share) * variance[other]
        return (content * (variance + EPS).sqrt() + mean).to(features.dtype)

    def _other_content(self, features: Tensor) -> Tensor:
        """Return another example's content, a constant, in each example's own style."""
        content, mean, variance = _split(features)
        other = self.draws.permutation(len(features))
        return (content[other].detach() * (variance + EPS).sqrt() + mean).to(features.dtype)


def _split(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each example's content, and its style: the mean and the variance of its features."""
    variance, mean = torch.var_mean(precise(features), 1, keepdim=True)
    return (features - mean) / (variance + EPS).sqrt(), mean, variance
