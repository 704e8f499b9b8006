"""Which examples make a batch: drawn from (data set, trial, test domains, domain, step) alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..randomness import Draws


class Sampler(nn.Module):
    """Draws examples of one domain with replacement, on the device and by a count of steps.

    Nothing about the method enters, so all methods see the same batches; and a batch begins with
    the examples of every smaller one.

    Args:
        examples: the indices to draw from.
        labels: of these examples; given, every class of the domain is equally likely.
        name: what the draws depend on.
    """

    examples: Tensor
    first: Tensor
    counts: Tensor

    def __init__(
        self,
        examples: Tensor,
        labels: Tensor | None,
        name: Sequence[str | int],
        device: torch.device,
    ) -> None:
        super().__init__()
        if labels is None:
            counts = torch.tensor([len(examples)])
        else:
            order = labels.argsort(stable=True)
            examples = examples[order]
            counts = torch.bincount(labels)
            counts = counts[counts > 0]
        first = counts.cumsum(0) - counts
        for key, value in (("examples", examples), ("first", first), ("counts", counts)):
            self.register_buffer(key, value.to(device), persistent=False)
        self.draws = Draws("batches", *name, device=device)

    def forward(self, n: int) -> Tensor:
        """Return the indices of this step's n examples, and go on to the next step."""
        classes, places = (self.draws.bits(2 * n) & (2**62 - 1)).view(n, 2).T
        kind = classes % len(self.counts)
        return self.examples[self.first[kind] + places % self.counts[kind]]
