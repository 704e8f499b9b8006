"""The default optimiser: Adam's steps in buffers, switched and reset on the device."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.optimiser import Optimisation, Optimiser

from .plain import PlainAdam


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2), (2,))
    return [nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in shapes]


def loss_of(ws: list[nn.Parameter], step: int) -> Tensor:
    return ((ws[0] @ ws[1]).sin() * (1 + step)).sum() + (ws[1] ** 2).sum()


def snapshot(ws: list[nn.Parameter], optimiser: Optimiser) -> list[Tensor]:
    return copy.deepcopy([*ws, *optimiser.state_dict().values()])


def test_steps_are_adams() -> None:
    mine = weights()
    options = {"lr": 0.1, "weight_decay": 0.3, "betas": (0.5, 0.9)}
    optimiser, plain = Optimiser(mine, **options), PlainAdam(**options)
    theirs = {str(k): w.detach().clone().requires_grad_() for k, w in enumerate(weights())}
    for step in range(6):
        optimiser.minimise(loss_of(mine, step))
        loss = loss_of(list(theirs.values()), step)
        grads = torch.autograd.grad(loss, list(theirs.values()))
        plain.step(theirs, dict(zip(theirs, grads, strict=True)))
        for one, other in zip(mine, theirs.values(), strict=True):
            torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-10, atol=1e-12)


def test_an_inactive_step_changes_nothing() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.minimise(loss_of(mine, 0))
    before = snapshot(mine, optimiser)
    optimiser.minimise(loss_of(mine, 1), active=torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(mine, optimiser), strict=True))
    optimiser.minimise(loss_of(mine, 1), active=torch.tensor(True))
    assert all(
        not torch.equal(a, b) for a, b in zip(before, snapshot(mine, optimiser), strict=True)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(value: float) -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.minimise(loss_of(mine, 0))
    before = snapshot(mine, optimiser)
    optimiser.minimise(loss_of(mine, 1) * value)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(mine, optimiser), strict=True))


def test_reset_starts_again_in_place() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    for step in range(3):
        optimiser.minimise(loss_of(mine, step))
    pointers = [buffer.data_ptr() for buffer in optimiser.state_dict().values()]
    kept = copy.deepcopy(list(optimiser.state_dict().values()))
    optimiser.reset(torch.tensor(False))
    assert all(
        torch.equal(a, b) for a, b in zip(kept, optimiser.state_dict().values(), strict=True)
    )
    optimiser.reset(torch.tensor(True))
    assert all((buffer == 0).all() for buffer in optimiser.state_dict().values())
    assert pointers == [buffer.data_ptr() for buffer in optimiser.state_dict().values()]
    copies = copy.deepcopy(mine)
    fresh = Optimiser(copies, lr=0.1)
    optimiser.minimise(loss_of(mine, 5))
    fresh.minimise(loss_of(copies, 5))
    assert all(torch.equal(a, b) for a, b in zip(mine, copies, strict=True))


@pytest.mark.parametrize(("rule", "direction"), [("adam", "mean"), ("sgd", "velocity")])
def test_reset_of_the_direction_keeps_the_scale(rule: str, direction: str) -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.use(Optimisation(rule))
    for step in range(3):
        optimiser.minimise(loss_of(mine, step))
    before = copy.deepcopy(optimiser.state_dict())
    optimiser.reset(torch.tensor(False), "mean")
    assert all(torch.equal(before[key], now) for key, now in optimiser.state_dict().items())
    optimiser.reset(torch.tensor(True), "mean")
    for key, now in optimiser.state_dict().items():
        expected = 0 * before[key] if key.startswith(direction) else before[key]
        assert torch.equal(now, expected)


def test_state_is_loaded_in_place_and_used() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    for step in range(3):
        optimiser.minimise(loss_of(mine, step))
    copies = copy.deepcopy(mine)
    other = Optimiser(copies, lr=0.1)
    pointers = [buffer.data_ptr() for buffer in other.state_dict().values()]
    other.load_state_dict(optimiser.state_dict())
    assert pointers == [buffer.data_ptr() for buffer in other.state_dict().values()]
    optimiser.minimise(loss_of(mine, 3))
    other.minimise(loss_of(copies, 3))
    assert all(torch.equal(a, b) for a, b in zip(mine, copies, strict=True))


def test_state_follows_the_weights_precision() -> None:
    layer = nn.Linear(2, 2)
    holder = nn.ModuleList([layer, Optimiser(layer.parameters(), lr=0.1)])
    holder.double()
    optimiser = holder[1]
    optimiser.minimise(layer(torch.ones(1, 2, dtype=torch.float64)).square().sum())
    assert optimiser.get_buffer("mean_0").dtype == torch.float64
    assert optimiser.get_buffer("count_0").dtype == torch.float32
    assert optimiser.get_buffer("count_0") == 1
    assert (optimiser.get_buffer("mean_0") != 0).all()


def test_frozen_and_unused_weights_stay() -> None:
    used, unused, frozen = weights()[0], weights()[0], weights()[1]
    frozen.requires_grad_(False)
    optimiser = Optimiser([used, unused, frozen], lr=0.1)
    assert len(optimiser.weights) == 2
    before = unused.detach().clone()
    optimiser.minimise(used.square().sum())
    assert torch.equal(unused, before)
    assert used.grad is None


def test_a_gradient_that_lies_otherwise_in_memory_is_the_same_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 2, 2, generator=generator)
    gradient = torch.randn(4, 3, 2, 2, generator=generator)
    expanded = torch.randn(4, 1, 1, 1, generator=generator).expand(4, 3, 2, 2)
    for values in (gradient, expanded):
        found = []
        for other in (values.contiguous(), values, values.to(memory_format=torch.channels_last)):
            weight = nn.Parameter(start.clone())
            optimiser = Optimiser([weight], lr=0.1)
            for _ in range(2):
                optimiser.step([other])
            found.append(weight.detach())
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_known() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.minimise(loss_of(mine, 0))
    before = snapshot(mine, optimiser)
    grads = [torch.ones_like(w) for w in mine]
    grads[1][0] = float("inf")
    optimiser.step(grads)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(mine, optimiser), strict=True))
    assert not optimiser.all_finite
    optimiser.minimise(loss_of(mine, 1) * float("nan"), active=torch.tensor(True))
    assert all(w.isfinite().all() for w in mine)


def test_reset_forgets_a_square_that_overflowed() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimiser = Optimiser([weight], lr=0.1)
    optimiser.step([torch.full((3,), 1e25)])
    assert optimiser.get_buffer("square_0").isinf().all()
    optimiser.reset(torch.tensor(True))
    assert (optimiser.get_buffer("square_0") == 0).all()


def test_all_frozen_is_nothing_to_do() -> None:
    optimiser = Optimiser([nn.Parameter(torch.ones(2), requires_grad=False)], lr=0.1)
    optimiser.minimise(torch.tensor(1.0))
    optimiser.reset(torch.tensor(True))
    assert optimiser.state_dict() == {}


def test_a_weight_that_changes_its_layout_keeps_its_moments() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 2, 2, generator=generator)
    gradients = [torch.randn(4, 3, 2, 2, generator=generator) for _ in range(4)]
    found = []
    for change in (False, True):
        weight = nn.Parameter(start.clone())
        optimiser = Optimiser([weight], lr=0.1)
        for k, gradient in enumerate(gradients):
            if change and k == 2:
                weight.data = weight.data.to(memory_format=torch.channels_last)
            optimiser.step([gradient])
        found.append(weight.detach())
    torch.testing.assert_close(found[0], found[1])


def test_all_finite_stays_false_until_it_is_set() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.step([torch.full_like(w, float("nan")) for w in mine])
    optimiser.minimise(loss_of(mine, 0))
    assert not optimiser.all_finite
    optimiser.all_finite.fill_(True)
    optimiser.minimise(loss_of(mine, 0))
    assert optimiser.all_finite


def test_reset_of_weights_in_several_precisions() -> None:
    mine = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))]
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.reset(torch.tensor(True))
    optimiser.minimise(sum(w.float().square().sum() for w in mine))
    optimiser.reset(torch.tensor(True))
    assert all((state == 0).all() for state in optimiser.state_dict().values())


def test_weights_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="weights without gaps"):
        Optimiser([nn.Parameter(torch.randn(4, 6)[:, :3])], lr=0.1)


def test_state_that_is_assigned_is_used() -> None:
    mine = weights()
    optimiser = Optimiser(mine, lr=0.1)
    optimiser.minimise(loss_of(mine, 0))
    copies = copy.deepcopy(mine)
    other = Optimiser(copies, lr=0.1)
    other.load_state_dict(copy.deepcopy(optimiser.state_dict()), assign=True)
    optimiser.minimise(loss_of(mine, 1))
    other.minimise(loss_of(copies, 1))
    assert all(torch.equal(a, b) for a, b in zip(mine, copies, strict=True))
    assert other.get_buffer("count_0") == 2


@pytest.mark.parametrize(
    "given",
    [
        {"lr": -0.1},
        {"lr": math.nan},
        {"lr": 0.1, "weight_decay": -1.0},
        {"lr": 0.1, "weight_decay": math.inf},
        {"lr": 0.1, "betas": (1.0, 0.9)},
        {"lr": 0.1, "betas": (0.9, -0.1)},
    ],
)
def test_rates_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, ∞\), and betas in \[0, 1\), got"):
        Optimiser([nn.Parameter(torch.ones(2))], **given)
