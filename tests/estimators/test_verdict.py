"""Which method to deploy: by hand-made runs whose differences are known."""

import json
from collections.abc import Mapping

import pytest
import torch

from shoal.datasets import Domain, DomainDataset, splits
from shoal.estimators.verdict import verdict_of
from shoal.protocol.records import Finished, Measured

SIZES = {"a": 10, "b": 20, "c": 40}


def dataset() -> DomainDataset:
    domains = (
        Domain(name, torch.arange(size) % 2, torch.zeros(size, 3)) for name, size in SIZES.items()
    )
    return DomainDataset("made", ("no", "yes"), tuple(domains))


def run(algorithm: str, domain: str, trial: int, accuracy: float) -> Finished:
    def measured(step: int, value: float) -> Measured:
        found = {name: {"held_out": 0.9} for name in SIZES if name != domain}
        found[domain] = {"kept": value, "held_out": value}
        return Measured(step, found, {domain: {"kept": 0.1}})

    # The record before the last is better, and must not be read.
    return Finished(
        "made", algorithm, (domain,), trial, 0, {}, (measured(0, 1.0), measured(9, accuracy))
    )


def verdict(gains: Mapping[str, list[float]], trials: int = 1):  # type: ignore[no-untyped-def]
    """Return the verdict of ERM at 0.5 everywhere, and methods that gain so much by domain."""
    runs = []
    for trial in range(trials):
        for k, domain in enumerate(SIZES):
            runs.append(run("erm", domain, trial, 0.5))
            for name, gain in gains.items():
                runs.append(run(name, domain, trial, 0.5 + gain[k]))
    return verdict_of(runs, dataset(), 0.2)


def test_a_method_that_is_better_everywhere_is_clearly_better() -> None:
    found = verdict({"fishr": [0.10, 0.11, 0.12]})
    assert (found.deploy, found.sure) == ("fishr", "clear")
    difference = found.comparisons["fishr"]
    assert difference.difference == pytest.approx(0.11)
    assert difference.error == pytest.approx(0.01 / 3**0.5)
    assert "+11.0 ± 0.6 points over erm, on 3 of 3 domains" in found.sentences[1]
    assert "61.0 % right" in found.sentences[-1]
    assert "60.0 % on the hardest, 'a'" in found.sentences[-1]


def test_a_method_that_is_better_by_more_than_its_error_is_probably_better() -> None:
    found = verdict({"fishr": [0.10, 0.02, 0.00]})
    assert (found.deploy, found.sure) == ("fishr", "likely")
    assert "probably better, not certainly" in found.sentences[1]


@pytest.mark.parametrize("gain", [[0.1, -0.05, 0.0], [0.0, 0.0, 0.0], [-0.1, -0.1, -0.1]])
def test_no_method_beats_erm_by_more_than_its_error(gain: list[float]) -> None:
    found = verdict({"fishr": gain})
    assert (found.deploy, found.sure) == ("erm", "undecided")
    assert found.sentences[0] == "Deploy erm."
    assert "No method beats erm by more than its error" in found.sentences[1]


def test_two_pairs_are_too_few_to_be_clear() -> None:
    runs = [run("erm", d, 0, 0.5) for d in "ab"] + [
        run("fishr", "a", 0, 0.6),
        run("fishr", "b", 0, 0.63),
    ]
    assert verdict_of(runs, dataset(), 0.2).sure == "likely"


def test_the_best_of_several_is_chosen_and_told_to_look_too_good() -> None:
    found = verdict({"fishr": [0.1, 0.11, 0.12], "coral": [0.2, 0.21, 0.22], "irm": [-0.1] * 3})
    assert found.deploy == "coral"
    assert "best of 3 methods looks a little better" in found.sentences[-1]
    assert any(line.startswith("fishr: +11.0") for line in found.sentences)


def test_one_domain_compares_nothing() -> None:
    runs = [run("erm", "a", 0, 0.5), run("fishr", "a", 0, 0.7)]
    found = verdict_of(runs, dataset(), 0.2)
    assert (found.deploy, found.sure) == ("fishr", "untested")


def test_accuracy_is_of_the_whole_domain_and_of_the_last_record() -> None:
    one = run("erm", "b", 0, 0.0)
    last = one.measured[-1]
    parts = splits(dataset(), 0, 0.2)["b"]
    last.accuracy["b"]["kept"], last.accuracy["b"]["held_out"] = 0.5, 0.25  # type: ignore[index]
    found = verdict_of([one, run("erm", "a", 0, 0.5)], dataset(), 0.2)
    right = 0.5 * len(parts.kept) + 0.25 * len(parts.held_out)
    assert found.rows[0].domains["b"].mean == pytest.approx(right / 20)
    assert found.inside["erm"] == pytest.approx(0.9)


def test_a_run_that_failed_takes_its_pair_out_of_the_comparison() -> None:
    runs = [run("erm", d, t, 0.5) for d in SIZES for t in (0, 1)]
    runs += [run("fishr", d, 0, 0.6) for d in SIZES]
    found = verdict_of(runs, dataset(), 0.2)
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
    found = verdict_of(runs, dataset(), 0.2)
    assert found.comparisons["fishr"].difference == pytest.approx(0.1)


def test_domains_that_were_not_left_out_are_told() -> None:
    runs = [run(name, d, 0, 0.5) for d in "ab" for name in ("erm", "fishr")]
    assert "(2 of 3 domains left out, 1 trial)" in verdict_of(runs, dataset(), 0.2).sentences[1]


def test_too_few_examples_to_hold_any_out() -> None:
    runs = [run(name, d, 0, 0.5) for d in SIZES for name in ("erm", "fishr")]
    for one in runs:
        for splits_of in one.measured[-1].accuracy.values():
            splits_of.pop("held_out")  # type: ignore[attr-defined]
    runs[0].measured[-1].accuracy["b"]["held_out"] = float("nan")  # type: ignore[index]
    found = verdict_of(runs, dataset(), 0.0)
    assert found.inside == {"erm": None, "fishr": None}
    json.loads(json.dumps(found.as_json(), allow_nan=False))
