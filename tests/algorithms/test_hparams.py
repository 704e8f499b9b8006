"""Hyperparameter draws are DomainBed's: golden values computed from its published rules."""

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, fields
from typing import Any

import numpy as np
import pytest

from shoal.algorithms import ALGORITHMS, VARIANTS
from shoal.algorithms.distributions import holds, parse_distribution
from shoal.algorithms.hparams import (
    Hparams,
    choice,
    constant,
    defaults,
    domainbed_hash,
    draw,
    fixed,
    hparam,
    later,
    power,
    search_settings,
    searches,
    uniform,
    whole,
    whole_power,
)
from shoal.catalogue import DATASETS, SCALES
from shoal.cli import main


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
    r = np.random.RandomState(0)
    assert constant(3).draw(r) == 3
    assert constant(0.0).text == "0"
    many = [whole_power(10, 0, 4).draw(r) for _ in range(2000)]
    assert min(many) == 1 and max(many) > 9000 and all(isinstance(x, int) for x in many)
    assert {choice(0.0, 0.1, 0.5).draw(r) for _ in range(50)} == {0.0, 0.1, 0.5}
    assert isinstance(choice(1, 2).draw(r), int)
    assert power(10, -5, -3.5).text == "10^U(-5, -3.5)"
    assert choice(0.0, 0.1, 0.5).text == "{0, 0.1, 0.5}"


# DomainBed's rules for its methods beyond the paper's: key, default and draw from a NumPy stream.
Rule = tuple[str, Any, Callable[[np.random.RandomState], Any]]
BEYOND: dict[str, list[Rule]] = {
    "sd": [("sd_reg", 0.1, lambda r: 10 ** r.uniform(-5, -1))],
    "ib-erm": [
        ("ib_lambda", 1e2, lambda r: 10 ** r.uniform(-1, 5)),
        ("ib_penalty_anneal_iters", 500, lambda r: int(10 ** r.uniform(0, 4))),
    ],
    "ib-irm": [
        ("irm_lambda", 1e2, lambda r: 10 ** r.uniform(-1, 5)),
        ("irm_penalty_anneal_iters", 500, lambda r: int(10 ** r.uniform(0, 4))),
        ("ib_lambda", 1e2, lambda r: 10 ** r.uniform(-1, 5)),
        ("ib_penalty_anneal_iters", 500, lambda r: int(10 ** r.uniform(0, 4))),
    ],
    "causirl-coral": [("mmd_gamma", 1.0, lambda r: 10 ** r.uniform(-1, 1))],
    "causirl-mmd": [("mmd_gamma", 1.0, lambda r: 10 ** r.uniform(-1, 1))],
    "eqrm": [
        ("eqrm_quantile", 0.75, lambda r: r.uniform(0.5, 0.99)),
        # Rounded down here; DomainBed's draws are not whole.
        ("eqrm_burnin_iters", 2500, lambda r: math.floor(10 ** r.uniform(2.5, 3.5))),
        ("eqrm_lr", 1e-6, lambda r: 10 ** r.uniform(-7, -5)),
    ],
    "rdm": [("rdm_lr", 1.5e-5, lambda r: r.uniform(8e-6, 2e-5))],
}
# RDM's other rules, by data set.
RDM_WEIGHT = {
    "pacs": (5.0, lambda r: r.uniform(1, 10)),
    "terra-incognita": (5.0, lambda r: r.uniform(1, 10)),
    "domainnet": (0.5, lambda r: r.uniform(0.1, 1)),
}
RDM_BATCH = {
    "domainnet": (40, lambda r: int(r.uniform(30, 60))),
    "terra-incognita": (40, lambda r: int(r.uniform(30, 60))),
    "colored-mnist": (64, lambda r: int(2 ** r.uniform(3, 9))),
    "rotated-mnist": (64, lambda r: int(2 ** r.uniform(3, 9))),
}
NO_VARIANCE = ("terra-incognita", "office-home", "domainnet")


