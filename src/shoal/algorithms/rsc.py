"""RSC: mute the features that matter most for the prediction (Huang et al., 2020)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..scalars import Scalars
from .base import Objective
from .forward import Forward
from .hparams import Hparams, hparam, uniform


@dataclass(frozen=True)
class RSCHparams(Hparams):
    """Shares of features and examples to mute."""

    feature_drop: float = hparam(
        1 / 3,
        uniform(0, 0.5),
        "[0, 1]",
        key="rsc_f_drop_factor",
        help="share of the features to mute",
    )
    batch_drop: float = hparam(
        1 / 3,
        uniform(0, 0.5),
        "[0, 1]",
        key="rsc_b_drop_factor",
        help="share of the examples to mute them in",
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
        classifier = self.model.classifier
        if not isinstance(classifier, nn.Linear):
            raise TypeError(
                f"RSC needs a linear classifier, a torch.nn.Linear, got {type(classifier).__name__}"
            )
        if classifier.out_features < 2:
            raise ValueError("RSC needs a logit for each class, 2 or more, got a single one")
        h = self.hparams
        shares = Scalars(features=1 - h.feature_drop, examples=1 - h.batch_drop)
        self.shares = shares.to(self.device)

    def objective(self, forward: Forward) -> dict[str, Tensor]:
        """Return the cross-entropy of the remaining features."""
        kept = forward.features * self._mask(forward)
        return {"loss": self._losses(kept, forward.labels).mean()}

    def _losses(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = precise(self.model.classifier(features))  # type: ignore[operator]
        return individual_losses(logits, labels, None)

    def _shares(self) -> Iterable[float] | Iterable[Tensor]:
        """Return the remaining shares of features and examples.

        A compiled step gets tensors, because numbers would be constants in its graph; else numbers,
        which cost less.
        """
        compiling = torch.compiler.is_compiling()
        return self.shares.values.unbind() if compiling else self.shares.numbers.values()

    @torch.no_grad()
    def _mask(self, forward: Forward) -> Tensor:
        """Return which features remain in which example, bool ``[n, p]``."""
        classifier = cast(nn.Linear, self.model.classifier)
        if forward.labels.is_floating_point():
            raise TypeError("RSC needs the class of each example, got soft targets")
        of_features, of_examples = self._shares()
        # ∂ logit_y / ∂z is row y of the classifier, the same for all examples of a class.
        rows = classifier.weight
        left = (rows < _quantile(rows, of_features)).index_select(0, forward.labels.long())
        muted = self._losses(forward.features * left, forward.labels)
        change = torch.exp(-forward.losses) - torch.exp(-muted)  # of the label's probability
        return left | (change < _quantile(change, of_examples))[:, None]


def _quantile(values: Tensor, share: float | Tensor) -> Tensor:
    """Return the quantile over the last axis, kept with length 1, interpolated as in NumPy."""
    ordered, last = values.sort(-1).values, values.shape[-1] - 1
    position = share * last
    if not isinstance(position, Tensor):
        start = int(position)
        low, high = (ordered[..., k, None] for k in (start, min(start + 1, last)))
        return torch.lerp(low, high, position - start)
    below = position.long()
    ends = torch.stack([below, (below + 1).clamp(max=last)])
    low, high = precise(ordered.index_select(-1, ends)).split(1, -1)
    return torch.lerp(low, high, (position - below).to(low.dtype)).to(values.dtype)
