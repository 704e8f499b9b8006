"""Verdicts on made-up scores: what is deployed, which words are used, and every sentence."""

import json

import numpy as np
import pytest

from shoal.fitting.estimates import Candidate, Estimates, Predictions
from shoal.fitting.verdict import decide
from tests.fitting.estimated import CANDIDATES, estimates

GUESS = "For comparison: always predicting the other domains' most frequent class scores 50.0 %."


def crossed(count: str, title: str, times: str) -> str:
    return (
        f"Each domain was scored by the candidate that the other {count} chose ({title}, {times} "
        "times). The runs behind that choice had trained on it (cross-fitted), so this can be a "
        "little too good."
    )


def nested(scores: dict[str, list[float]], names: str) -> dict[str, dict[tuple[str, str], float]]:
    """Return scores of pairs: as those with one domain left out, and a point lower."""
    return {
        key: {
            (d, v): row[k] - 0.01
            for k, v in enumerate(names[: len(row)])
            for d in names[: len(row)]
            if d != v
        }
        for key, row in scores.items()
    }


def test_two_domains_have_no_words() -> None:
    found = decide(estimates({"logistic": [0.70, 0.75], "forest": [0.75, 0.79]}))
    assert (found.deploy, found.decision.sure) == ("forest", "untested")
    assert found.sentences == (
        "Deploy random forest.",
        "Compared with logistic regression, the simplest candidate: +4.5 ± 0.5 points, better on "
        "2 of 2 domains. Two domains cannot show that it is better.",
        "Left out, the two domains score between 75.0 % ('a') and 79.0 % ('b'); two places cannot "
        "bound a third.",
        "Expected accuracy on a new domain: about 77 %.",
        crossed("one", "random forest", "2 of 2"),
        GUESS,
    )


def test_a_close_race_of_three_domains() -> None:
    found = decide(
        estimates(
            {
                "logistic": [0.70, 0.75, 0.80],
                "forest": [0.71, 0.74, 0.83],
                "erm": [0.69, 0.76, 0.79],
            }
        )
    )
    assert (found.deploy, found.decision.best) == ("logistic", "forest")
    assert found.decision.sure == "undecided"
    assert found.sentences == (
        "Deploy logistic regression.",
        "Random forest does better on average (+1.0 ± 1.2 points), but not by more than the "
        "standard error, so the simplest candidate is deployed.",
        "No other candidate is shown to be better. That does not mean that all are equally good.",
        "With no part in training or in the choice, the three domains score between 70.0 % ('a') "
        "and 80.0 % ('c'); three places "
        "cannot bound a fourth.",
        "Expected accuracy on a new domain: about 75 %; nine in ten new domains like these should "
        "be between 54 and 88 %.",
        crossed("two", "logistic regression", "2 of 3"),
        GUESS,
    )
    assert not any("as good" in line for line in found.sentences)


def test_a_clear_winner_of_four_domains_and_one_that_is_within_an_error_of_it() -> None:
    found = decide(
        estimates(
            {
                "logistic": [0.70, 0.75, 0.80, 0.65],
                "forest": [0.76, 0.80, 0.86, 0.71],
                "erm": [0.73, 0.75, 0.79, 0.70],
                "fishr": [0.765, 0.805, 0.87, 0.70],
            }
        )
    )
    assert (found.deploy, found.decision.best, found.decision.sure) == ("forest", "fishr", "clear")
    assert found.sentences[:6] == (
        "Deploy random forest.",
        "It is clearly better than logistic regression, the simplest candidate: +5.8 ± 0.2 points, "
        "better on 4 of 4 domains.",
        "It is probably better than plain training (ERM): +4.0 ± 1.3 points, better on 4 of 4 "
        "domains.",
        "Fishr has the best average, but random forest is simpler and within one standard error "
        "of it (-0.3 ± 0.4 points).",
        "With no part in training or in the choice, the four domains score between 70.0 % ('d') "
        "and 86.0 % ('c'); four places "
        "cannot bound a fifth.",
        "Expected accuracy on a new domain: about 78 %; nine in ten new domains like these should "
        "be between 56 and 91 %.",
    )


