"""RSC: mute the features that the prediction leans on most (Huang et al., 2020)."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..statistics import individual_losses, precise
from .base import Objective
from .forward import Forward
from .hparams import Hparams, hparam, uniform


@dataclass(frozen=True)
class RSCHparams(Hparams):
    """How much is muted."""

    feature_drop: float = hparam(
        1 / 3, uniform(0, 0.5), key="rsc_f_drop_factor", help="part of the features to mute"
    )
    batch_drop: float = hparam(
        1 / 3, uniform(0, 0.5), key="rsc_b_drop_factor", help="part of the examples to mute them in"
    )


class RSC(Objective):
    """Mute the most predictive features of the examples that lose most by it."""

    paper = "Self-Challenging Improves Cross-Domain Generalization (Huang et al.)"
    year = 2020
    capture = "compiled"
    Hparams = RSCHparams
    hparams: RSCHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("feature_drop", "batch_drop"):
            if not 0 <= getattr(self.hparams, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self.hparams, name)}")
        classifier = self.model.classifier
        if not isinstance(classifier, nn.Linear):
            raise TypeError(
                f"RSC needs a linear classifier, a torch.nn.Linear, got {type(classifier).__name__}"
            )
        if classifier.out_features < 2:
            raise ValueError("RSC needs a logit for each class, 2 or more, got a single one")

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the cross-entropy of the features that are left."""
        kept = forward.features * self._mask(forward)
        return {"loss": self._losses(kept, forward.labels).mean()}

    def _losses(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = precise(self.model.classifier(features))  # type: ignore[operator]
        return individual_losses(logits, labels, None)

    @torch.no_grad()
    def _mask(self, forward: Forward) -> Tensor:
        """Return which features are left in which example, bool ``[n, p]``."""
        h, classifier = self.hparams, cast(nn.Linear, self.model.classifier)
        if forward.labels.is_floating_point():
            raise TypeError("RSC needs the class of each example, got soft targets")
        # ∂ logit_y / ∂z is row y of the classifier, the same for all examples of a class.
        rows = classifier.weight
        left = (rows < _quantile(rows, 1 - h.feature_drop)).index_select(0, forward.labels.long())
        muted = self._losses(forward.features * left, forward.labels)
        change = torch.exp(-forward.losses) - torch.exp(-muted)  # of the label's probability
        return left | (change < _quantile(change, 1 - h.batch_drop))[:, None]


def _quantile(values: Tensor, share: float) -> Tensor:
    """Return the quantile over the last axis, which stays with length 1, as NumPy interpolates."""
    ordered = values.sort(-1).values
    position = share * (values.shape[-1] - 1)
    low = int(position)
    high = min(low + 1, values.shape[-1] - 1)
    return torch.lerp(ordered[..., low, None], ordered[..., high, None], position - low)