def rules_of_rdm(dataset: str) -> list[Rule]:
    far = dataset == "domainnet"
    return [
        *BEYOND["rdm"],
        ("rdm_lambda", *RDM_WEIGHT.get(dataset, (5.0, lambda r: r.uniform(0.1, 10)))),
        (
            "rdm_penalty_anneal_iters",
            2400 if far else 1500,
            lambda r: int(r.uniform(1500, 3000) if far else r.uniform(800, 2700)),
        ),
        (
            "variance_weight",
            0.0 if dataset in NO_VARIANCE else 0.004,
            lambda r: 0.0 if dataset in NO_VARIANCE else r.uniform(0.001, 0.007),
        ),
        ("batch_size", *RDM_BATCH.get(dataset, (88, lambda r: int(r.uniform(70, 100))))),
    ]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", BEYOND)
def test_draws_beyond_the_paper_are_domainbeds(name: str, dataset: str) -> None:
    kind = ALGORITHMS[name].Hparams
    names = {f.metadata["key"]: f.name for f in fields(kind)}
    rules = rules_of_rdm(dataset) if name == "rdm" else BEYOND[name]
    own = {f.name for f in fields(kind)} - {f.name for f in fields(Hparams)}
    assert {names[key] for key, _, _ in rules} - {"batch_size"} == own
    for key, default, drawn_by in rules:
        assert getattr(defaults(kind, dataset), names[key]) == default
        for trial, number in [(0, 1), (0, 5), (2, 19)]:
            found = getattr(draw(kind, dataset, trial, number), names[key])
            seed = domainbed_hash(domainbed_hash(number, trial), key)
            assert found == drawn_by(np.random.RandomState(seed)), (key, number)


def test_a_data_set_can_have_searches_of_its_own() -> None:
    @dataclass(frozen=True)
    class Own(Hparams):
        rate: float = hparam(
            0.5, uniform(0, 1), key="rate", help="a share", datasets={"pacs": (2.0, constant(2.0))}
        )

    assert defaults(Own, "pacs").rate == draw(Own, "pacs", 0, 3).rate == 2.0
    assert defaults(Own, "pacs").lr == defaults(Own, "large").lr
    for other in ("vlcs", "large", "domainnet"):
        assert defaults(Own, other).rate == 0.5
        assert draw(Own, other, 0, 3).rate == draw(Own, "small", 0, 3).rate
    with pytest.raises(ValueError, match="unknown data set 'pac'; did you mean 'pacs'"):
        hparam(0.5, uniform(0, 1), key="rate", help="a", datasets={"pac": (1.0, constant(1.0))})
    with pytest.raises(ValueError, match=r"default of rate is -1.0, which is not in \[0, 1\]"):
        hparam(
            0.5,
            uniform(0, 1),
            "[0, 1]",
            key="rate",
            help="a share",
            datasets={"pacs": (-1.0, constant(-1.0))},
        )


