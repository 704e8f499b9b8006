"""Rules, schedules and clipping: against torch's own step by step, and in a method."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import Optimisation
from shoal.algorithms.base import UpdateAlgorithm
from shoal.algorithms.forward import Batch
from shoal.algorithms.optimiser import Optimiser
from tests.test_capture_safety import NoQuestions

from .plain import make, make_batches, tiny

LR, DECAY, BETAS = 0.1, 0.3, (0.5, 0.9)
STEPS, CLIP = 15, 2.0

RULES: dict[str, dict[str, Any]] = {
    "adam": {"rule": "adam"},
    "adamw": {"rule": "adamw"},
    "sgd": {"rule": "sgd"},
    "heavy sgd": {"rule": "sgd", "momentum": 0.5},
    "plain sgd": {"rule": "sgd", "momentum": 0.0},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "cosine": {"schedule": "cosine", "steps": STEPS},
}
CLIPS: dict[str, dict[str, Any]] = {"whole": {}, "clipped": {"clip": CLIP}}
ALL = {
    f"{rule}, {schedule}, {clip}": Optimisation(**RULES[rule], **SCHEDULES[schedule], **CLIPS[clip])
    for rule in RULES
    for schedule in SCHEDULES
    for clip in CLIPS
}
every = pytest.mark.parametrize("optimisation", ALL.values(), ids=ALL)
rules = pytest.mark.parametrize("rule", RULES)


def weights(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2), (2,))
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [nn.Parameter(w.to(dtype)) for w in drawn]


def gradients(step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """For any weights, some below the clipping norm and some above."""
    generator = torch.Generator().manual_seed(1 + step)
    size = 3.0 if step % 2 else 0.1
    return [
        (size * torch.randn(w.shape, generator=generator, dtype=torch.float64)).to(dtype)
        for w in weights()
    ]


def optimiser_of(ws: list[nn.Parameter], optimisation: Optimisation) -> Optimiser:
    optimiser = Optimiser(ws, LR, DECAY, BETAS)
    optimiser.use(optimisation)
    return optimiser


def go(optimiser: Optimiser, steps: range) -> None:
    dtype = optimiser.weights[0].dtype
    for step in steps:
        optimiser.step(gradients(step, dtype))
        optimiser.advance()


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def cosine(step: int, steps: int = STEPS) -> float:
    return (1 + math.cos(math.pi * step / steps)) / 2


def torchs(o: Optimisation, ws: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The rule in its plainest form, one weight after the other."""
    options: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "foreach": False}
    if o.rule == "sgd":
        return torch.optim.SGD(ws, momentum=o.momentum, **options)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.rule]
    return kind(ws, betas=BETAS, **options)


@every
def test_steps_are_torchs(optimisation: Optimisation) -> None:
    mine, theirs = weights(), weights()
    optimiser, reference = optimiser_of(mine, optimisation), torchs(optimisation, theirs)
    schedule = None
    if optimisation.schedule == "cosine":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, STEPS)
    # A rate in float32 is the only rounding.
    tolerance = 1e-12 if schedule is None else 1e-7
    below = 0
    for step in range(STEPS):
        optimiser.step(gradients(step))
        optimiser.advance()
        for w, gradient in zip(theirs, gradients(step), strict=True):
            w.grad = gradient
        if optimisation.clip is not None:
            below += int(nn.utils.clip_grad_norm_(theirs, optimisation.clip) < optimisation.clip)
        reference.step()
        if schedule is not None:
            schedule.step()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert optimisation.clip is None or 0 < below < STEPS


@every
def test_the_first_step_of_a_new_optimiser(optimisation: Optimisation) -> None:
    """At any time: with the current rate, and without changing any state."""
    mine = weights()
    optimiser = optimiser_of(mine, optimisation)
    go(optimiser, range(4))
    before = copy.deepcopy([*mine, *optimiser.state_dict().values()])
    for step in (4, 5):
        found = optimiser.first_step(gradients(step))
        there = copy.deepcopy(mine)
        fresh = optimiser_of(there, optimisation)
        for _ in range(4):
            fresh.advance()
        fresh.step(gradients(step))
        for a, b in zip(found, there, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-7, atol=1e-7)
        assert not any(w.requires_grad for w in found)
    assert equal(before, [*mine, *optimiser.state_dict().values()])


