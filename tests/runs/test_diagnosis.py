"""A diagnosis of a saved model, against plain definitions on the saved network and its images."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import find
from shoal.curvature import network_diagonals
from shoal.randomness import stream
from shoal.runs import diagnosis
from shoal.runs.diagnosis import Diagnoses, Question, diagnose
from shoal.runs.machine import Machine
from shoal.runs.model import Model, load
from shoal.runs.prepare import prepare
from shoal.training.batches import scaled
from shoal.training.evaluation import Evaluation
from tests.oracles import curvature

from .small import CPU, carry_out, tiny, tiny_run

DOMAINS = ("a", "b", "c")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("run")
    carry_out(path, tiny_run("erm", steps=12))
    yield load(path, CPU)


def asked(model: Model, domains: tuple[str, ...] = DOMAINS, **changes: Any) -> dict[str, Any]:
    return diagnose(model, tiny(), None, domains, Question(**changes))


def head_of(model: Model, domain: str) -> tuple[Tensor, Tensor, nn.Linear]:
    """Return features, labels and the head, in float64, over all images of a domain."""
    network = model.algorithm.model
    with torch.no_grad():
        features = network.features(tiny()[domain].images.float() / 255).double()
    head = nn.Linear(features.shape[1], 2).double()
    head.load_state_dict(network.classifier.state_dict())
    return features, tiny()[domain].labels, head


def test_head_of_every_domain(model: Model) -> None:
    found = asked(model)
    json.dumps(found, allow_nan=False)
    assert found["weights"] == 258 and list(found["domains"]) == list(DOMAINS)
    assert [one["trained_on"] for one in found["domains"].values()] == [True, True, False]
    for name, one in found["domains"].items():
        features, labels, head = head_of(model, name)
        logits = head(features).detach()
        assert one["images"] == len(labels)
        assert one["accuracy"] == float((logits.argmax(1) == labels).double().mean())
        risk = nn.functional.cross_entropy(logits, labels)
        assert one["risk"] == pytest.approx(float(risk), rel=1e-4)
        fisher = curvature.fisher(head, features, list(head.parameters()))
        assert one["chain"]["trace:hessian"] == pytest.approx(float(fisher.trace()), rel=1e-4)
        assert one["chain"]["cosine:hessian:fisher"] == pytest.approx(1)
        largest = torch.linalg.eigvalsh(fisher)[-1]
        assert one["fisher"]["largest"][0] == pytest.approx(float(largest), rel=1e-4)
        energy = fisher.diagonal().square().sum() / fisher.square().sum()
        assert one["dominance"]["energy"] == pytest.approx(float(energy), rel=1e-4)
        ones = torch.cat([features, torch.ones(len(features), 1)], 1).double()
        kernel = torch.linalg.eigvalsh(ones @ ones.mT / len(ones))[-1]
        assert one["tangent"]["largest"][0] == pytest.approx(float(kernel), rel=1e-4)


def test_pairs_gaps_and_inconsistency(model: Model) -> None:
    found = asked(model, epsilon=0.2, floor=0.01)
    assert [one["domains"] for one in found["pairs"]] == [["a", "b"], ["a", "c"], ["b", "c"]]
    trained = found["gaps"]["trained_on"]
    for kind in ("risk", "variance", "hessian"):
        assert trained[kind] == pytest.approx(found["pairs"][0][kind] / 4, rel=1e-5)
        assert found["gaps"]["all"][kind] == pytest.approx(
            sum(one[kind] for one in found["pairs"]) / 9, rel=1e-5
        )
    for kind in ("full", "diagonal"):
        scores = found["inconsistency"][kind]
        assert scores["epsilon"] == 0.2
        assert [(one["a"], one["b"]) for one in scores["pairs"]] == list(permutations("abc", 2))
        risks = {name: one["risk"] for name, one in found["domains"].items()}
        for one in scores["pairs"]:
            assert one["risk"] == pytest.approx(risks[one["b"]] - risks[one["a"]])
            both = (abs(one["risk"]), abs(one["risk"] + one["curvature"]))
            assert one["inconsistency"] == max(both)
        assert scores["largest"] == max(one["inconsistency"] for one in scores["pairs"])
    points = found["points"]["b"]
    assert len(points["hessian"]) == len(points["variance"]) == 258
    assert sum(points["hessian"]) == pytest.approx(found["domains"]["b"]["chain"]["trace:hessian"])


def test_spectra_of_a_large_head_are_of_some_examples(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "ROWS", 11)  # which a small head has no use for
    everything = asked(model)
    monkeypatch.setattr(diagnosis, "DENSE", 10)
    monkeypatch.setattr("shoal.curvature.roots.DENSE", 10)
    monkeypatch.setattr(diagnosis, "ROWS", 1000)
    same = asked(model)
    assert same["spectra_of"] == everything["spectra_of"] == [40, 50, 30]
    for kind in ("fisher", "tangent"):
        ours, theirs = (one["domains"]["b"][kind]["largest"] for one in (same, everything))
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-9)
    monkeypatch.setattr(diagnosis, "ROWS", 11)
    fewer = asked(model)
    assert fewer["spectra_of"] == [11, 11, 11]
    assert fewer["domains"]["a"]["chain"] == everything["domains"]["a"]["chain"]
    assert fewer["domains"]["b"]["tangent"] == everything["domains"]["b"]["tangent"]


def test_whole_networks_and_parts_of_them(model: Model) -> None:
    head = asked(model)
    same = asked(model, parameters="classifier")
    assert same["weights"] == 258
    for name in DOMAINS:
        ours, theirs = same["domains"][name], head["domains"][name]
        assert ours["chain"] == pytest.approx(theirs["chain"], rel=1e-3, abs=1e-6)
        assert ours["risk"] == pytest.approx(theirs["risk"], rel=1e-4)
        assert ours["accuracy"] == theirs["accuracy"]
        for kind in ("fisher", "tangent"):
            first, other = ours[kind]["largest"][0], theirs[kind]["largest"][0]
            assert first == pytest.approx(other, rel=1e-3)
    with pytest.raises(ValueError, match=r"not piecewise linear in features\.0\.weight"):
        asked(model, parameters="all")
    found = asked(model, ("a", "b"), parameters="all", method="gauss-newton", images=6)
    network = model.algorithm.model
    assert found["weights"] == sum(p.numel() for p in network.parameters())
    assert found["spectra_of"] == [6, 6] and "trained_on" not in found["gaps"]
    assert found["domains"]["a"]["images"] == 6
    with_all = found["domains"]["a"]["chain"]["trace:fisher"]
    assert with_all > asked(model, ("a", "b"), images=6)["domains"]["a"]["chain"]["trace:fisher"]


def test_domains_of_another_data_set_were_not_trained_on(model: Model) -> None:
    other = replace(tiny(), name="other")
    found = diagnose(model, other, None, DOMAINS, Question())
    assert not any(one["trained_on"] for one in found["domains"].values())
    assert list(found["gaps"]) == ["all"]


def test_images_are_the_same_ones_of_each_domain(model: Model) -> None:
    few, more = asked(model, images=5), asked(model, images=1000)
    assert [one["images"] for one in few["domains"].values()] == [5, 5, 5]
    assert more["domains"] == asked(model)["domains"]
    assert few == asked(model, images=5)


def test_a_head_of_several_layers(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run("erm", steps=2))
    model = load(tmp_path, CPU)
    network: Any = model.algorithm.model
    torch.manual_seed(0)
    network.classifier = nn.Sequential(nn.Linear(128, 4), nn.ReLU(), nn.Linear(4, 2))
    found = asked(model)
    images = torch.cat([tiny()[name].images for name in DOMAINS]).float() / 255
    labels = torch.cat([tiny()[name].labels for name in DOMAINS])
    sizes = torch.tensor([40, 50, 30])
    domains = torch.arange(3).repeat_interleave(sizes)
    expected = network_diagonals(network, images, labels, domains, "classifier")
    for e, one in enumerate(found["domains"].values()):
        trace = float(expected.hessian[e].sum())
        assert one["chain"]["trace:hessian"] == pytest.approx(trace, rel=1e-3)


def test_what_cannot_be_diagnosed_is_said(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name two or more, got 1"):
        asked(model, ("a",))
    with pytest.raises(ValueError, match="'a' has 1 image; a variance needs two"):
        asked(model, images=1)
    with pytest.raises(ValueError, match="unknown parameter 'clasifier'; did you mean"):
        asked(model, parameters="clasifier")
    carry_out(tmp_path, tiny_run("arm", steps=2))
    arm = load(tmp_path, CPU)
    with pytest.raises(ValueError, match="ARM predicts a batch as a whole"):
        asked(arm, parameters="all")
    assert asked(arm)["weights"] == 258


def test_a_run_records_what_a_diagnosis_of_its_model_says(tmp_path: Path) -> None:
    run = tiny_run("fishr", steps=3)
    plain = carry_out(tmp_path / "plain", run).records[-1]
    last = carry_out(tmp_path / "run", run, machine={"log": "diagnosis"}).records[-1]
    assert last.accuracy == plain.accuracy and last.terms == plain.terms
    found = last.extra["diagnosis"]
    assert found["gaps"]["all"]["hessian"] == pytest.approx(last.gaps["hessian"])
    assert set(found["domains"]) == {"a", "b"} and "points" not in found
    # The same of the model that the run left, on the same images.
    left = load(tmp_path / "run", CPU).algorithm
    machine = Machine(device=CPU, step="eager", log="diagnosis")
    placed, _ = prepare(run, find("fishr"), tiny(), None, machine)
    expected = Diagnoses(Evaluation(left, placed.samples, scaled, nullcontext))()["diagnosis"]
    for name, said in found["domains"].items():
        assert said["risk"] == pytest.approx(expected["domains"][name]["risk"], rel=1e-5)
        theirs = expected["domains"][name]["tangent"]
        for key in ("trace", "step_limit"):
            assert said["tangent"][key] == pytest.approx(theirs[key], rel=1e-4)
    scores = [one["inconsistency"]["diagonal"]["largest"] for one in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    json.dumps(last.to_json(), allow_nan=False)


def test_one_training_domain_cannot_be_compared(tmp_path: Path) -> None:
    run = replace(tiny_run("erm", steps=2), test_domains=("b", "c"))
    with pytest.raises(ValueError, match="compares training domains, but there is one"):
        carry_out(tmp_path, run, machine={"log": "diagnosis"})


def head_examples(scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, logits, labels and domains of three domains; one's features are scaled."""
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(70, 4, generator=draws)
    logits = torch.randn(70, 3, generator=draws)
    labels = torch.randint(0, 3, (70,), generator=draws)
    domains = torch.tensor([0] * 20 + [1] * 30 + [2] * 20)[torch.randperm(70, generator=draws)]
    z[domains == 2] *= scale
    return z, logits, labels, domains


