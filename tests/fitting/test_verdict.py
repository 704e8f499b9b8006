"""The verdict on hand-made runs whose differences are known."""

import json
from collections.abc import Mapping

import pytest
import torch

from shoal.datasets import Domain, DomainDataset, splits
from shoal.fitting.verdict import average_and_worst, decide
from shoal.results.records import Record, RunResult

SIZES = {"a": 10, "b": 20, "c": 40}


def dataset() -> DomainDataset:
    domains = (
        Domain(name, torch.arange(size) % 4, torch.zeros(size, 3)) for name, size in SIZES.items()
    )
    return DomainDataset("made", ("n", "s", "e", "w"), tuple(domains))


def uneven(**counts: tuple[int, int]) -> DomainDataset:
    """Return a data set with so many examples of "no" and of "yes" in each domain."""
    domains = []
    for name, (no, yes) in counts.items():
        labels = torch.tensor([0] * no + [1] * yes)
        domains.append(Domain(name, labels, torch.zeros(no + yes, 3)))
    return DomainDataset("made", ("no", "yes"), tuple(domains))


def run(algorithm: str, domain: str, trial: int, accuracy: float) -> RunResult:
    def measured(step: int, value: float) -> Record:
        found = {name: {"held_out": 0.9} for name in SIZES if name != domain}
        found[domain] = {"kept": value, "held_out": value}
        return Record(step=step, accuracy=found, calibration_error={domain: {"kept": 0.1}})

    # The record before the last is better, and must not be read.
    return RunResult(
        dataset="made",
        algorithm=algorithm,
        test_domains=(domain,),
        trial=trial,
        draw=0,
        hparams={},
        records=(measured(0, 1.0), measured(9, accuracy)),
    )


def verdict(gains: Mapping[str, list[float]], trials: int = 1):  # type: ignore[no-untyped-def]
    """Return the verdict of ERM at 0.5 everywhere, and methods that gain so much by domain."""
    runs = []
    for trial in range(trials):
        for k, domain in enumerate(SIZES):
            runs.append(run("erm", domain, trial, 0.5))
            for name, gain in gains.items():
                runs.append(run(name, domain, trial, 0.5 + gain[k]))
    return decide(runs, dataset(), 0.2)


def test_a_method_that_is_better_everywhere_is_clearly_better() -> None:
    found = verdict({"fishr": [0.10, 0.11, 0.12]})
    assert (found.deploy, found.sure) == ("fishr", "clear")
    difference = found.comparisons["fishr"]
    assert difference.difference == pytest.approx(0.11)
    assert difference.error == pytest.approx(0.01 / 3**0.5)
    assert "better than ERM: +11.0 ± 0.6 points, better on 3 of 3 domains" in found.sentences[1]
    assert found.sentences[-2] == (
        "Expected accuracy on a new domain: about 61 % (60–62 % across the 3 tested, lowest on "
        "'a')."
    )


def test_a_method_that_is_better_by_more_than_its_error_is_probably_better() -> None:
    found = verdict({"fishr": [0.10, 0.02, 0.00]})
    assert (found.deploy, found.sure) == ("fishr", "likely")
    assert "Fishr is probably, but not certainly, better than ERM: +4.0 ±" in found.sentences[1]


@pytest.mark.parametrize("gain", [[0.1, -0.05, 0.0], [0.0, 0.0, 0.0], [-0.1, -0.1, -0.1]])
def test_no_method_beats_erm_by_more_than_its_error(gain: list[float]) -> None:
    found = verdict({"fishr": gain})
    assert (found.deploy, found.sure) == ("erm", "undecided")
    assert found.sentences[0] == "Deploy ERM."
    assert found.sentences[1] == (
        "No method is reliably better than plain training (ERM), so we keep ERM (3 domains held "
        "out, 1 split)."
    )


def test_two_pairs_are_too_few_to_be_clear() -> None:
    runs = [run("erm", d, 0, 0.5) for d in "ab"] + [
        run("fishr", "a", 0, 0.6),
        run("fishr", "b", 0, 0.63),
    ]
    assert decide(runs, dataset(), 0.2).sure == "likely"


