"""The paper's ablations are hyperparameters of methods, and nothing else."""

from dataclasses import asdict, replace

import pytest
import torch

from shoal.algorithms import ALGORITHMS, VARIANTS, find
from shoal.algorithms.hparams import draw, values_for_run
from shoal.regularizers import Match

from .plain import make_batches, tiny


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("scale", ["small", "large"])
def test_a_variant_changes_what_it_names_and_trains(name: str, scale: str) -> None:
    variant = VARIANTS[name]
    kind = find(variant.algorithm)
    assert name not in ALGORITHMS
    for number in (0, 3):
        before = asdict(draw(kind.Hparams, scale, 1, number))
        mine = draw(kind.Hparams, scale, 1, number, variant.settings)
        changed = {key for key, value in asdict(mine).items() if value != before[key]}
        searched_only = {key for key, text in variant.settings.items() if "^" in text}
        assert changed <= set(variant.settings)
        assert set(variant.settings) - searched_only <= changed
        algorithm = kind(tiny(), 3, mine)
        for step in range(2):
            algorithm.check(algorithm.update(make_batches(step)))


def drawn(name: str, number: int) -> dict[str, object]:
    variant = VARIANTS[name]
    return asdict(draw(find(variant.algorithm).Hparams, "small", 0, number, variant.settings))


def test_searches_of_the_ablations_share_fishrs_streams() -> None:
    fishr = asdict(draw(ALGORITHMS["fishr"].Hparams, "small", 0, 5))
    assert drawn("vrex-ema", 5)["ema_decay"] == fishr["ema_decay"]
    assert drawn("vrex-ema", 0)["ema_decay"] == 0.95
    assert drawn("iga-head-ema", 5)["warmup_steps"] == fishr["warmup_steps"]
    assert drawn("iga-head-ema", 5)["penalty_weight"] == 0
    assert drawn("fishr-iga", 5)["penalty_weight"] == fishr["penalty_weight"]
    assert drawn("fishr-iga", 0)["mean_weight"] == 1000
    # λ ~ 10^U(1, 5) from the same stream as 10^U(1, 4): the exponent stretched.
    wide, narrow = drawn("fishr-v15", 5)["penalty_weight"], fishr["penalty_weight"]
    exponents = torch.tensor([wide, narrow], dtype=torch.float64).log10() - 1
    torch.testing.assert_close(exponents[0] / 4, exponents[1] / 3)


def test_iga_in_the_head_is_the_same_in_both_methods() -> None:
    """IGA's own options and Fishr with λ = 0 on the variances are one update."""
    shared = {"lr": 0.01}
    theirs = ALGORITHMS["fishr"].Hparams(
        penalty_weight=0.0, mean_weight=50.0, ema_decay=0.9, warmup_steps=2, **shared
    )
    mine = ALGORITHMS["iga"].Hparams(
        penalty_weight=50.0,
        parameters="classifier",
        normalise=True,
        ema_decay=0.9,
        warmup_steps=2,
        **shared,
    )
    one, other = ALGORITHMS["fishr"](tiny(), 3, theirs), ALGORITHMS["iga"](tiny(), 3, mine)
    for step in range(5):
        first, second = one.update(make_batches(step)), other.update(make_batches(step))
        torch.testing.assert_close(first["loss"], second["loss"])
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_a_rescaled_draw_is_no_average_with_lambda_over_1_minus_its_own_decay() -> None:
    kind = ALGORITHMS["fishr"].Hparams
    mine = draw(kind, "small", 0, 5, VARIANTS["fishr-rescaled"].settings)
    fishr = asdict(draw(kind, "small", 0, 5))
    assert asdict(mine) == fishr | {"average": False}
    pull = 1 / (1 - fishr["ema_decay"])
    means = {"mean_weight": 50.0, "warmup_steps": 1, "lr": 0.01}
    spelled = replace(
        mine,
        **means | {"mean_weight": pull * 50},
        average=True,
        ema_decay=0.0,
        penalty_weight=pull * fishr["penalty_weight"],
    )
    one = ALGORITHMS["fishr"](tiny(), 3, replace(mine, **means))
    other = ALGORITHMS["fishr"](tiny(), 3, spelled)
    for step in range(3):
        one.update(make_batches(step))
        other.update(make_batches(step))
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_pull_that_lasts_is_restored() -> None:
    """With gaps that stay, the average pulls 1/(1 − γ) times as hard as the batch alone."""
    rows = torch.tensor([[1.0, 2.0], [4.0, 0.5]], dtype=torch.float64)
    pulls = []
    for decay, weight in ((0.9, 3.0), (0.0, 3.0), (0.0, 30.0)):
        matched = Match(2, weight, decay)
        for _ in range(300):
            leaf = rows.clone().requires_grad_()
            matched.match(leaf).backward()
        pulls.append(leaf.grad)
    torch.testing.assert_close(pulls[0], pulls[2])
    torch.testing.assert_close(pulls[0], 10 * pulls[1])


def test_fishr_with_lambda_0_is_erm() -> None:
    hparams = draw(ALGORITHMS["fishr"].Hparams, "small", 0, 0, VARIANTS["fishr-lambda-0"].settings)
    assert hparams.penalty_weight == hparams.mean_weight == 0  # type: ignore[attr-defined]


def test_an_option_declared_later_leaves_the_names_of_runs_alone() -> None:
    """Runs from before the option have no such entry, and must not get one."""
    fishr = ALGORITHMS["fishr"].Hparams
    before = values_for_run(draw(fishr, "small", 0, 5))
    later = {"average", "ramp_steps", "reset", "gradient_share"}
    assert set(asdict(draw(fishr, "small", 0, 5))) - later == set(before)
    assert not later & set(before)
    assert fishr(**before) == draw(fishr, "small", 0, 5)
    rescaled = draw(fishr, "small", 0, 5, VARIANTS["fishr-rescaled"].settings)
    assert values_for_run(rescaled) == before | {"average": False}
    assert fishr(**values_for_run(rescaled)) == rescaled
