"""Estimates from hand-made runs: what is read of their records."""

import json
from dataclasses import replace

import pytest
import torch

from shoal.catalogue import BASELINES
from shoal.datasets import Domain, DomainDataset, splits
from shoal.fitting.run_estimates import estimates_of
from shoal.fitting.verdict import decide
from shoal.results.records import Record, RunResult

SIZES = {"a": 10, "b": 20, "c": 40}
METHODS = ("erm", "fishr")


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


def test_accuracy_is_of_the_whole_domain_and_of_the_last_record() -> None:
    one = run("erm", "b", 0, 0.0)
    parts = splits(dataset(), 0, 0.2)["b"]
    measured = {**one.last.accuracy, "b": {"kept": 0.5, "held_out": 0.25}}
    one = replace(one, records=(one.records[0], replace(one.last, accuracy=measured)))
    found = estimates_of([one, run("erm", "a", 0, 0.5)], dataset(), 0.2, METHODS)
    right = 0.5 * len(parts.kept) + 0.25 * len(parts.held_out)
    assert found.scores == {"erm": {"b": [pytest.approx(right / 20)], "a": [0.5]}}
    assert found.inside == {"erm": pytest.approx(0.9)}
    assert found.calibration_errors == {"erm": {"b": [0.1], "a": [0.1]}}
    assert found.examples == SIZES
    assert found.metric == "accuracy"


def test_trials_of_a_domain_stand_together() -> None:
    runs = [run("erm", d, t, 0.5 + t / 10) for d in SIZES for t in (0, 1)]
    found = estimates_of(runs, dataset(), 0.2, METHODS)
    assert found.scores["erm"] == {name: pytest.approx([0.5, 0.6]) for name in SIZES}
    assert found.trials == (2, 2)


def test_erm_is_the_simplest_wherever_it_was_named() -> None:
    found = estimates_of([run("erm", "a", 0, 0.5)], dataset(), 0.2, ("coral", "erm", "fishr"))
    assert [one.key for one in found.candidates] == ["erm", "coral", "fishr"]
    assert [one.title for one in found.candidates] == ["ERM", "CORAL", "Fishr"]
    assert [one.family for one in found.candidates] == ["erm", "penalty", "penalty"]


@pytest.mark.parametrize(("frozen", "plain"), [(False, "erm"), (True, "head")])
def test_families(frozen: bool, plain: str) -> None:
    """From the simplest to the least simple; on frozen features, ERM trains no more than a head."""
    names = ("my-own", "fishr", "erm", *reversed(BASELINES))
    found = estimates_of([run("erm", "a", 0, 0.5)], dataset(), 0.2, names, frozen=frozen)
    assert [(one.key, one.family) for one in found.candidates] == [
        ("logistic-regression", "logistic regression"),
        ("gradient-boosting", "trees"),
        ("extra-trees", "trees"),
        ("random-forest", "trees"),
        ("erm", plain),
        ("my-own", "penalty"),
        ("fishr", "penalty"),
    ]


def test_too_few_examples_to_hold_any_out() -> None:
    runs = []
    for one in (run(name, d, 0, 0.5) for d in SIZES for name in METHODS):
        kept = {d: {"kept": parts.get("kept", 0.9)} for d, parts in one.last.accuracy.items()}
        runs.append(replace(one, records=(replace(one.last, accuracy=kept),)))
    odd = {**runs[0].last.accuracy, "b": {"kept": 0.5, "held_out": float("nan")}}
    runs[0] = replace(runs[0], records=(replace(runs[0].last, accuracy=odd),))
    found = estimates_of(runs, dataset(), 0.0, METHODS)
    assert found.inside == {}
    json.dumps(decide(found).as_json(), allow_nan=False)


def test_answers_without_a_model() -> None:
    data = uneven(a=(6, 4), b=(2, 18), c=(13, 2))
    found = estimates_of([run("erm", "a", 0, 0.9)], data, 0.2, METHODS)
    # Without a there are 15 no and 20 yes, without b 19 and 6, without c 8 and 22.
    assert found.guess == pytest.approx({"a": 4 / 10, "b": 2 / 20, "c": 2 / 15})
    assert found.majority == pytest.approx({"a": 6 / 10, "b": 18 / 20, "c": 13 / 15})
    assert found.chance == {"a": 0.5, "b": 0.5, "c": 0.5}


def test_a_run_that_failed_is_told_apart_from_one_that_had_no_time() -> None:
    runs = [run(name, d, 0, 0.6) for d in "ab" for name in METHODS]
    found = decide(estimates_of(runs, dataset(), 0.2, METHODS))
    assert found.sentences[0].startswith("Not enough time or runs: only 2 of 3 domains were")
    failed = [(name, "c") for name in METHODS]
    found = decide(estimates_of(runs, dataset(), 0.2, METHODS, failed))
    assert found.sentences[0] == "No verdict: runs failed, so only 2 of 3 domains were left out."