def test_three_domains_are_too_few_to_be_clear() -> None:
    scores = {"logistic": [0.70, 0.75, 0.80], "forest": [0.80, 0.8501, 0.9]}
    found = decide(estimates(scores))
    assert found.decision.differences["forest"].p < 0.01
    assert found.decision.sure == "likely"
    # A fourth of five rows is no fourth.
    scores = {"logistic": [*scores["logistic"], 0.6], "forest": [*scores["forest"], 0.7]}
    assert decide(estimates(scores)).decision.sure == "clear"
    assert decide(estimates(scores, examples=[400, 400, 400, 5])).decision.sure == "likely"


def test_eight_domains_with_nested_choices() -> None:
    base = [0.72, 0.78, 0.80, 0.84, 0.85, 0.88, 0.90, 0.94]
    noise = [0.012, -0.004, 0.003, -0.01, 0.006, 0.001, -0.007, 0.002]
    scores = {
        "logistic": [b - 0.06 + e for b, e in zip(base, noise, strict=True)],
        "extra": base,
        "erm": [b - 0.014 + 2 * e for b, e in zip(base, noise, strict=True)],
    }
    found = decide(estimates(scores, pairs=nested(scores, "abcdefgh")))
    assert found.sentences == (
        "Deploy extra trees.",
        "It is clearly better than logistic regression, the simplest candidate: +6.0 ± 0.3 points, "
        "better on 8 of 8 domains.",
        "It is probably better than plain training (ERM): +1.3 ± 0.5 points, better on 7 of 8 "
        "domains.",
        "Expected accuracy on a new domain: about 84 % (between 72 and 94 % on the 8 left out, "
        "worst on 'a'); nine in ten new domains like these should be between 64 and 95 %.",
        "Each domain was scored by the candidate that the other seven chose (extra trees, 8 of 8 "
        "times), by runs that never saw it (nested).",
        GUESS,
    )


def test_what_is_enough_to_deploy_does_not_show_that_it_is_better() -> None:
    base = [0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.70, 0.72, 0.74, 0.76, 0.78, 0.92]
    gains = [0.03, -0.02, 0.03, 0.01, -0.03, 0.04, 0.0, 0.03, -0.02, 0.01, 0.04, -0.01]
    found = decide(
        estimates({"erm": base, "fishr": [b + g for b, g in zip(base, gains, strict=True)]})
    )
    assert found.sentences[:2] == (
        "Deploy Fishr.",
        "Compared with plain training (ERM), the simplest candidate: +0.9 ± 0.7 points, better on "
        "7 of 12 domains. That is enough to deploy it, but not enough to show that it is better.",
    )
    assert found.decision.sure == "undecided"
    assert "the other 11 chose (Fishr, " in found.sentences[3]


def test_the_words_are_against_all_candidates_that_were_tried() -> None:
    # 1.0 ± 0.4 points on four domains: p is 0.04 alone, and four times that as the best of five.
    base = [0.70, 0.75, 0.80, 0.65]
    better = [0.72, 0.755, 0.805, 0.66]
    alone = decide(estimates({"erm": base, "fishr": better}))
    assert alone.decision.sure == "clear"
    worse = {key: [b - 0.02 for b in base] for key in ("forest", "extra", "coral")}
    among = {"forest": worse["forest"], "extra": worse["extra"], "erm": base, "fishr": better}
    found = decide(estimates(among | {"coral": worse["coral"]}))
    assert found.deploy == "fishr"
    assert "Compared with plain training (ERM): +1.0 ± 0.4 points" in found.sentences[2]
    assert found.sentences[2].endswith("That is not enough to show that it is better.")


def test_below_chance_comes_first() -> None:
    found = decide(
        estimates(
            {"erm": [0.93, 0.91, 0.88, 0.84, 0.44], "fishr": [0.92, 0.9, 0.89, 0.85, 0.45]},
            names=["s1", "s2", "s3", "s4", "s5"],
        )
    )
    assert found.sentences[:2] == (
        "Careful: on 's5' ERM is worse than chance: 44.0 % against 50.0 %.",
        "Deploy ERM.",
    )
    assert [one.domain for one in found.decision.shortfalls] == ["s5"]


