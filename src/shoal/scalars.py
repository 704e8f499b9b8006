"""Scalars: numbers on the device that compiled and captured steps follow when they change."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device: float64, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


class Scalars(nn.Module):
    """Numbers by name, and in order in ``values``, on the device in its widest type.

    A Python number is a constant of compiled code, and a new value compiles it again.
    ``state_dict()`` holds none of them.
    """

    values: Tensor

    def __init__(self, **numbers: float) -> None:
        super().__init__()
        self.numbers = numbers
        self._place(torch.device("cpu"))

    def set(self, name: str, number: float) -> None:
        """Change a number; in place, so that a captured step follows."""
        self.numbers[name] = number
        self.values[list(self.numbers).index(name)] = number

    def _place(self, device: torch.device) -> None:
        numbers = [*self.numbers.values()]
        values = torch.tensor(numbers, dtype=widest(device), device=device)
        self.register_buffer("values", values, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "Scalars":
        # Follow the module's device, but a cast must not round them, nor to_empty() clear them.
        device = fn(torch.zeros((), dtype=torch.int64, device=self.values.device)).device
        if device != self.values.device:
            self._place(device)
        return self


class Number:
    """A module's attribute that reads and changes one of its ``scalars`` as a number.

    Args:
        check: takes the name and a number, and raises if the number is not allowed.
    """

    def __init__(self, check: Callable[[str, Any], None]) -> None:
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: type) -> float:
        number: float = module.scalars.numbers[self.name]
        return number

    def __set__(self, module: Any, number: float) -> None:
        self.check(self.name, number)
        module.scalars.set(self.name, number)
