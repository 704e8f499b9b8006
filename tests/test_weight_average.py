"""WeightAverage: a plain mean of weights, against torch's own where they overlap."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from shoal.weight_average import WeightAverage


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()


def walk(model: nn.Module, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn(weight.shape, dtype=weight.dtype, generator=draws)


@pytest.mark.parametrize("start", [0, 4])
def test_the_mean_is_that_of_torch(start: int) -> None:
    model = model_of()
    ours, theirs = WeightAverage(model, start), AveragedModel(model)
    for step in range(10):
        walk(model, step)
        ours.update()
        if step >= start:
            theirs.update_parameters(model)
    with ours.applied():
        for mine, other in zip(model.parameters(), theirs.module.parameters(), strict=True):
            torch.testing.assert_close(mine, other)


def test_before_the_start_it_is_the_latest() -> None:
    model = model_of()
    average = WeightAverage(model, start=3)
    for step in range(4):
        walk(model, step)
        average.update()
        before = [weight.clone() for weight in model.parameters()]
        with average.applied():
            assert all(map(torch.equal, model.parameters(), before))


def test_weights_come_back_also_after_an_error() -> None:
    model = model_of()
    average = WeightAverage(model)
    for step in range(3):
        walk(model, step)
        average.update()
    before = [weight.clone() for weight in model.parameters()]
    pointers = [weight.data_ptr() for weight in model.parameters()]
    with pytest.raises(RuntimeError, match="inside"), average.applied():
        assert not torch.equal(next(model.parameters()), before[0])
        raise RuntimeError("inside")
    assert all(map(torch.equal, model.parameters(), before))
    assert [weight.data_ptr() for weight in model.parameters()] == pointers


def test_an_average_is_saved_and_resumed() -> None:
    model = model_of()
    average = WeightAverage(model, start=2)
    for step in range(3):
        walk(model, step)
        average.update()
    again = WeightAverage(model, start=2)
    again.load_state_dict(average.state_dict())
    walk(model, 9)
    for one in (average, again):
        one.update()
    for key, value in average.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert not list(average.parameters()), "a model's weights are not the average's"


def test_a_start_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="start must be 0 or more, got -1"):
        WeightAverage(model_of(), -1)