def test_a_command_uses_the_searches_of_its_data_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for dataset, batch in (("terra-incognita", 40), ("pacs", 88), ("colored-mnist", 64)):
        assert main(["hparams", "rdm", "--dataset", dataset, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["batch_size"] == batch


# Values and searches given as text


@dataclass(frozen=True)
class Mixed(Hparams):
    """One of each kind."""

    rate: float = hparam(0.5, uniform(0, 1), key="rate", help="a float")
    steps: int = hparam(3, constant(3), key="steps", help="an int", large=(5, constant(5)))
    centered: bool = hparam(True, constant(True), key="centered", help="a bool")
    parameters: str = hparam("all", constant("all"), key="parameters", help="a text")


def drawn(text: str, kind: type | None = None, seeds: int = 50) -> list[Any]:
    """Draws of the search that ``text`` denotes, one from each of many streams."""
    distribution = parse_distribution(text, kind)
    assert distribution is not None
    return [distribution.draw(np.random.RandomState(seed)) for seed in range(seeds)]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("scale", [*SCALES, "terra-incognita"])  # which has searches of its own
def test_every_search_of_every_method_reads_back(name: str, scale: str) -> None:
    kind = ALGORITHMS[name].Hparams
    said = {name: search.distribution.text for name, search in searches(kind, scale).items()}
    for number in range(1, 5):
        assert draw(kind, scale, 1, number, said) == draw(kind, scale, 1, number)
    for f in fields(kind):
        own = searches(kind, scale)[f.name].distribution
        found = parse_distribution(own.text, type(f.default))
        if found is None:  # a constant is a value, and no search
            assert own.draw(np.random.RandomState(0)) == own.draw(np.random.RandomState(1))
            continue
        assert found.text == own.text
        values = [own.draw(np.random.RandomState(seed)) for seed in range(8)]
        for kind_of_values in (type(f.default), None):
            assert drawn(own.text, kind_of_values, 8) == values


@pytest.mark.parametrize(
    "distribution",
    [
        uniform(1 / 3, 2 / 3),
        power(2, -1 / 7, 1e-9),
        whole(0, 123456789),
        whole_power(10, 0.1 + 0.2, 4),
        choice(1 / 3, 1e-12, 1234567.0),
    ],
    ids=lambda distribution: distribution.text,
)
def test_no_digit_is_lost_in_what_a_search_says(distribution: Any) -> None:
    expected = [distribution.draw(np.random.RandomState(seed)) for seed in range(50)]
    assert drawn(distribution.text) == expected


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("10^U(1,5)", "10^U(1, 5)"),
        ("  int( 10 ^ U( 0 , 4.0 ) ) ", "int(10^U(0, 4))"),
        ("U(-.5, +1e-1)", "U(-0.5, 0.1)"),
        ("{0,0.10,  .5}", "{0, 0.1, 0.5}"),
        ("{true, FALSE}", "{True, False}"),
        ("{all}", "{all}"),
    ],
)
def test_a_search_may_be_written_freely(text: str, same: str) -> None:
    found = parse_distribution(text)
    assert found is not None
    assert found.text == same
    assert drawn(text) == drawn(same)


NO_SEARCH = ["3", "1e-3", "all", "", "{0, 1", "int(3)", "U(1)", "u(1, 2)", "U(1, 2, 3)", "U(a, b)"]
NO_SEARCH += ["int(U(1, 2)", "U(1, 2))", "U(1, 2) + 1", "10^(1, 5)", "10^U(1 5)", "-10^U(1, 5)"]
NO_SEARCH += ["2.5^U(1, 5)"]


@pytest.mark.parametrize("text", NO_SEARCH)
def test_what_is_no_search(text: str) -> None:
    assert parse_distribution(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("U(5, 1)", "larger bound first"),
        ("10^U(1, 400)", "beyond what a float"),
        ("U(0, 1e999)", "beyond what a float"),
        ("U(-1e308, 1e308)", "beyond what a float"),
        ("0^U(0, 1)", "base 0"),
        ("{}", "empty place"),
        ("{1,, 2}", "empty place"),
    ],
)
def test_a_search_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_distribution(text)


def test_a_search_draws_the_type_of_its_field() -> None:
    for text, kind in {
        "{0, 1}": float,
        "int(U(0, 9))": float,
        "int(2^U(0, 3))": int,
        "{1, 2}": int,
        "{true, false}": bool,
        "{1, all}": str,
        "10^U(1, 5)": float,
    }.items():
        assert {type(value) for value in drawn(text, kind)} == {kind}
    assert set(drawn("{1, all}", str)) == {"1", "all"}
    assert max(drawn("int(U(0, 9))", float)) == 8.0


