"""The examples of a domain whose number only the device knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .forward import Batch, sizes_of


@dataclass(frozen=True)
class Stacked:
    """Batches of equal length M, the longest of them; a shorter one repeats its last example."""

    inputs: Tensor  # [E, M, ...]
    labels: Tensor  # [E, M]
    sizes: Tensor  # n_e, [E]

    @staticmethod
    def of(batches: Sequence[Batch]) -> "Stacked":
        """Return the batches of all domains, in their order."""
        sizes = sizes_of(batches)
        return Stacked(
            torch.stack([_padded(inputs, max(sizes)) for inputs, _ in batches]),
            torch.stack([_padded(labels, max(sizes)) for _, labels in batches]),
            torch.cat([torch.full((1,), n, device=batches[0][1].device) for n in sizes]),
        )

    def pick(self, domains: Tensor) -> "Stacked":
        """Return the batches of these domains, numbers ``[k]`` on the device, in their order."""
        inputs, labels, sizes = (
            values.index_select(0, domains) for values in (self.inputs, self.labels, self.sizes)
        )
        return Stacked(inputs, labels, sizes)


def shares(sizes: Tensor, length: int) -> Tensor:
    """Return the weights of a mean over the first n_e of ``length`` losses, ``[E, length]``."""
    counts = sizes[:, None].double()
    return (torch.arange(length, device=sizes.device) < counts) / counts


def _padded(values: Tensor, length: int) -> Tensor:
    if len(values) == length:
        return values
    ids = torch.arange(length, device=values.device).clamp(max=len(values) - 1)
    return values.index_select(0, ids)