@every
def test_going_on_from_the_middle(optimisation: Optimisation) -> None:
    mine = weights()
    optimiser = optimiser_of(mine, optimisation)
    go(optimiser, range(6))
    copies = copy.deepcopy(mine)
    resumed = optimiser_of(copies, optimisation)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    twin = copy.deepcopy(optimiser)
    for one in (optimiser, resumed, twin):
        go(one, range(6, 12))
    assert equal(mine, copies)
    assert equal(mine, twin.weights)
    expected = list(optimiser.state_dict().values())
    assert equal(expected, list(resumed.state_dict().values()))
    assert equal(expected, list(twin.state_dict().values()))


@every
@pytest.mark.parametrize("bad", ["off", float("nan"), float("inf")])
def test_a_step_left_out_changes_nothing(optimisation: Optimisation, bad: float | str) -> None:
    mine = weights()
    optimiser = optimiser_of(mine, optimisation)
    go(optimiser, range(3))
    before = copy.deepcopy([*mine, *optimiser.state_dict().values()])
    grads = gradients(3)
    if bad == "off":
        optimiser.step(grads, torch.tensor(False))
    else:
        grads[1][0] = bad
        optimiser.step(grads, torch.tensor(True))
    assert bool(optimiser.all_finite) is (bad == "off")
    assert equal(before, [*mine, *optimiser.state_dict().values()])
    optimiser.step(gradients(3), torch.tensor(True))
    assert not any(torch.equal(a, b) for a, b in zip(before, mine, strict=False))


@every
def test_a_step_asks_nothing_and_keeps_its_addresses(optimisation: Optimisation) -> None:
    mine = weights(torch.float32)
    optimiser = optimiser_of(mine, optimisation)
    go(optimiser, range(2))
    before = [t.data_ptr() for t in [*mine, *optimiser.state_dict(keep_vars=True).values()]]
    grads, on = [gradients(k, torch.float32) for k in range(4)], torch.tensor(True)
    with NoQuestions() as mode:
        for gradient in grads:
            optimiser.reset(~on)
            optimiser.step(gradient, on)
            optimiser.first_step(gradient)
            optimiser.advance()
    assert f"_fused_{optimisation.rule}_" in mode.seen
    after = [t.data_ptr() for t in [*mine, *optimiser.state_dict(keep_vars=True).values()]]
    assert before == after