def test_the_best_of_several_is_chosen_and_told_to_look_too_good() -> None:
    found = verdict({"fishr": [0.1, 0.11, 0.12], "coral": [0.2, 0.21, 0.22], "irm": [-0.1] * 3})
    assert found.deploy == "coral"
    assert (
        "Picking the best of 3 methods makes its score slightly optimistic." in found.sentences[-1]
    )
    assert any(line.startswith("Fishr compared with ERM: +11.0 ±") for line in found.sentences)


def test_one_domain_compares_nothing() -> None:
    runs = [run("erm", "a", 0, 0.5), run("fishr", "a", 0, 0.7)]
    found = decide(runs, dataset(), 0.2)
    assert (found.deploy, found.sure) == ("fishr", "untested")


def test_accuracy_is_of_the_whole_domain_and_of_the_last_record() -> None:
    one = run("erm", "b", 0, 0.0)
    last = one.records[-1]
    parts = splits(dataset(), 0, 0.2)["b"]
    last.accuracy["b"]["kept"], last.accuracy["b"]["held_out"] = 0.5, 0.25  # type: ignore[index]
    found = decide([one, run("erm", "a", 0, 0.5)], dataset(), 0.2)
    right = 0.5 * len(parts.kept) + 0.25 * len(parts.held_out)
    assert found.rows[0].domains["b"].mean == pytest.approx(right / 20)
    assert found.inside["erm"] == pytest.approx(0.9)


def test_a_run_that_failed_takes_its_pair_out_of_the_comparison() -> None:
    runs = [run("erm", d, t, 0.5) for d in SIZES for t in (0, 1)]
    runs += [run("fishr", d, 0, 0.6) for d in SIZES]
    found = decide(runs, dataset(), 0.2)
    assert found.comparisons["fishr"].pairs == 3


def test_trials_are_no_domains() -> None:
    # Three trials of three domains are three pairs: nine would make this "clear".
    found = verdict({"fishr": [0.10, 0.05, 0.02]}, trials=3)
    one = found.comparisons["fishr"]
    assert (one.pairs, one.wins) == (3, 3)
    assert one.error == verdict({"fishr": [0.10, 0.05, 0.02]}).comparisons["fishr"].error
    assert found.sure == "likely"


def test_trials_that_only_one_method_has_do_not_count() -> None:
    runs = [run("erm", d, t, 0.5 + 0.3 * t) for d in SIZES for t in (0, 1)]
    runs += [run("fishr", d, 0, 0.6) for d in SIZES]
    found = decide(runs, dataset(), 0.2)
    assert found.comparisons["fishr"].difference == pytest.approx(0.1)


def test_domains_that_were_not_left_out_are_told() -> None:
    runs = [run(name, d, 0, 0.5) for d in "ab" for name in ("erm", "fishr")]
    assert "(2 of 3 domains held out, 1 split)" in decide(runs, dataset(), 0.2).sentences[1]


def test_too_few_examples_to_hold_any_out() -> None:
    runs = [run(name, d, 0, 0.5) for d in SIZES for name in ("erm", "fishr")]
    for one in runs:
        for splits_of in one.records[-1].accuracy.values():
            splits_of.pop("held_out")  # type: ignore[attr-defined]
    runs[0].records[-1].accuracy["b"]["held_out"] = float("nan")  # type: ignore[index]
    found = decide(runs, dataset(), 0.0)
    assert found.inside == {"erm": None, "fishr": None}
    json.loads(json.dumps(found.as_json(), allow_nan=False))


def test_the_guess_is_the_most_frequent_class_of_the_other_domains() -> None:
    data = uneven(a=(6, 4), b=(2, 18), c=(13, 2))
    runs = [run(name, d, 0, 0.9) for d in "abc" for name in ("erm", "fishr")]
    found = decide(runs, data, 0.2)
    # Without a there are 15 no and 20 yes, without b 19 and 6, without c 8 and 22.
    right = {"a": 4 / 10, "b": 2 / 20, "c": 2 / 15}
    guess = found.majority.row
    assert guess.algorithm == "most frequent class"
    assert {name: cell.mean for name, cell in guess.domains.items()} == pytest.approx(right)
    assert guess.average is not None
    assert guess.worst is not None
    assert guess.average.mean == pytest.approx((4 / 10 + 2 / 20 + 2 / 15) / 3)
    assert guess.worst.mean == pytest.approx(2 / 20)
    # The domains that were not left out are trained on, and the average is of the others.
    some = decide([one for one in runs if one.test_domains != ("c",)], data, 0.2).majority.row
    assert {name: cell.mean for name, cell in some.domains.items()} == pytest.approx(
        {"a": 4 / 10, "b": 2 / 20}
    )
    assert some.average is not None
    assert some.average.mean == pytest.approx(0.25)


