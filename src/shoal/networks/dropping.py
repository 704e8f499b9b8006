"""Dropout whose draws can be replayed: they lie in ``state_dict()``, and a captured step has them.

torch's own layer draws from the global generator, which a resumed run finds in another state.
"""

import math

import torch
from torch import Tensor, nn

from ..randomness import Draws
from ..replay import part_now


def dropout(inputs: Tensor, rate: float, draws: Draws) -> Tensor:
    """Return ``inputs`` with a share ``rate`` set to zero, as ``draws`` has it, the rest scaled."""
    if rate == 0:
        return inputs
    part = part_now(inputs)
    if part is None:
        drawn = draws.uniform(inputs.numel()).view_as(inputs)
    else:
        shape = (part.total, *inputs.shape[1:])
        drawn = part.take(draws.uniform(math.prod(shape)).view(shape))
    return inputs * (drawn >= rate) / (1 - rate)


class Dropout(nn.Module):
    """Set a share ``rate`` of the inputs to zero in training; ``generator`` seeds its draws."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be 0 or more and below 1, got {rate}")
        self.rate = rate
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self.draws = Draws("dropout", int(seed), device=torch.device("cpu"))

    def forward(self, inputs: Tensor) -> Tensor:
        return dropout(inputs, self.rate, self.draws) if self.training else inputs

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