def test_below_the_most_frequent_class_of_the_domain_comes_first() -> None:
    scores = {"logistic": [0.80, 0.79, 0.72, 0.74]}
    names = ["cleveland", "hungary", "switzerland", "va"]
    guess = dict(zip(names, [0.46, 0.36, 0.07, 0.26], strict=True))
    found = decide(estimates(scores, names=names, majority=[0.54, 0.64, 0.935, 0.745], guess=guess))
    assert found.sentences[0] == (
        "Careful: on 2 of 4 domains logistic regression is worse than always predicting that "
        "domain's most frequent class: 'switzerland' 72.0 % against 93.5 %, 'va' 74.0 % against "
        "74.5 %."
    )
    assert found.sentences[1:3] == (
        "Deploy logistic regression.",
        "Logistic regression is the only candidate.",
    )
    one = decide(estimates(scores, names=names, majority=[0.54, 0.64, 0.935, 0.74], guess=guess))
    assert one.sentences[0] == (
        "Careful: on 'switzerland' logistic regression is worse than always predicting that "
        "domain's most frequent class: 72.0 % against 93.5 %."
    )
    many = decide(
        estimates(
            {"erm": [0.6] * 9},
            majority=[0.7] * 5 + [0.5] * 4,
            guess=dict.fromkeys("abcdefghi", 0.3),
        )
    )
    assert "'a' 60.0 % against 70.0 %" in many.sentences[0]
    assert many.sentences[0].endswith(", and 2 more.")


def test_a_tiny_domain() -> None:
    found = decide(
        estimates(
            {"logistic": [0.80, 0.78, 0.82, 0.2], "forest": [0.84, 0.82, 0.87, 0.2]},
            examples=[1500, 1200, 900, 5],
        )
    )
    assert found.deploy == "forest"
    assert found.sentences[0] == (
        "Careful: on 'd' (5 examples) random forest is worse than chance: 20.0 % against 50.0 %."
    )
    assert found.sentences[2].startswith("It is probably better than logistic regression, the ")
    assert found.sentences[-1] == "Small domains count less than 1: 'd' (5 examples) counts 0.14."
    assert found.as_json()["methods"]["forest"]["average"]["mean"] == pytest.approx(
        np.average([0.84, 0.82, 0.87, 0.2], weights=[1500 / 1530, 1200 / 1230, 900 / 930, 5 / 35])
    )


def test_not_enough_time() -> None:
    found = decide(estimates({"erm": [0.8, 0.7, None, None], "fishr": [0.85, 0.8, None, None]}))
    assert (found.deploy, found.decision.sure) == ("erm", "untested")
    assert found.sentences == (
        "Not enough time or runs: only 2 of 4 domains were left out, so there is no verdict.",
        "ERM, the simplest candidate, is deployed; how it does on a new domain is not known.",
        "The same command with more --time or --runs continues the comparison.",
    )
    written = found.as_json()
    assert (written["expectation"], written["best"], written["complete"]) == (None, None, False)
    assert written["methods"]["erm"]["average"] is None
    assert found.useful
    failed = decide(
        estimates(
            {"erm": [0.8, 0.7, None], "fishr": [0.85, 0.8, None]},
            failed=frozenset({("erm", "c"), ("fishr", "c")}),
        )
    )
    assert failed.sentences[0] == "No verdict: runs failed, so only 2 of 3 domains were left out."


def test_a_candidate_without_some_domain_is_not_compared() -> None:
    found = decide(
        estimates({"erm": [0.8, 0.7, 0.75], "fishr": [0.9, None, 0.9], "coral": [0.7, 0.6, 0.7]})
    )
    assert found.deploy == "erm"
    assert set(found.decision.differences) == {"coral"}
    assert found.sentences[-1] == "Not enough time or runs to compare Fishr."
    assert set(found.as_json()["methods"]) == {"erm", "coral"}
    # Without the simplest, the simplest of the others is compared with.
    found = decide(estimates({"erm": [0.8, None], "fishr": [0.9, 0.9], "coral": [0.7, 0.6]}))
    assert (found.deploy, found.as_json()["baseline"]) == ("fishr", "fishr")


