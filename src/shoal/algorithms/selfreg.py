"""SelfReg: each example predicts others of its class (Kim et al., 2021)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_vectors
from ..gradients.precision import precise
from ..networks import draw_weights, head_sizes
from ..randomness import Draws, stream
from .base import Objective
from .forward import Forward
from .optimiser import Optimiser

# The weight of the features beside the logits, and the α of Beta(α, α), as in DomainBed.
FEATURES, ALPHA = 0.3, 0.5
# Features of this number are projected through as many hidden units, others through twice theirs.
WIDEST = 2048


def projection(width: int) -> nn.Sequential:
    """Return an MLP of three layers, each with batch norm, from ``width`` features to as many."""
    hidden = width if width == WIDEST else 2 * width
    layers: list[nn.Module] = []
    for inner, outer in ((width, hidden), (hidden, hidden), (hidden, width)):
        # Batch norm takes any bias away. It only ever sees batches of training.
        norm = nn.BatchNorm1d(outer, track_running_stats=False)
        layers += [nn.Linear(inner, outer, bias=False), norm, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SelfReg(Objective):
    """Match the examples of a class: logits, and features with the projections of others."""

    paper = "SelfReg: Self-supervised Contrastive Regularization (Kim et al.)"
    year = 2021
    capture = "compiled"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        width, _ = head_sizes(self.model.classifier)  # type: ignore[arg-type]
        generator = stream("projection", self.seed)
        self.projection = draw_weights(lambda: projection(width), generator, like=self.model)
        self.draws = Draws("selfreg", self.seed, device=self.device)
        # DomainBed makes the projection after its optimiser, so that it stays random.
        weights = [*self.model.parameters(), *self.projection.parameters()]
        self.optimiser = Optimiser(weights, self.hparams.lr, self.hparams.weight_decay)

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return R + min(R, 1) · [λ D(a) + (1 − λ) D(c)], the factor min(R, 1) held constant.

        a and b are random partners of each example in its class, and c is the mixture λ a + (1 − λ)
        b with λ ~ Beta(½, ½). D is the mean square of the differences of the logits, plus 0.3 times
        that of the features from the partner's projection.
        """
        labels, n = forward.labels, len(forward.labels)
        if labels.is_floating_point():
            raise TypeError("SelfReg needs the class of each example, got soft targets")
        if n < 2:
            raise ValueError(
                "SelfReg needs two examples or more in an update, because its projection has "
                f"batch norm, got {n}; raise batch_size"
            )
        check_vectors(forward.features)
        logits, features = forward.logits, precise(forward.features)
        projected = precise(self.projection(forward.features))
        share = self.draws.beta(ALPHA, 1).to(features.dtype)
        one, other = (self._partners(labels) for _ in range(2))
        apart = (
            F.mse_loss(logits, logits[one]) + FEATURES * F.mse_loss(features, projected[one]),
            F.mse_loss(logits, share * logits[one] + (1 - share) * logits[other])
            + FEATURES
            * F.mse_loss(features, share * projected[one] + (1 - share) * projected[other]),
        )
        risk = forward.risk
        both = (share * apart[0] + (1 - share) * apart[1]).squeeze()
        penalty = risk.detach().clamp(max=1) * both
        return {"loss": risk + penalty, "risk": risk, "penalty": penalty}

    def _partners(self, labels: Tensor) -> Tensor:
        """Return a random permutation ``[n]`` that leaves every label where it is."""
        shuffled = self.draws.permutation(len(labels))
        # Examples by label, once in random order and once in their own.
        shuffled = shuffled[labels[shuffled].argsort(stable=True)]
        order = labels.argsort(stable=True)
        return order.scatter(0, order, shuffled)