def test_a_value_stands_in_every_draw() -> None:
    settings = {"penalty_weight": "10", "warmup_steps": " 7 "}
    for number in (0, 1, 5):
        found = draw(FishrLike, "large", 2, number, settings)
        plain = draw(FishrLike, "large", 2, number)
        assert (found.penalty_weight, found.warmup_steps) == (10.0, 7)
        assert isinstance(found.penalty_weight, float)
        assert (found.lr, found.batch_size, found.ema_decay) == (
            plain.lr,
            plain.batch_size,
            plain.ema_decay,
        )
    given = {"rate": "1e-3", "centered": "False", "parameters": "a,b"}
    assert asdict(draw(Mixed, "large", 0, 0, given)) == asdict(defaults(Mixed, "large")) | {
        "rate": 0.001,
        "centered": False,
        "parameters": "a,b",
    }


def test_a_wider_search_draws_from_the_same_stream() -> None:
    """table:v15, λ ~ 10^U(1, 5): the same uniform number on a wider range, all else unchanged."""
    settings = {"penalty_weight": "10^U(1, 5)"}
    for number in range(1, 20):
        plain = draw(FishrLike, "small", 1, number)
        wide = draw(FishrLike, "small", 1, number, settings)
        share = (math.log10(plain.penalty_weight) - 1) / 3
        assert wide.penalty_weight == pytest.approx(10 ** (1 + 4 * share), rel=1e-12)
        assert asdict(wide) == asdict(plain) | {"penalty_weight": wide.penalty_weight}
    assert draw(FishrLike, "large", 1, 0, settings) == defaults(FishrLike, "large")


def test_searches_of_every_kind_of_field() -> None:
    settings = {
        "rate": "{0, 1}",
        "steps": "int(10^U(0, 4))",
        "centered": "{true, false}",
        "parameters": "{all, classifier}",
    }
    many = [draw(Mixed, "large", 0, number, settings) for number in range(1, 40)]
    assert {h.rate for h in many} == {0.0, 1.0}
    assert {type(h.rate) for h in many} == {float}
    assert len({h.steps for h in many}) > 20
    assert {h.centered for h in many} == {True, False}
    assert {h.parameters for h in many} == {"all", "classifier"}
    # The default of the scale, and one that the search itself need not have.
    assert draw(Mixed, "large", 0, 0, settings) == defaults(Mixed, "large")
    for found in many:
        assert Mixed(**json.loads(json.dumps(asdict(found)))) == found
    said = searches(Mixed, "large", settings)
    assert said["steps"].default == 5
    assert said["steps"].distribution.text == "int(10^U(0, 4))"
    # Text remains text, unless it is a choice.
    assert draw(Mixed, "small", 0, 3, {"parameters": "U(0, 1)"}).parameters == "U(0, 1)"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("penalty_wieght", "1", "unknown hyperparameter 'penalty_wieght'; did you mean "),
        ("warmup_steps", "1.5", r"warmup_steps: expected a whole number, .*int\(U\(.*got '1\.5'"),
        ("warmup_steps", "U(0, 5)", r"warmup_steps: .* not whole; write int\(U\(0, 5\)\)"),
        ("warmup_steps", "{1, 0.5}", r"warmup_steps: expected a whole number, .*got '0\.5'"),
        ("penalty_weight", "ten", r"penalty_weight: expected a number, .*10\^U.*got 'ten'"),
        ("penalty_weight", "10^U(1 5)", r"penalty_weight: expected a number, .*got '10\^U\(1 5\)'"),
        ("penalty_weight", "{1, x}", "penalty_weight: expected a number, .*got 'x'"),
        ("penalty_weight", "nan", "penalty_weight: expected a number, .*got 'nan'"),
        ("penalty_weight", "1e999", "penalty_weight: expected a number"),
        ("penalty_weight", "U(5, 1)", r"penalty_weight: U\(5, 1\) has its larger bound first"),
        ("centered", "U(0, 1)", r"centered: expected true, false or .*got 'U\(0, 1\)'"),
        ("centered", "1", "centered: expected true, false or .*got '1'"),
    ],
)
@pytest.mark.parametrize("number", [0, 3])
def test_bad_settings_are_refused_whatever_the_draw(
    number: int, name: str, text: str, why: str
) -> None:
    kind = Mixed if name == "centered" else FishrLike
    with pytest.raises(ValueError, match=why):
        draw(kind, "small", 0, number, {name: text})


