"""Sentences of a diagnosis: what they say of the numbers, and never more than chance allows."""

import math
from itertools import combinations
from statistics import NormalDist
from typing import Any

import pytest

from shoal.report.interpretation import sentences

Found = dict[str, Any]
NAMES = ("photo", "art", "sketch")


def found(**changes: Any) -> Found:
    """Return as much of a diagnosis as sentences read."""
    names = changes.pop("names", NAMES)
    accuracies = changes.pop("accuracies", (0.95, 0.9, 0.6))
    traces = changes.pop("traces", (1.0, 2.0, 5.2))
    distances = changes.pop("distances", (1.0, 8.0, 9.0))
    trained = changes.pop("trained", (True, True, False))
    made: Found = {
        "algorithm": "erm",
        "weights": 100,
        "domains": {
            name: {
                "images": 400,
                "accuracy": accuracies[k],
                "trained_on": trained[k],
                "chain": {"trace:variance": traces[k]},
            }
            for k, name in enumerate(names)
        },
        "pairs": [
            {"domains": list(pair), "variance": distance}
            for pair, distance in zip(combinations(names, 2), distances, strict=False)
        ],
        "gaps": {"all": {"cosine": 0.95}},
        "inconsistency": {
            "full": {"pairs": [pair("photo", "art", 0.1, 0.2), pair("photo", "sketch", 0.6, 0.3)]}
        },
        "shuffles": shuffled(0),
    }
    return made | changes


def pair(a: str, b: str, risk: float, curvature: float, floored: int = 10) -> Found:
    score = max(abs(risk), abs(risk + curvature))
    values = {"risk": risk, "curvature": curvature, "floored": floored}
    return {"a": a, "b": b, "inconsistency": score, **values}


def shuffled(larger: int, domains: tuple[str, ...] = NAMES[:2]) -> Found:
    variance = {"gap": 3.0, "median": 0.25, "larger": larger}
    return {"domains": list(domains), "count": 99, "examples": [400], "variance": variance}


def test_all_sentences() -> None:
    assert sentences(found()) == [
        "Accuracy is 95.0 % in photo and 60.0 % in sketch: 35.0 ± 2.7 points apart, more than "
        "chance gives, but the model has seen examples of photo.",
        "Gradients vary most in sketch, 5.2 times as much as in photo (Tr C); the variances of "
        "sketch are the farthest from those of the others.",
        "Dealing the examples of photo and art out to these domains at random gives variances that "
        "differ as much in none of 99 cases: the difference is more than chance, 12 times a "
        "typical one.",
        "The cosine of variances and Hessian diagonals is 0.95 on average, so equal variances mean "
        "nearly proportional curvatures here.",
        "Inconsistency is largest from photo to sketch: 0.6 from their risks and 0.3 from their "
        "curvatures.",
        "Fishr, trained on these domains, would narrow that difference; whether that helps on a "
        "new domain, only a held-out domain can tell (shoal fit, shoal sweep).",
    ]


def test_accuracies_apart_by_chance() -> None:
    """The limit is that of a normal distribution for the best of three pairs."""
    n, base = 402, 0.9
    limit = NormalDist().inv_cdf(1 - 0.05 / 6)

    def gap_in_errors(worst: float) -> float:
        shares = [(400 * share + 1) / n for share in (base, worst)]
        return (base - worst) / math.sqrt(sum(p * (1 - p) / n for p in shares))

    inside = next(k for k in range(360, 0, -1) if gap_in_errors((k - 1) / 400) > limit)
    for right, words in ((inside, "which chance can give."), (inside - 1, "more than chance")):
        first = sentences(found(accuracies=(base, base, right / 400)))[0]
        assert words in first, right
    # All right everywhere: the error is not 0.
    (first, *_) = sentences(found(accuracies=(1.0, 1.0, 1.0)))
    assert first.endswith("0.0 ± 0.4 points apart, which chance can give.")
    (first, *_) = sentences(found(trained=(True, True, True)))
    assert first.endswith("points apart, more than chance gives.")


@pytest.mark.parametrize(("larger", "beyond"), [(4, True), (5, False)])
def test_one_of_twenty_shuffles_is_the_limit(larger: int, beyond: bool) -> None:
    told = sentences(found(shuffles=shuffled(larger)))
    assert f"in {larger} of 99 cases: the difference " in told[2]
    assert ("is more than chance" in told[2]) is beyond
    assert ("can be chance" in told[2]) is not beyond
    # What chance can give has no farthest domain, and gives no hope.
    assert ("the farthest" in told[1]) is beyond
    assert ("no reason to expect a gain from Fishr" in told[-1]) is not beyond
    assert "do not rule one out" in told[-1] or beyond


def test_no_domain_stands_out() -> None:
    # From 1.5 times the squared distance of the others.
    for distance, far in ((1.5, False), (1.51, True)):
        told = sentences(found(distances=(1.0, distance, distance)))[1]
        assert ("farthest" in told) is far
    two = {"names": NAMES[:2], "shuffles": shuffled(0)}
    assert sentences(found(**two))[1] == (
        "Gradients vary most in art, 2 times as much as in photo (Tr C)."
    )
    assert sentences(found(traces=(0.0, 1.0, 2.0)))[1] == "Gradients do not vary at all in photo."
    assert ", 7,700 times as much" in sentences(found(traces=(1.0, 2.0, 7700.0)))[1]


def test_other_weights_are_not_tested() -> None:
    made = found()
    del made["shuffles"]
    told = sentences(made)
    assert "was not tested" in told[2]
    assert len(told) == 5 and "Fishr" not in " ".join(told)


def test_methods_and_cosines() -> None:
    for name in ("fishr", "fishr-no-ema", "fishr+sma"):
        assert sentences(found(algorithm=name))[-1].startswith(
            "Fishr trained this model and left that difference. A larger penalty_weight narrows it;"
        )
    for cosine, words in ((0.9, "nearly"), (0.89, "roughly"), (0.5, "roughly"), (0.49, "little")):
        told = sentences(found(gaps={"all": {"cosine": cosine}}))
        assert words in told[3]
        assert ("curvatures is weak here" in told[-1]) is (cosine < 0.5)


def test_inconsistency_of_risks_or_of_flat_directions() -> None:
    def told(one: Found) -> str:
        return sentences(found(inconsistency={"full": {"pairs": [one]}}))[4]

    assert told(pair("a", "b", -0.5, 0.2)) == (
        "Inconsistency is largest from a to b; all of it is the difference of their risks, -0.5."
    )
    assert told(pair("a", "b", 0.1, 8.0, floored=51)) == (
        "Inconsistency is largest from a to b: 0.1 from their risks and 8 from their curvatures, "
        "which says little, because a is flat in 51 % of its directions."
    )
    assert told(pair("a", "b", 0.1, 8.0, floored=50)).endswith("from their curvatures.")