@rules
def test_the_schedule_goes_on_whatever_is_set_back_or_left_out(rule: str) -> None:
    mine = weights()
    optimiser = optimiser_of(mine, Optimisation(**RULES[rule], **SCHEDULES["cosine"]))
    go(optimiser, range(4))
    optimiser.step(gradients(4), torch.tensor(False))
    optimiser.advance()
    optimiser.reset(torch.tensor(True))
    assert all((t == 0).all() for key, t in optimiser.state_dict().items() if key != "updates")
    copies = copy.deepcopy(mine)
    fresh = Optimiser(copies, LR * cosine(5), DECAY, BETAS)
    fresh.use(Optimisation(**RULES[rule]))
    optimiser.step(gradients(5))
    optimiser.step(gradients(6))  # the same update
    fresh.step(gradients(5))
    fresh.step(gradients(6))
    for a, b in zip(mine, copies, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@rules
def test_after_the_last_update_of_a_schedule_nothing_moves(rule: str) -> None:
    mine = weights()
    optimiser = optimiser_of(mine, Optimisation(**RULES[rule], schedule="cosine", steps=3))
    go(optimiser, range(3))
    before = copy.deepcopy(mine)
    go(optimiser, range(3, 6))
    assert equal(mine, before)


def test_near_its_end_a_schedule_is_still_exact() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimiser = Optimiser([weight], 1.0)
    optimiser.use(Optimisation("sgd", momentum=0.0, schedule="cosine", steps=5000))
    optimiser.updates.fill_(4998)
    optimiser.step([torch.ones(1)])
    assert -weight.item() == pytest.approx(cosine(4998, 5000), rel=1e-6)


def test_clipping_keeps_the_precision_of_every_weight() -> None:
    """By one norm of all; a scalar in float32 must not become float64 next to a float64 one."""
    weights = [
        nn.Parameter(torch.ones(3, dtype=torch.float64)),
        nn.Parameter(torch.ones((), dtype=torch.float32)),
    ]
    optimiser = Optimiser(weights, lr=1.0)
    optimiser.use(Optimisation(rule="sgd", momentum=0.0, clip=2.0))
    optimiser.step([torch.full((3,), 2.0, dtype=torch.float64), torch.tensor(2.0)])
    # The norm of all gradients is 4, so half of each is left.
    for weight in weights:
        torch.testing.assert_close(weight, torch.zeros_like(weight), rtol=0, atol=1e-6)


def test_clipping_leaves_the_callers_gradients_alone() -> None:
    """Two weights can share one gradient tensor, which is clipped once."""
    one, two = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimiser = Optimiser([one, two], 1.0)
    optimiser.use(Optimisation("sgd", momentum=0.0, clip=1.0))
    shared = torch.tensor([3.0, 4.0])
    optimiser.step([shared, shared])
    assert torch.equal(shared, torch.tensor([3.0, 4.0]))
    expected = -shared / math.sqrt(50)
    torch.testing.assert_close(one.detach(), expected)
    torch.testing.assert_close(two.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_overflows_is_clipped_like_any_other(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=dtype))
    optimiser = Optimiser([weight], 1.0)
    optimiser.use(Optimisation("sgd", momentum=0.0, clip=1.0))
    optimiser.step([torch.full((4,), 1e25, dtype=dtype)])
    torch.testing.assert_close(weight.detach(), torch.full((4,), -0.5, dtype=dtype))


@rules
def test_weights_in_several_precisions(rule: str) -> None:
    """Frozen, unused and half-precision weights do no harm."""
    whole, half = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2).bfloat16())
    unused, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)
    optimiser = Optimiser([whole, half, unused, frozen], 0.1)
    optimiser.use(Optimisation(**RULES[rule], **SCHEDULES["cosine"], clip=1.0))
    for _ in range(2):
        optimiser.step([torch.ones(2), torch.ones(2).bfloat16(), None])
    assert (whole < 1).all() and (half < 1).all()
    torch.testing.assert_close(whole.detach(), half.detach().float(), rtol=1e-2, atol=1e-2)
    assert torch.equal(unused, torch.ones(2))


@rules
def test_a_weight_that_changes_its_layout_goes_on(rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 2, 2, generator=generator)
    grads = [torch.randn(4, 3, 2, 2, generator=generator) for _ in range(4)]
    found = []
    for change in (False, True):
        weight = nn.Parameter(start.clone())
        optimiser = Optimiser([weight], 0.1)
        optimiser.use(Optimisation(**RULES[rule], clip=1.0))
        for k, gradient in enumerate(grads):
            if change and k == 2:
                weight.data = weight.data.to(memory_format=torch.channels_last)
            optimiser.step([gradient])
        found.append(weight.detach())
    torch.testing.assert_close(found[0], found[1])


def test_all_frozen_is_nothing_to_do() -> None:
    optimiser = Optimiser([nn.Parameter(torch.ones(2), requires_grad=False)], lr=0.1)
    optimiser.use(ALL["sgd, cosine, clipped"])
    optimiser.minimise(torch.tensor(1.0))
    optimiser.reset(torch.tensor(True))
    optimiser.advance()
    assert optimiser.state_dict() == {}


def test_what_is_kept_by_each_rule() -> None:
    optimiser = Optimiser(weights(), LR)
    adams = ["count_0", "mean_0", "square_0", "count_1", "mean_1", "square_1"]
    assert list(optimiser.state_dict()) == adams
    optimiser.use(ALL["sgd, cosine, clipped"])
    assert set(optimiser.state_dict()) == {"velocity_0", "velocity_1", "updates"}
    optimiser.use(ALL["plain sgd, constant, clipped"])
    assert not optimiser.state_dict()
    optimiser.use(ALL["adamw, constant, whole"])
    assert list(optimiser.state_dict()) == adams


