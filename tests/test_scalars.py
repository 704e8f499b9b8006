"""Scalars keep their precision on any device and under any cast of their module."""

import copy

import pytest
import torch
from torch import nn

from shoal.scalars import Number, Scalars


def positive(name: str, number: float) -> None:
    if number <= 0:
        raise ValueError(f"{name} must be above 0, got {number}")


class Scaled(nn.Module):
    factor, offset = Number(positive), Number(positive)

    def __init__(self, factor: float, offset: float) -> None:
        super().__init__()
        self.scalars = Scalars(factor=factor, offset=offset)

    def forward(self) -> list[float]:
        factor, offset = self.scalars.values.unbind()
        return [float(factor), float(offset)]


def test_numbers_are_read_as_given() -> None:
    module = Scaled(0.1, 3)
    assert (module.factor, module.offset) == (0.1, 3)
    assert isinstance(module.offset, int)
    assert module() == [0.1, 3.0]
    assert module.state_dict() == {}


def test_a_number_is_changed_in_place() -> None:
    module = Scaled(0.1, 3)
    address = module.scalars.values.data_ptr()
    module.offset = 0.7
    assert (module.factor, module.offset) == (0.1, 0.7)
    assert module() == [0.1, 0.7]
    assert module.scalars.values.data_ptr() == address
    other = copy.deepcopy(module)
    other.factor = 5.0
    assert (module(), other()) == ([0.1, 0.7], [5.0, 0.7])


def test_a_refused_number_changes_nothing() -> None:
    module = Scaled(0.1, 3)
    with pytest.raises(ValueError, match="offset must be above 0, got -1"):
        module.offset = -1
    assert (module.offset, module()) == (3, [0.1, 3.0])


def test_a_cast_does_not_round() -> None:
    module = Scaled(0.1, 3)
    address = module.scalars.values.data_ptr()
    for cast in (module.half, module.bfloat16, module.float, module.double):
        cast()
        assert module.scalars.values.dtype == torch.float64
        assert module() == [0.1, 3.0]
    # Nor does it move memory that a captured step reads.
    assert module.scalars.values.data_ptr() == address


def test_they_follow_the_device_of_their_module() -> None:
    module = Scaled(0.1, 3).to("meta")
    assert module.scalars.values.is_meta
    module.offset = 4
    module.to_empty(device="cpu")
    assert module() == [0.1, 4.0]
