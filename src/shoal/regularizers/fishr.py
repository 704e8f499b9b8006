"""Fishr: the same gradient variance in every domain."""

from torch import Tensor, nn

from ..statistics import Form, Loss, head_rows
from .match import Match


class Fishr(Match):
    """λ times the spread of the domains' gradient variances, Eq. 3, with their moving average.

    Add it to the loss of any loop; its state is in ``state_dict()`` and nothing else is touched::

        loss = F.cross_entropy(logits, labels) + fishr(features, logits, labels, domains)

    With v̄_e ← γ v̄_e + (1 − γ) v_e starting from zero, the domains' u_e = v̄_e / (1 − γ) are
    matched, so that ∂u/∂v does not depend on γ (Appendix D.1). Calls 0 … ``warmup_steps`` − 1
    return zero; the moving average runs from the first call.

    Args:
        num_domains: E; domain ids are 0 … E − 1.
        penalty_weight: λ.
        ema_decay: γ in [0, 1); 0 matches the batch alone.
        warmup_steps: the call from which λ acts.
        centered, unbiased, bias, loss: as in ``shoal.head_variance``.
        normalise: divide by P, which the published range of λ assumes; False is Eq. 3.
    """

    def __init__(
        self,
        num_domains: int,
        penalty_weight: float = 1000.0,
        ema_decay: float = 0.95,
        warmup_steps: int = 1500,
        *,
        centered: bool = True,
        unbiased: bool = True,
        bias: bool = True,
        loss: Loss | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__(num_domains, penalty_weight, ema_decay, warmup_steps, normalise=normalise)
        self.form = Form(centered, unbiased)
        self.bias = bias
        self.loss = loss

    def suit(self, head: nn.Linear) -> "Fishr":
        """Return it for this classifier: with its bias or without, and with v̄ in place."""
        self.bias = head.bias is not None
        self.begin(sum(weight.numel() for weight in head.parameters()), head.weight.dtype)
        return self

    def forward(self, features: Tensor, logits: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        """Return the penalty of a batch, a scalar to add to the loss."""
        rows, present = head_rows(
            features, logits, labels, domains, self.form, self.bias, self.loss, self.num_domains
        )
        return self._match(rows, present)