def test_a_schedule_survives_a_change_of_precision() -> None:
    layer = nn.Linear(2, 2)
    optimiser = Optimiser(layer.parameters(), 1.0)
    optimiser.use(Optimisation("sgd", momentum=0.0, schedule="cosine", steps=1001))
    holder = nn.ModuleList([layer, optimiser])
    optimiser.updates.fill_(501)
    holder.bfloat16().double()
    before = layer.bias.detach().clone()
    optimiser.step([None, torch.ones(2, dtype=torch.float64)])
    torch.testing.assert_close(
        before - layer.bias.detach(), torch.full_like(before, cosine(501, 1001)), rtol=1e-6, atol=0
    )


# In a method


def test_chosen_before_the_first_update_only() -> None:
    algorithm = make("erm")
    algorithm.optimise(Optimisation("sgd"))
    algorithm.optimise(ALL["adamw, cosine, clipped"])  # another thought
    assert algorithm.optimiser.optimisation == ALL["adamw, cosine, clipped"]
    algorithm.update(make_batches(0))
    with pytest.raises(RuntimeError, match="ERM has already made 1 updates"):
        algorithm.optimise(Optimisation("sgd"))
    loaded = make("erm")
    loaded.optimise(ALL["adamw, cosine, clipped"])
    loaded.load_state_dict(algorithm.state_dict())
    with pytest.raises(RuntimeError, match="and then load the saved state"):
        loaded.optimise(Optimisation("sgd"))


def test_a_state_of_another_rule_is_refused() -> None:
    one, other = make("erm"), make("erm")
    other.optimise(Optimisation("sgd"))
    with pytest.raises(RuntimeError, match=r"optimiser\.velocity_0"):
        one.load_state_dict(other.state_dict())


def test_a_method_made_without_memory() -> None:
    saved = make("erm")
    on_meta = make("erm", model=tiny().to("meta"))
    for algorithm in (saved, on_meta):
        algorithm.optimise(ALL["sgd, cosine, clipped"])
    saved.update(make_batches(0))
    on_meta.to_empty(device="cpu")
    on_meta.load_state_dict(saved.state_dict())
    for algorithm in (saved, on_meta):
        algorithm.update(make_batches(1))
    assert equal(list(saved.parameters()), list(on_meta.parameters()))


def test_a_method_without_an_optimiser_takes_only_the_default() -> None:
    class Own(UpdateAlgorithm):
        def update(self, batches: list[Batch]) -> dict[str, Tensor]:
            raise NotImplementedError

    own = Own(tiny(), 3)
    own.optimise(Optimisation(steps=7))
    with pytest.raises(TypeError, match=r"Own has no shoal\.algorithms\.Optimiser"):
        own.optimise(Optimisation("sgd"))
    with pytest.raises(TypeError, match=r"clip=1\.0"):
        own.optimise(Optimisation(clip=1.0))


# Options that make no sense


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "adamW"}, "unknown rule 'adamW'; did you mean 'adam"),
        ({"schedule": "cos"}, "unknown schedule 'cos'.*One of: constant, cosine"),
        ({"rule": "sgd", "momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"rule": "sgd", "momentum": -0.1}, r"momentum must be in \[0, 1\), got -0.1"),
        ({"rule": "adamw", "momentum": 0.5}, "option of sgd, got 0.5 with adamw; drop it"),
        ({"schedule": "cosine"}, "needs steps, the updates of the whole training"),
        ({"schedule": "cosine", "steps": 0}, "steps must be a whole number, 1 or more, got 0"),
        ({"steps": 2.5}, "steps must be a whole number, 1 or more, got 2.5"),
        ({"clip": 0.0}, "clip must be a norm above 0, or None for none, got 0.0"),
        ({"clip": float("nan")}, "clip must be a norm above 0, or None for none, got nan"),
        ({"clip": float("inf")}, "clip must be a norm above 0, or None for none, got inf"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Optimisation(**options)
