"""Hyperparameter draws are DomainBed's: golden values computed from its published rules."""

from dataclasses import FrozenInstanceError, dataclass, fields

import pytest

from shoal.algorithms.hparams import (
    SCALES,
    Hparams,
    choice,
    constant,
    defaults,
    domainbed_hash,
    draw,
    hparam,
    override,
    power,
    uniform,
    whole,
    whole_power,
)


@dataclass(frozen=True)
class FishrLike(Hparams):
    """The three hyperparameters of Fishr (table:hyperparameters)."""

    penalty_weight: float = hparam(1000.0, power(10, 1, 4), key="lambda", help="λ")
    ema_decay: float = hparam(0.95, uniform(0.90, 0.99), key="ema", help="γ")
    warmup_steps: int = hparam(
        1500, whole(0, 5000), key="penalty_anneal_iters", help="steps before λ acts"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 0), 894182419),
        ((0, 1), 1514274641),
        ((0, 2), 1325548499),
        ((0, 3), 1796103049),
        ((1, 0), 785910682),
        ((2, 0), 472130416),
        (("ColoredMNIST", "Fishr", [2], 0, 0), 1295264072),
        (("PACS", "ERM", [0], 3, 1), 1704687671),
        (("VLCS", "ERM", [1, 2], 1, 0), 360234358),
    ],
)
def test_hash_is_domainbeds(arguments: tuple[object, ...], expected: int) -> None:
    assert domainbed_hash(*arguments) == expected


def test_draw_one_at_large_scale() -> None:
    drawn = draw(FishrLike, "large", trial=0, number=1)
    assert drawn == FishrLike(
        lr=2.7028930742148706e-05,
        weight_decay=0.00044832883881609976,
        batch_size=39,
        dropout=0.5,
        penalty_weight=809.251247284292,
        ema_decay=0.9129082782560279,
        warmup_steps=4072,
    )


@pytest.mark.parametrize(
    ("number", "batch", "lr", "penalty_weight", "warmup_steps", "ema_decay"),
    [
        (1, 372, 1.1906162909279594e-4, 809.251247284292, 4072, 0.9129082782560279),
        (5, 39, 2.3968517445719083e-4, 8089.489683014979, 4264, 0.9269723464224017),
        (18, 455, 3.872163578520407e-5, 8999.069388942098, 3236, 0.9637224084602755),
    ],
)
def test_draws_at_small_scale(
    number: int,
    batch: int,
    lr: float,
    penalty_weight: float,
    warmup_steps: int,
    ema_decay: float,
) -> None:
    drawn = draw(FishrLike, "small", trial=0, number=number)
    assert (drawn.batch_size, drawn.warmup_steps) == (batch, warmup_steps)
    assert drawn.lr == pytest.approx(lr, rel=1e-14)
    assert drawn.penalty_weight == pytest.approx(penalty_weight, rel=1e-14)
    assert drawn.ema_decay == pytest.approx(ema_decay, rel=1e-14)
    assert drawn.weight_decay == 0.0


def test_draw_zero_is_the_defaults_of_the_scale() -> None:
    small, large = (draw(FishrLike, scale, trial=2, number=0) for scale in ("small", "large"))
    assert (small.lr, small.batch_size) == (1e-3, 64)
    assert (large.lr, large.batch_size) == (5e-5, 32)
    assert small == FishrLike() == defaults(FishrLike, "small")


def test_a_method_shares_the_draws_of_what_it_shares() -> None:
    for number in range(1, 8):
        plain = draw(Hparams, "large", trial=1, number=number)
        more = draw(FishrLike, "large", trial=1, number=number)
        assert all(getattr(plain, f.name) == getattr(more, f.name) for f in fields(plain))


def test_trials_and_draws_differ() -> None:
    rates = {draw(Hparams, "small", trial, n).lr for trial in range(3) for n in range(1, 20)}
    assert len(rates) == 57


def test_domainnet_has_smaller_batches() -> None:
    sizes = [draw(Hparams, "domainnet", 0, n).batch_size for n in range(1, 200)]
    others = [draw(Hparams, "large", 0, n).batch_size for n in range(1, 200)]
    assert max(sizes) <= 32 < max(others) <= 45
    assert min(sizes) >= 8


def test_every_distribution_draws_what_it_says() -> None:
    import numpy as np

    r = np.random.RandomState(0)
    assert constant(3).draw(r) == 3
    assert constant(0.0).text == "0"
    many = [whole_power(10, 0, 4).draw(r) for _ in range(2000)]
    assert min(many) == 1 and max(many) > 9000 and all(isinstance(x, int) for x in many)
    assert {choice(0.0, 0.1, 0.5).draw(r) for _ in range(50)} == {0.0, 0.1, 0.5}
    assert isinstance(choice(1, 2).draw(r), int)
    assert power(10, -5, -3.5).text == "10^U(-5, -3.5)"


def test_override_parses_by_the_type_of_the_field() -> None:
    changed = override(FishrLike(), {"penalty_weight": "10", "warmup_steps": "7"})
    assert (changed.penalty_weight, changed.warmup_steps) == (10.0, 7)
    assert isinstance(changed.penalty_weight, float)
    assert changed.lr == FishrLike().lr
    with pytest.raises(ValueError, match="unknown hyperparameter 'penalty_wieght'; did you mean "):
        override(FishrLike(), {"penalty_wieght": "1"})
    with pytest.raises(ValueError, match=r"warmup_steps must be a int, got '1\.5'"):
        override(FishrLike(), {"warmup_steps": "1.5"})


def test_hparams_are_frozen_and_documented() -> None:
    with pytest.raises(FrozenInstanceError):
        FishrLike().lr = 1.0  # type: ignore[misc]
    for f in fields(FishrLike):
        assert f.metadata["help"] and f.metadata["key"]
        assert set(f.metadata["searches"]) == set(SCALES)


def test_a_field_without_a_search_is_refused() -> None:
    @dataclass(frozen=True)
    class Forgetful(Hparams):
        width: int = 3

    with pytest.raises(TypeError, match=r"Forgetful\.width has no default or no search"):
        defaults(Forgetful, "small")


@pytest.mark.parametrize(("trial", "number"), [(-1, 1), (0, -1)])
def test_negative_numbers_are_refused(trial: int, number: int) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        draw(Hparams, "small", trial, number)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scale 'smal'; did you mean 'small'"):
        defaults(Hparams, "smal")
