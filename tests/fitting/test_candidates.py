"""Candidates: each method with its defaults and a few other settings, the simplest first."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pytest

from shoal.algorithms import VARIANTS, find
from shoal.algorithms.hparams import hparam, power
from shoal.catalogue import BASELINES, METHODS, ON_TABLES
from shoal.fitting import baselines
from shoal.fitting.baselines import CLASSES
from shoal.fitting.candidates import Recipe, family_of, recipes_of
from shoal.fitting.estimates import FAMILIES
from shoal.fitting.setup import FIRST_VERSION, FitSetup, find_candidate
from tests.fitting.made import table_setup
from tests.fitting.test_baselines import vectors

SETUP = replace(table_setup(), examples=300)


def found(*names: str, setup: FitSetup = SETUP) -> dict[str, Recipe]:
    recipes = recipes_of({name: find_candidate(name) for name in names}, setup)
    assert len({one.key for one in recipes}) == len(recipes)
    return {one.key: one for one in recipes}


def hparams(recipe: Recipe, setup: FitSetup = SETUP) -> dict[str, Any]:
    method = find_candidate(recipe.method)
    return dict(
        setup.run(vectors(), recipe.method, method, ("a",), 0, recipe.draw, recipe.settings).hparams
    )


@pytest.mark.parametrize(
    ("name", "varied", "factors"),
    [
        ("fishr", "penalty_weight", (0.1, 10)),
        ("irm", "penalty_weight", (0.1, 10)),
        ("groupdro", "eta", (0.1, 10)),
        ("erm", "lr", (0.3, 3)),
        ("mixup", "lr", (0.3, 3)),
    ],
)
def test_one_setting_of_a_method_is_varied(
    name: str, varied: str, factors: tuple[float, float]
) -> None:
    usual, *others = found(name).values()
    assert (usual.key, usual.base, usual.settings) == (name, name, {})
    default = hparams(usual)
    for one, factor in zip(others, factors, strict=True):
        assert hparams(one) == default | {varied: pytest.approx(factor * default[varied])}
        assert (one.base, one.method, one.draw) == (name, name, 0)


def test_keys_and_titles() -> None:
    assert [(one.key, one.candidate.title) for one in found("fishr").values()] == [
        ("fishr", "Fishr"),
        ("fishr penalty_weight=100", "Fishr (penalty_weight 100)"),
        ("fishr penalty_weight=10000", "Fishr (penalty_weight 10000)"),
    ]
    assert list(found("logistic-regression", "random-forest")) == [
        "logistic-regression",
        "logistic-regression C=0.03",
        "logistic-regression C=0.003",
        "random-forest",
        "random-forest min_samples_leaf=5",
    ]
    boosted = [one.candidate.title for one in found("gradient-boosting").values()]
    assert boosted[2] == "Gradient boosting (learning_rate 0.05, max_leaf_nodes 7)"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_its_grid(name: str) -> None:
    recipes = found(name).values()
    assert [hparams(one) for one in recipes] == [dict(one) for one in CLASSES[name].grid]
    assert [one.draw for one in recipes] == list(range(len(CLASSES[name].grid)))
    assert all(one.fitted for one in recipes)
    assert {one.random for one in recipes} == {CLASSES[name].random}
    assert not found("erm")["erm"].fitted and found("erm")["erm"].random


def test_what_is_set_is_not_varied() -> None:
    by_user = replace(SETUP, settings={"penalty_weight": "7"})
    assert list(found("fishr", "erm", setup=by_user)) == [
        *("erm", "erm lr=0.0003", "erm lr=0.003"),
        *("fishr", "fishr lr=0.0003", "fishr lr=0.003"),
    ]
    for one in found("fishr", setup=by_user).values():
        assert hparams(one, by_user)["penalty_weight"] == 7
    all_set = replace(SETUP, settings={"penalty_weight": "7", "lr": "0.1"})
    assert list(found("fishr", "erm", setup=all_set)) == ["erm", "fishr"]
    # A name may set it too, also by "fishr:penalty_weight=3".
    named = recipes_of({"mine": (find("fishr"), {"penalty_weight": "3"})}, SETUP)
    assert [one.key for one in named] == ["mine", "mine lr=0.0003", "mine lr=0.003"]


def test_ten_times_nothing_is_not_tried() -> None:
    fishr = find("fishr")

    @dataclass(frozen=True)
    class Hparams(fishr.Hparams):  # type: ignore[name-defined, misc]
        penalty_weight: float = hparam(0.0, power(10, 1, 4), key="lambda", help="λ")

    class Mine(fishr):  # type: ignore[valid-type, misc]
        pass

    Mine.Hparams = Hparams
    keys = [one.key for one in recipes_of({"mine": (Mine, {})}, SETUP)]
    assert keys == ["mine", "mine lr=0.0003", "mine lr=0.003"]


def test_no_two_candidates_are_the_same_run() -> None:
    names = [*BASELINES, *METHODS, *VARIANTS]
    methods = {name: find_candidate(name) for name in names}
    data = vectors()
    runs = {
        SETUP.run(data, one.method, methods[one.method], (), 0, one.draw, one.settings).identity
        for one in recipes_of(methods, SETUP)
    }
    assert len(runs) == len(found(*names)) > 3 * len(METHODS)


@pytest.mark.parametrize(("frozen", "plain"), [(False, "erm"), (True, "head")])
def test_the_simplest_come_first(frozen: bool, plain: str) -> None:
    """On frozen features, ERM trains no more than a head."""
    kind = {"kind": "images", "trained": "head", "backbone": "resnet50"} if frozen else {}
    names = ("mixup", "fishr", "erm", *reversed(BASELINES))
    recipes = found(*names, setup=replace(SETUP, **kind)).values()
    assert [one.method for one in recipes if one.key == one.base] == [
        "logistic-regression",
        *("gradient-boosting", "extra-trees", "random-forest"),  # as they were named
        *("erm", "mixup", "fishr"),
    ]
    families = [family for family, _ in groupby(one.candidate.family for one in recipes)]
    assert families == [one for one in FAMILIES if one not in {"erm", "head"} - {plain}]
    assert family_of("erm", frozen) == plain


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "images", "trained": "all", "backbone": "resnet50"},
        {"version": FIRST_VERSION},
    ],
)
def test_long_runs_and_old_fits_have_the_defaults_alone(other: dict[str, Any]) -> None:
    setup = replace(SETUP, **other)
    assert list(found("erm", "fishr", setup=setup)) == ["erm", "fishr"]


def test_what_a_table_has() -> None:
    names = [one.method for one in found(*ON_TABLES).values() if one.key == one.base]
    assert names == list(ON_TABLES)
    assert not baselines.LogisticRegression.random and baselines.ExtraTrees.random