def test_every_data_set_has_a_scale() -> None:
    assert {facts.scale for facts in DATASETS.values()} == set(SCALES)
    assert [name for name, facts in DATASETS.items() if facts.scale == "small"] == [
        "colored-mnist",
        "rotated-mnist",
    ]


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

    class Undecorated(Hparams):
        width: int = hparam(3, constant(3), key="width", help="never a field")

    with pytest.raises(TypeError, match=r"Undecorated\.width is not a field; decorate Undecorated"):
        defaults(Undecorated, "small")

    @dataclass(frozen=True)
    class Lists(Hparams):
        widths: tuple[int, ...] = hparam((3,), constant((3,)), key="widths", help="no such kind")

    with pytest.raises(TypeError, match=r"Lists\.widths must be one of bool, int, float, str"):
        defaults(Lists, "small")


def test_annotations_may_be_postponed() -> None:
    @dataclass(frozen=True)
    class Postponed(Hparams):
        rate: "float" = hparam(1, constant(1), key="rate", help="whole")  # noqa: RUF009

    assert draw(Postponed, "small", 0, 0, {"rate": "0.5"}).rate == 0.5


@pytest.mark.parametrize(("trial", "number"), [(-1, 1), (0, -1)])
def test_negative_numbers_are_refused(trial: int, number: int) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        draw(Hparams, "small", trial, number)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scale 'smal'; did you mean 'small'"):
        defaults(Hparams, "smal")