@pytest.mark.parametrize(
    ("seconds", "more"),
    [
        (1.0, "5 seconds"),
        (41.0, "45 seconds"),
        (56.0, "1 minute"),
        (61.0, "2 minutes"),  # what is told must be enough
        (301.0, "6 minutes"),
    ],
)
def test_what_more_time_would_buy(seconds: float, more: str) -> None:
    found = decide(
        estimates(
            {"erm": [0.8, 0.7, 0.75], "fishr": [0.9, None, 0.9], "coral": [None, None, None]},
            more_seconds=seconds,
        )
    )
    assert found.sentences[-1] == (
        "Not enough time or runs to compare Fishr, CORAL. The same command with about "
        f"{more} more would be enough."
    )


def test_what_a_nested_choice_would_take() -> None:
    scores = {"erm": [0.8, 0.7, 0.75], "fishr": [0.9, 0.8, 0.9]}
    told = " ".join(decide(estimates(scores, nesting_seconds=301.0)).sentences)
    assert "can be a little too good. About 6 minutes more (--time) would nest" in told
    assert "would nest" not in " ".join(decide(estimates(scores)).sentences)
    short = decide(estimates({"erm": [0.8, None], "fishr": [None, None]}, more_seconds=41.0))
    assert short.sentences[-1] == (
        "The same command with about 45 seconds more would compare all candidates."
    )


def test_why_candidates_are_not_compared() -> None:
    scores = {
        "erm": [0.8, 0.7, 0.75],
        "fishr": [0.9, None, 0.9],
        "coral": [0.99, 0.99, 0.99],
    }
    found = decide(
        estimates(
            scores,
            failed=frozenset({("fishr", "b")}),
            collapsed=frozenset({"coral"}),
            inside={"coral": 0.413},
            more_seconds=20.0,
        )
    )
    assert found.deploy == "erm"
    assert found.sentences[-2:] == (
        "CORAL is not compared: it did not learn even the domains that it trained on (41.3 % "
        "there).",
        "Not compared, because runs failed: Fishr.",
    )
    assert "is the only candidate" in " ".join(found.sentences)


def test_unequal_trials_have_an_average_a_worst_and_a_calibration_error() -> None:
    found = decide(
        estimates(
            {"erm": [[0.5, 0.3], 0.6, [0.7, 0.75, 0.8]]},
            majority=0.2,
            calibration_errors={"erm": {"a": [0.1, 0.2], "b": [0.3], "c": [0.0, 0.1, 0.2]}},
        )
    ).as_json()
    row = found["methods"]["erm"]
    # Trials are averaged within domains first; the lowest trial, 0.3, is no domain.
    assert row["average"]["mean"] == pytest.approx((0.4 + 0.6 + 0.75) / 3)
    assert row["worst"]["mean"] == pytest.approx(0.4)
    assert row["calibration_error"]["mean"] == pytest.approx((0.15 + 0.3 + 0.1) / 3)
    assert row["domains"]["c"] == {
        "mean": pytest.approx(0.75),
        "error": pytest.approx(np.std([0.7, 0.75, 0.8]) / 3**0.5),
        "trials": 3,
    }
    assert found["trials"] == 3


def test_trials_are_no_domains() -> None:
    once = {"erm": [0.5, 0.6, 0.7], "fishr": [0.6, 0.65, 0.72]}
    often = {key: [[value] * 9 for value in row] for key, row in once.items()}
    one, many = (decide(estimates(scores)).decision for scores in (once, often))
    assert many.differences["fishr"] == one.differences["fishr"]
    assert many.differences["fishr"].pairs == 3


def test_the_worst_domain_judges_without_words() -> None:
    found = decide(
        estimates(
            {
                "logistic": [0.93, 0.91, 0.88, 0.84, 0.44],
                "forest": [0.79, 0.79, 0.80, 0.78, 0.79],
                "erm": [0.92, 0.9, 0.89, 0.85, 0.45],
            },
            judge="worst",
        )
    )
    assert (found.deploy, found.decision.sure) == ("forest", "untested")
    assert found.sentences[:3] == (
        "Deploy random forest.",
        "Judged by the worst domain: random forest 78.0 % ('d'), logistic regression 44.0 % "
        "('e'), ERM 45.0 % ('e').",
        "One worst domain cannot show that a candidate is better elsewhere.",
    )