def test_shuffled_gaps_against_single_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first and the last domain, with fewer examples than there are."""
    monkeypatch.setattr(diagnosis, "SHUFFLES", 19)
    monkeypatch.setattr(diagnosis, "SHUFFLED", 15)
    z, logits, labels, domains = head_examples(1.5)
    found = diagnosis.shuffled_gaps(z, logits, labels, domains, True, [0, 2])
    assert found["examples"] == [15, 15] and found["count"] == 19

    rows = [k for e in (0, 2) for k in (domains == e).nonzero()[:15, 0].tolist()]
    gradients = []
    for k in rows:
        r = logits[k].double().softmax(0)
        r[labels[k]] -= 1
        gradients.append(torch.outer(r, torch.cat([z[k].double(), torch.ones(1)])).flatten())

    def gap(order: Tensor) -> float:
        first, second = (torch.stack(gradients)[order == e].var(0) for e in (0, 1))
        return float((first - second).square().sum() / 4)

    numbers = torch.tensor([0] * 15 + [1] * 15)
    draws = stream("diagnosis", "shuffles")
    others = [gap(numbers[torch.randperm(30, generator=draws)]) for _ in range(19)]
    assert found["variance"]["gap"] == pytest.approx(gap(numbers), rel=1e-4)
    assert found["variance"]["median"] == pytest.approx(sorted(others)[9], rel=1e-4)
    assert found["variance"]["larger"] == sum(one >= gap(numbers) for one in others)


def test_shuffles_tell_a_difference_from_chance() -> None:
    alike, apart = (
        diagnosis.shuffled_gaps(*head_examples(scale), True, [0, 1, 2])["variance"]
        for scale in (1.0, 4.0)
    )
    assert alike["larger"] > 4
    assert apart["larger"] == 0
    assert apart["gap"] > 3 * apart["median"]


def test_training_domains_are_shuffled(model: Model) -> None:
    found = asked(model)["shuffles"]
    assert found["domains"] == ["a", "b"]
    assert found["variance"]["gap"] == pytest.approx(
        asked(model, ("a", "b"))["gaps"]["all"]["variance"], rel=1e-4
    )
    assert asked(model, ("a", "c"))["shuffles"]["domains"] == ["a", "c"]  # one was trained on
    assert "shuffles" not in asked(model, parameters="classifier", images=6)