# Allowed values


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, ∞)", (0, 0.0, 1e300), (-1e-9, -1, math.inf, math.nan)),
        ("(0, ∞)", (1e-300,), (0, -1, math.inf, math.nan)),
        ("[0, 1)", (0, 0.5), (1, 1.0, -0.1, math.nan)),
        ("[0, 1]", (0, 1), (1.0001, -0.1)),
        ("(-∞, ∞)", (-1e300, 0), (-math.inf, math.inf, math.nan)),
        ("(-1, 2.5]", (2.5, 0), (-1, 2.6)),
    ],
)
def test_an_interval_holds_what_it_says(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    assert all(holds(interval, value) for value in inside)
    assert not any(holds(interval, value) for value in outside)


def test_a_wrong_interval_is_named() -> None:
    with pytest.raises(ValueError, match=r"such as '\[0, 1\)' or .* is expected, got '0 to 1'"):
        fixed(0.5, "0 to 1", key="share", help="a part")


@pytest.mark.parametrize(
    ("method", "name", "value", "told"),
    [
        ("erm", "lr", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("erm", "lr", math.nan, r"a number in \[0, ∞\), got nan"),
        ("erm", "lr", math.inf, r"a number in \[0, ∞\), got inf"),
        ("erm", "lr", "0.1", r"a number in \[0, ∞\), got '0.1'"),
        ("erm", "lr", True, r"a number in \[0, ∞\), got True"),
        ("erm", "weight_decay", -5.0, r"a number in \[0, ∞\), got -5.0"),
        ("erm", "batch_size", 0, r"a whole number in \[1, ∞\), got 0"),
        ("erm", "batch_size", 2.5, r"a whole number in \[1, ∞\), got 2.5"),
        ("erm", "dropout", 1.0, r"a number in \[0, 1\), got 1.0"),
        ("arm", "batch_size", 0, r"a whole number in \[1, ∞\), got 0"),
        ("dann", "penalty_weight", -3.0, r"a number in \[0, ∞\), got -3.0"),
        ("dann", "lr_g", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("cdann", "lr_d", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("dann", "weight_decay_g", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("dann", "grad_penalty", -3.0, r"a number in \[0, ∞\), got -3.0"),
        ("dann", "beta1", 1.5, r"a number in \[0, 1\), got 1.5"),
        ("dann", "d_steps_per_g_step", -1, r"a whole number in \[0, ∞\), got -1"),
        ("dann", "mlp_width", 0, r"a whole number in \[1, ∞\), got 0"),
        ("dann", "mlp_depth", 0, r"a whole number in \[1, ∞\), got 0"),
        ("dann", "mlp_dropout", 1.0, r"a number in \[0, 1\), got 1.0"),
        ("mtl", "batch_weight", 1.1, r"a number in \[0, 1\], got 1.1"),
        ("fish", "meta_lr", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("and-mask", "tau", 5.0, r"a number in \[0, 1\], got 5.0"),
        ("sand-mask", "tau", -0.1, r"a number in \[0, 1\], got -0.1"),
        ("sand-mask", "k", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("sagnet", "penalty_weight", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("groupdro", "eta", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("groupdro", "eta", math.nan, r"a number in \[0, ∞\), got nan"),
        ("mldg", "beta", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("fishr", "ema_decay", 1.0, r"a number in \[0, 1\), got 1.0"),
        ("fishr", "mean_weight", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("fishr", "warmup_steps", -1, r"a whole number in \[0, ∞\), got -1"),
        ("fishr", "centered", "false", "True or False, got 'false'"),
        ("fishr", "parameters", 3, "a text, got 3"),
        ("iga", "penalty_weight", -1.0, r"a number in \[0, ∞\), got -1.0"),
        ("iga", "ema_decay", 1.0, r"a number in \[0, 1\), got 1.0"),
        ("vrex", "ema_decay", 1.0, r"a number in \[0, 1\), got 1.0"),
        ("eqrm", "quantile", 1.0, r"a number in \(0, 1\), got 1.0"),
        ("eqrm", "quantile", -50.0, r"a number in \(0, 1\), got -50.0"),
        ("eqrm", "warmup_steps", 2500.5, r"a whole number in \[0, ∞\), got 2500.5"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, name: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be {told}$"):
        ALGORITHMS[method].Hparams(**{name: value})


@pytest.mark.parametrize("name", sorted({*ALGORITHMS, *VARIANTS}))
def test_whatever_a_search_draws_is_allowed(name: str) -> None:
    variant = VARIANTS.get(name)
    kind = ALGORITHMS[variant.algorithm if variant else name].Hparams
    settings = variant.settings if variant else {}
    own = {dataset for f in fields(kind) for dataset in f.metadata["datasets"]}
    for scale in (*SCALES, *own):
        for number in range(20):
            draw(kind, scale, 0, number, settings)


def test_a_small_value_that_makes_sense_is_allowed() -> None:
    for kind in {method.Hparams for method in ALGORITHMS.values()}:
        for f in fields(kind):
            low = 1 if f.metadata["allowed"] == "[1, ∞)" else 0
            if type(f.default) in (int, float) and f.metadata["allowed"][0] == "[":
                kind(**{f.name: type(f.default)(low)})
    for name in ("and-mask", "sand-mask"):
        ALGORITHMS[name].Hparams(tau=1.0)
    Hparams(lr=np.float64(0.1), batch_size=np.int64(3))


@pytest.mark.parametrize(
    ("method", "name"), [("urm", "output"), ("fishr", "reset"), ("iga", "parameters")]
)
def test_a_text_that_has_no_meaning_is_refused(
    method: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is planned, with the texts that have one."""
    command = ["hparams", method, "--dataset", "pacs", "--set", f"{name}=sigmoid"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert f"unknown {name} 'sigmoid'" in told
    field = next(f for f in fields(ALGORITHMS[method].Hparams) if f.name == name)
    assert field.default in field.metadata["allowed"]
    assert all(text in told for text in field.metadata["allowed"])


def test_a_method_of_ones_own_says_what_is_allowed() -> None:
    @dataclass(frozen=True)
    class Own(Hparams):
        margin: float = hparam(-0.5, uniform(-1, 1), key="margin", help="of any sign")
        shift: float = hparam(0.0, choice(-1.0, 1.0), key="shift", help="of any sign, too")
        share: float = fixed(0.5, "(0, 1)", key="share", help="a part")
        more: float = later(1.0, "[1, 2]", key="more", help="an option")

    assert Own(margin=-3.0, shift=-2.0).margin == -3.0
    shifts = {draw(Own, "small", 0, number).shift for number in range(12)}
    assert shifts == {-1.0, 0.0, 1.0}
    with pytest.raises(ValueError, match=r"margin must be a number in \(-∞, ∞\), got -inf"):
        Own(margin=-math.inf)
    unlimited = hparam(math.inf, constant(math.inf), "(0, ∞]", key="clip", help="none")
    assert unlimited.default == math.inf
    with pytest.raises(ValueError, match=r"share must be a number in \(0, 1\), got 1.0"):
        draw(Own, "small", 0, 0, {"share": "1"})
    with pytest.raises(ValueError, match=r"more must be a number in \[1, 2\], got 3.0"):
        Own(more=3.0)
    with pytest.raises(ValueError, match=r"default of margin is -0.5, which is not in \[0, 1\]"):
        hparam(-0.5, uniform(-1, 1), "[0, 1]", key="margin", help="of any sign")


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("erm", ["lr=-1", "weight_decay=-5"], "lr must be a number in [0, ∞), got -1.0"),
        ("iga", ["penalty_weight=-1"], "penalty_weight must be a number in [0, ∞), got -1.0"),
        ("fishr", ["mean_weight=-1"], "mean_weight must be a number in [0, ∞), got -1.0"),
        ("fishr-rescaled", ["ema_decay=1"], "ema_decay must be a number in [0, 1), got 1.0"),
    ],
)
def test_a_command_refuses_what_makes_no_sense(
    method: str, settings: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hparams", method, "--dataset", "pacs", "--set", *settings]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("scale", ["large", "domainnet"])
def test_the_mild_search_is_diwas(name: str, scale: str) -> None:
    """Its values of three hyperparameters, in all combinations; defaults of everything else."""
    kind = ALGORITHMS[name].Hparams
    given = search_settings(kind, scale, "mild")
    assert draw(kind, scale, 2, 0, given) == defaults(kind, scale)
    drawn = [asdict(draw(kind, scale, 0, number, given)) for number in range(1, 150)]
    grid = {(one.pop("lr"), one.pop("weight_decay"), one.pop("dropout")) for one in drawn}
    assert grid == {
        (lr, decay, dropout)
        for lr in (1e-5, 3e-5, 5e-5)
        for decay in (1e-4, 1e-6)
        for dropout in (0.0, 0.1, 0.5)
    }
    rest = asdict(defaults(kind, scale))
    for searched in ("lr", "weight_decay", "dropout"):
        del rest[searched]
    assert all(one == rest for one in drawn)
    if name in ("erm", "fishr"):  # ARM has another default
        assert rest["batch_size"] == 32


def test_other_searches() -> None:
    assert search_settings(Hparams, "small", "domainbed") == {}
    with pytest.raises(ValueError, match=r"the mild search is for large images .* leave out"):
        search_settings(Hparams, "small", "mild")
    with pytest.raises(ValueError, match="unknown search 'mid'; did you mean 'mild'"):
        search_settings(Hparams, "large", "mid")


def test_a_setting_wins_over_the_mild_search(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["hparams", "fishr", "--dataset", "pacs", "--draw", "3", "--search", "mild"]
    assert main([*command, "--json"]) == 0
    mild = json.loads(capsys.readouterr().out)
    assert mild["penalty_weight"] == 1000 and mild["lr"] in (1e-5, 3e-5, 5e-5)
    assert main([*command, "--json", "--set", "lr=0.5"]) == 0
    assert json.loads(capsys.readouterr().out) == mild | {"lr": 0.5}
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "draw 3, mild search" in out and "{0.0001, 1e-06}" in out
    assert main(["hparams", "fishr", "--dataset", "colored-mnist", "--search", "mild"]) == 2
    assert "the mild search is for large images" in capsys.readouterr().err