def test_the_worst_domain_is_the_one_that_the_judge_sees() -> None:
    """Five rows count as little: the forest's 20 % there are not its worst domain."""
    found = decide(
        estimates(
            {"forest": [0.2, 0.7, 0.8], "erm": [0.45, 0.46, 0.46]},
            judge="worst",
            examples=[5, 1000, 1000],
            majority=0.4,
        )
    )
    assert found.deploy == "forest"
    # 5 / 35 · 20 % + 30 / 35 · 71 %, of the mean with weights 5 / 35 and 1000 / 1030.
    assert found.sentences[2] == (
        "Judged by the worst domain: random forest 20.0 % ('a', counted as 64 % because it has 5 "
        "examples), ERM 45.0 % ('a', counted as 46 % because it has 5 examples)."
    )


def test_of_a_loss_less_is_better() -> None:
    found = decide(
        estimates(
            {
                "logistic": [0.80, 0.79, 0.72, 0.74, 0.80, 0.83],
                "forest": [0.73, 0.73, 0.67, 0.69, 0.74, 0.78],
            },
            metric="log-loss",
            majority=0.81,
            chance=1.79,
        )
    )
    assert found.sentences[:3] == (
        "Deploy random forest.",
        "It is clearly better than logistic regression, the simplest candidate: -0.057 ± 0.003 "
        "log-loss, better on 6 of 6 domains.",
        "Expected log-loss on a new domain: about 0.72 (between 0.67 and 0.78 on the 6 left out, "
        "worst on 'f'); nine in ten new domains like these should be between 0.64 and 0.81.",
    )
    assert found.sentences[-1] == (
        "For comparison: always predicting the other domains' class frequencies scores 0.810."
    )
    row = found.as_json()["methods"]["logistic"]
    assert row["worst"]["mean"] == 0.83
    short = decide(estimates({"erm": [0.9, 0.5]}, metric="log-loss", majority=0.6, chance=0.69))
    assert short.sentences[0] == ("Careful: on 'a' ERM is worse than chance: 0.900 against 0.690.")


def test_a_domain_without_a_score_is_named_and_does_not_count() -> None:
    nan = float("nan")
    scores = {"erm": [0.8, nan, 0.7, 0.75], "fishr": [0.81, nan, 0.74, 0.79]}
    found = decide(estimates(scores, metric="auroc"))
    assert found.sentences[-1] == "No AUROC on 'b', so it does not count."
    assert found.decision.estimates.domains == ("a", "c", "d")
    json.dumps(found.as_json(), allow_nan=False)
    found = decide(estimates({"erm": [0.8, nan, nan]}, metric="auroc"))
    assert found.sentences[0] == (
        "No verdict: there is no AUROC on 'b', 'c', and the rest is too little to compare."
    )


@pytest.mark.parametrize(("method", "title"), [("erm", "ERM"), ("forest", "Random forest")])
def test_a_model_that_does_not_beat_the_guess_is_not_recommended(method: str, title: str) -> None:
    guess = {"a": 0.80, "b": 0.85, "c": 0.90}
    found = decide(estimates({method: [0.75, 0.80, 0.87]}, guess=guess))
    assert not found.useful
    assert found.decision.gain is not None
    assert found.decision.gain.difference == pytest.approx(-0.13 / 3)
    assert found.sentences[0] == "Nothing useful was learned for an unseen domain."
    assert found.sentences[1].startswith(
        f"{title} scores 80.7 % there, but always predicting the other domains' most frequent "
        "class scores 85.0 % (-4.3 ± 0.7 points). Check the labels and the layout (--layout "
    )
    assert found.sentences[2].startswith("Deploy none of these models")
    assert not any(line.startswith(("Deploy ERM", "Deploy random")) for line in found.sentences)
    assert not any("Expected" in line for line in found.sentences)


def test_the_guess_must_be_beaten_by_more_than_the_error() -> None:
    guess = {"a": 0.80, "b": 0.85, "c": 0.90}
    # Gains of 0, 0 and 3 points are 1 ± 1; of 0.1, 0 and 3 they are 1.033 ± 0.984.
    found = decide(estimates({"erm": [0.80, 0.85, 0.93]}, guess=guess))
    assert found.sentences[0] == (
        "It is not shown that anything useful was learned for an unseen domain."
    )
    assert decide(estimates({"erm": [0.801, 0.85, 0.93]}, guess=guess)).useful
    # A model that always says this class is equal to it, and rounding must not help it.
    equal = estimates({"erm": [0.8 + 2e-16, 0.85 + 2e-16, 0.9 + 2e-16]}, guess=guess)
    assert not decide(equal).useful


