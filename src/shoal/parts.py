"""Which examples of a whole batch are run, so that they draw what they would draw in the whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@dataclass(frozen=True)
class Part:
    """Examples ``start`` … ``stop`` − 1 of ``total``."""

    start: int
    stop: int
    total: int

    def take(self, whole: Tensor) -> Tensor:
        """Return the part's rows of what was drawn for all."""
        return whole[self.start : self.stop]


_NOW: ContextVar[Part | None] = ContextVar("part", default=None)


@contextmanager
def part_of_batch(start: int, stop: int, total: int) -> Iterator[None]:
    """Draw inside the block what these examples have in the whole; random states are the caller's.

    What drops at random by other roads than ``torch.nn.functional`` draws for the part alone.
    """
    token = _NOW.set(Part(start, stop, total))
    try:
        with _MasksOfTheWhole():
            yield
    finally:
        _NOW.reset(token)


def part_now(inputs: Tensor) -> Part | None:
    """Return of which part these are the activations; None for all of a batch."""
    if torch.compiler.is_compiling():
        return None
    part = _NOW.get()
    return part if part is not None and len(inputs) == part.stop - part.start else None


class _MasksOfTheWhole(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func not in DROPOUTS:
            return func(*args, **(kwargs or {}))
        return _dropped(func, *args, **(kwargs or {}))


def _dropped(
    func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    part = part_now(input)
    if part is None or not training or p == 0:
        found: Tensor = func(input, p, training, inplace)
        return found
    ones = torch.ones(part.total, *input.shape[1:], dtype=input.dtype, device=input.device)
    mask = part.take(func(ones, p)).clone()  # so that no more of it is kept
    return input.mul_(mask) if inplace else input * mask
