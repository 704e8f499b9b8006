"""The paper's ablations are hyperparameters of methods, and nothing else."""

from dataclasses import asdict

import pytest
import torch

from shoal.algorithms import ALGORITHMS, VARIANTS, find
from shoal.algorithms.hparams import SCALES, draw

from .plain import make_batches, tiny


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_variant_changes_what_it_names_and_trains(name: str, scale: str) -> None:
    variant = VARIANTS[name]
    kind = find(variant.algorithm)
    assert name not in ALGORITHMS
    for number in (0, 3):
        plain = asdict(draw(kind.Hparams, scale, 1, number))
        mine = draw(kind.Hparams, scale, 1, number, variant.settings)
        changed = {key for key, value in asdict(mine).items() if value != plain[key]}
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


def test_fishr_with_lambda_0_is_erm() -> None:
    hparams = draw(ALGORITHMS["fishr"].Hparams, "small", 0, 0, VARIANTS["fishr-lambda-0"].settings)
    assert hparams.penalty_weight == hparams.mean_weight == 0  # type: ignore[attr-defined]