def guessed(accuracies: list[float], method: str = "erm"):  # type: ignore[no-untyped-def]
    """Return the verdict where the guess is right on 80, 85 and 90 % of the domains."""
    data = uneven(a=(80, 20), b=(85, 15), c=(90, 10))
    right = dict(zip("abc", accuracies, strict=True))
    runs = [run(method, d, trial, right[d]) for d in "abc" for trial in (0, 1)]
    return decide(runs, data, 0.2)


@pytest.mark.parametrize(("method", "title"), [("erm", "ERM"), ("fishr", "Fishr")])
def test_a_method_that_does_not_beat_the_guess_is_not_recommended(method: str, title: str) -> None:
    found = guessed([0.75, 0.80, 0.87], method)
    assert not found.majority.beaten
    assert found.majority.gain.difference == pytest.approx(-0.13 / 3)
    assert found.majority.gain.pairs == 3  # two trials of a domain are one
    assert found.sentences[0] == "Nothing useful was learned for an unseen domain."
    assert found.sentences[1].startswith(
        f"{title} scores 80.7 % there, but always predicting the other domains' most common class "
        "scores 85.0 % (-4.3 ± 0.7 points). Check the labels and the layout (--layout "
    )
    assert found.sentences[2].startswith("Deploy none of these models")
    assert not any(line.startswith(f"Deploy {title}") for line in found.sentences)


def test_a_method_that_beats_the_guess_is_recommended_and_the_guess_told() -> None:
    found = guessed([0.85, 0.90, 0.94])
    assert found.majority.beaten
    assert found.sentences[0] == "Deploy ERM."
    assert found.sentences[-1].endswith("most common class scores 85.0 %.")
    assert not any("Nothing useful" in line for line in found.sentences)


def test_the_guess_must_be_beaten_by_more_than_the_error() -> None:
    # Gains of 0, 0 and 3 points are 1 ± 1; of 0.1, 0 and 3 they are 1.033 ± 0.984.
    assert not guessed([0.80, 0.85, 0.93]).majority.beaten
    assert guessed([0.801, 0.85, 0.93]).majority.beaten
    # A model that always says this class is equal to it, and rounding must not help it.
    assert not guessed([0.8 + 2e-16, 0.85 + 2e-16, 0.9 + 2e-16]).majority.beaten


@pytest.mark.parametrize(("accuracy", "beaten"), [(0.79, False), (0.8, False), (0.81, True)])
def test_one_domain_has_no_error_to_beat_the_guess_by(accuracy: float, beaten: bool) -> None:
    data = uneven(a=(80, 20), b=(85, 15), c=(90, 10))
    found = decide([run("erm", "a", 0, accuracy)], data, 0.2)
    assert (found.majority.gain, found.majority.beaten) == (None, beaten)
    assert (found.sentences[0] == "Deploy ERM.") == beaten
    json.dumps(found.as_json(), allow_nan=False)


def test_the_guess_is_of_the_domains_that_the_method_has() -> None:
    data = uneven(a=(80, 20), b=(85, 15), c=(90, 10))
    runs = [run("erm", d, 0, 0.7) for d in "ab"] + [run("fishr", "c", 0, 0.1)]
    found = decide(runs, data, 0.2)
    assert found.deploy == "erm"
    assert "scores 82.5 % (-12.5 ± 2.5 points)" in found.sentences[1]


def test_an_average_is_shown_if_the_time_ended_within_a_split() -> None:
    runs = [run("erm", d, 0, 0.5 + k / 10) for k, d in enumerate("abc")] + [run("erm", "a", 1, 0.3)]
    (row,) = decide(runs, dataset(), 0.2).rows
    assert row.average is None
    average, worst = average_and_worst(row, "abc")
    assert average is not None and average.mean == pytest.approx((0.4 + 0.6 + 0.7) / 3)
    assert worst is not None and (worst.mean, worst.trials) == (pytest.approx(0.4), 1)
    # Without any run on a domain there is no average that could be compared with others.
    (row,) = decide([run("erm", d, 0, 0.5) for d in "ab"], dataset(), 0.2).rows
    assert average_and_worst(row, "abc") == (row.average, row.worst)
