"""Heads on frozen features first, then whole networks of the best methods, with averages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.datasets import Domain, DomainDataset
from shoal.fitting.candidates import recipes_of
from shoal.fitting.estimates import Estimates
from shoal.fitting.folds import Fold
from shoal.fitting.run_estimates import RunPredictions
from shoal.fitting.schedule import FIRST, Block, Budget, Schedule, plan_blocks
from shoal.fitting.setup import (
    FIRST_VERSION,
    RISING,
    FitSetup,
    FitWorkspace,
    find_candidate,
    trained_part,
)
from shoal.runs.machine import Machine
from shoal.runs.run import Run
from shoal.tensor_files import write_safetensors
from tests.fitting.estimated import CANDIDATES

BOTH = FitSetup(
    dataset="x",
    fingerprint="f",
    kind="images",
    trained="both",
    backbone="efficientnet-lite0",
    steps=2000,
    precision="bf16",
    settings={},
)
METHODS = {name: find_candidate(name) for name in ("logistic-regression", "erm", "fishr")}


def test_the_two_parts_of_a_setup() -> None:
    head, whole = BOTH.parts
    assert (head.trained, head.steps, head.precision) == ("head", 600, "float32")
    assert (whole.trained, whole.steps, whole.precision) == ("all", 2000, "bf16")
    assert (head.average, whole.average) == ("", "half")
    assert (head.protocol.start, whole.protocol.start) == ("network", "network")
    assert replace(BOTH, steps=40).parts[0].steps == 40
    assert replace(BOTH, trained="all").parts == (replace(BOTH, trained="all"),)


def test_an_older_fit_goes_on_as_it_began() -> None:
    before = replace(BOTH, trained="all", version=FIRST_VERSION)
    assert before.average == ""
    assert before.hparams(METHODS["fishr"])["warmup_steps"] == 600  # a share of the run


def test_the_penalty_of_fishr_rises_in_whole_networks_alone() -> None:
    head, whole = BOTH.parts
    found = whole.hparams(METHODS["fishr"])
    assert {name: str(found[name]) for name in RISING} == RISING
    assert "ramp_steps" not in head.hparams(METHODS["fishr"])
    given = replace(whole, settings={"ramp_steps": "50"})
    assert given.hparams(METHODS["fishr"])["ramp_steps"] == 50
    assert "ramp_steps" not in whole.hparams(METHODS["erm"])


def test_a_method_that_cannot_train_a_head_trains_the_whole_network_alone() -> None:
    found = recipes_of({name: find_candidate(name) for name in ("erm", "arm")}, BOTH)
    usual = {(one.method, one.setup.trained) for one in found if one.key == one.base}
    assert usual == {("erm", "head"), ("erm", "all"), ("arm", "all")}


def test_by_default_a_gpu_trains_both(tmp_path: Path) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert trained_part("auto", "images", tmp_path, gpu) == "both"
    assert trained_part("auto", "images", tmp_path, cpu) == "head"
    assert trained_part("auto", "table", tmp_path, gpu) == "all"
    assert trained_part("all", "images", tmp_path, cpu) == "all"


def test_heads_and_whole_networks_are_candidates_of_their_own() -> None:
    found = recipes_of(METHODS, BOTH)
    keys = [one.key for one in found]
    assert len(set(keys)) == len(keys)
    assert {"logistic-regression", "erm", "erm whole", "fishr", "fishr whole"} <= set(keys)
    assert "logistic-regression whole" not in keys
    whole = {one.key: one for one in found if one.head is not None}
    assert {key: one.head for key, one in whole.items()} == {
        "erm whole": "erm",
        "fishr whole": "fishr",
    }
    assert whole["erm whole"].candidate.title == "ERM (whole network)"
    assert whole["erm whole"].candidate.family == "erm"
    assert next(one for one in found if one.key == "erm").candidate.family == "head"
    assert all(one.setup.trained == ("all" if one.head else "head") for one in found)


def block(key: str, head: str | None = None) -> Block:
    runs = tuple(
        Run(dataset="x", fingerprint="", algorithm=key, test_domains=(name,)) for name in "ab"
    )
    return Block(stage=FIRST, key=key, title=key, base=key, runs=runs, head=head)


def estimates(scores: dict[str, float]) -> Estimates:
    every = dict.fromkeys("ab", 0.5)
    return Estimates(
        candidates=tuple(replace(CANDIDATES["erm"], key=key) for key in scores),
        examples=dict.fromkeys("ab", 100),
        scores={key: {name: [score] for name in "ab"} for key, score in scores.items()},
        guess=every,
        majority=every,
        chance=every,
    )


def test_blocks_of_heads_come_first() -> None:
    recipes = recipes_of(METHODS, BOTH)
    folds = [Fold(name, (name,)) for name in "ab"]

    def make_run(one, tests, trial):  # type: ignore[no-untyped-def]
        return Run(
            dataset="x", fingerprint=one.key, algorithm=one.method, test_domains=tests, trial=trial
        )

    found = plan_blocks(recipes, folds, 1, make_run, nested=False)
    first = [one.key for one in found if one.stage == FIRST]
    assert first == ["logistic-regression", "erm", "fishr", "erm whole", "fishr whole"]


@pytest.mark.parametrize(
    ("scores", "trained"),
    [
        ({"erm": 0.7, "fishr": 0.6, "coral": 0.8}, ["coral", "erm"]),
        ({"erm": 0.7, "fishr": 0.9, "coral": 0.8}, ["fishr", "coral"]),
        ({"erm": 0.7}, ["erm", "coral", "fishr"]),  # nothing speaks against the others
    ],
)
def test_the_heads_choose_the_whole_networks(
    tmp_path: Path, scores: dict[str, float], trained: list[str]
) -> None:
    blocks = [block(f"{key} whole", key) for key in ("coral", "erm", "fishr")]
    schedule = Schedule(tmp_path, blocks, Budget(), lambda _: estimates(scores))
    done = blocks[0].runs[0].identity
    schedule._done.add(done)  # so that there are results
    assert schedule._best_heads() == trained
    schedule._done.remove(done)


def test_predictions_of_an_average_count_if_there_is_one(tmp_path: Path) -> None:
    logits = {
        "last/a/kept": torch.tensor([[0.0, 1.0]]),
        "half/a/kept": torch.tensor([[3.0, 1.0]]),
        "labels/a/kept": torch.tensor([0]),
    }
    write_safetensors(tmp_path / "logits.safetensors", logits)
    right = []
    for average in ("half", "", "swad"):
        found = RunPredictions.read(tmp_path, ["a"], average)
        assert found is not None
        right.append(int(np.argmax(found.of("a").log_probabilities)))
    assert right == [0, 1, 1]  # the last weights stand for an average that was not recorded


def test_runs_find_their_inputs() -> None:
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    images = DomainDataset("x", ("n", "y"), (Domain("a", torch.arange(2), pixels),))
    vectors = DomainDataset(
        "x features", ("n", "y"), (Domain("a", torch.arange(2), torch.zeros(2, 5)),)
    )
    alone = FitWorkspace(
        METHODS, images, None, Machine(device=torch.device("cpu"), step="eager"), averages=("half",)
    )
    both = replace(alone, features=vectors)
    assert (both.inputs(True), both.inputs(False)) == (vectors, images)
    assert both.data("x features", 0) == (vectors, None)
    assert both.data("x", 0)[0] is images
    assert both.machine().averages == ("half",)
    assert alone.inputs(True) is images