def test_a_temperature_is_told_with_its_effect() -> None:
    random = np.random.default_rng(0)
    predictions = {}
    for name in "abc":
        sure = np.log([[0.99, 0.01]] * 200)
        predictions[name] = Predictions(sure, (random.random(200) < 0.25).astype(np.int64))
    made = estimates({"erm": [0.75, 0.75, 0.75]}, predictions={"erm": predictions})
    found = decide(made)
    one = found.decision.temperature
    assert one is not None and one.helps and one.value > 2
    (told,) = [line for line in found.sentences if "temperature" in line]
    assert told.startswith(f"Its probabilities are softened (temperature {one.value:.2f}). With ")
    assert f"calibration error from {100 * one.calibration_error_before:.1f} to " in told
    assert found.as_json()["temperature"]["value"] == one.value
    # It is not told of without predictions on every domain that counts.
    del predictions["b"]
    assert decide(made).decision.temperature is None


def test_everything_in_the_card_is_plain() -> None:
    found = decide(
        estimates({"logistic": [0.70, 0.75, 0.80], "erm": [0.71, 0.74, 0.83]}, inside={"erm": 0.9})
    )
    written = found.as_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written | {
        "expectation": written["expectation"]
        | {"interval": list(written["expectation"]["interval"])}
    }
    assert written["baseline"] == "logistic"
    assert written["differences"]["erm"]["difference"] == pytest.approx(0.01)
    assert written["methods"]["erm"]["inside"] == 0.9
    assert written["methods"]["logistic"]["inside"] is None
    assert written["weights"] == pytest.approx(dict.fromkeys("abc", 400 / 430))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"metric": "recall"}, "unknown metric 'recall'"),
        ({"judge": "best"}, "unknown judge 'best'"),
        ({"scores": {"erm": {"x": [0.5]}}}, "unknown domain 'x'"),
        ({"scores": {"irm": {"a": [0.5]}}}, "unknown candidate 'irm'"),
        ({"scores": {"erm": {"a": []}}}, "erm has no trial on 'a'; omit the domain"),
        ({"guess": {}}, "guess lacks the domains a, b"),
        ({"candidates": ()}, "candidates need keys that differ, got none"),
        (
            {"candidates": (CANDIDATES["erm"], CANDIDATES["forest"])},
            r"in the order of their families, .*; got erm \(erm\), forest \(trees\)",
        ),
        ({"candidates": (Candidate("x", "X", "tree"),)}, "unknown family 'tree'"),
    ],
)
def test_estimates_that_make_no_sense(change: dict[str, object], wrong: str) -> None:
    both = {"a": 0.5, "b": 0.5}
    given = {
        "candidates": (CANDIDATES["erm"],),
        "examples": {"a": 10, "b": 10},
        "scores": {"erm": {"a": [0.5]}},
        "guess": both,
        "majority": both,
        "chance": both,
    }
    with pytest.raises(ValueError, match=wrong):
        Estimates(**(given | change))  # type: ignore[arg-type]


def test_a_few_rows_choose_nothing() -> None:
    scores = {"erm": [0.8, 0.8, 0.8, 0.8], "fishr": [0.8, 0.99, 0.98, 0.99]}
    found = decide(estimates(scores, examples=[1, 2, 4, 5]))
    told = " ".join(found.sentences)
    assert found.deploy == "erm"
    assert (
        "points), but there are too few examples to choose by, so the simplest candidate is "
        "deployed." in told
    )
    assert "So few examples cannot show that a candidate is better." in told
    assert found.decision.sure == "untested" and "better than" not in told
    assert "not by more than" not in told and "'a' (1 example) counts 0.03" in told
    worst = " ".join(decide(estimates(scores, examples=[1, 2, 4, 5], judge="worst")).sentences)
    assert "by this judge, but there are too few examples to choose by, so the simpler" in worst
