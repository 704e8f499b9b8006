"""Adaptations: slow oracles, the rule, the card, and a fit where prior correction really helps."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.algorithms import find
from shoal.cli import main
from shoal.datasets import Domain, DomainDataset
from shoal.documents import read_json
from shoal.fitting.adaptation import (
    BATCH_NORM,
    PRIOR,
    T3A,
    correct_shares,
    linear_head,
    shuffled_batches,
    t3a,
    with_statistics_of,
)
from shoal.fitting.adaptation_estimates import measure_adaptations, training_shares
from shoal.fitting.adaptation_record import AdaptationRecord, Gain, choose_adaptation
from shoal.fitting.candidates import RunMaker, recipes_of
from shoal.fitting.folds import folds_of
from shoal.fitting.leave_one_out import finished_runs
from shoal.fitting.setup import FitSetup, FitWorkspace, find_candidate
from shoal.networks import Network
from shoal.runs import model as models
from shoal.runs.machine import Machine
from shoal.storage import write_json
from shoal.sweeps.worker import Worker
from tests.fitting.made import table_setup

Output = pytest.CaptureFixture[str]
LINE = "logistic-regression"
SITES = {"a": 0.9, "b": 0.1, "c": 0.85, "d": 0.15, "e": 0.8}


def slow_t3a(z: np.ndarray, w: np.ndarray, b: np.ndarray, kept: int | None) -> np.ndarray:
    """Return T3A's logits, one support after the other; the rows of the head have mean zero."""
    w = w - w.mean(0)

    def head(x: np.ndarray) -> tuple[int, float]:
        scores = w @ x + b
        p = np.exp(scores - scores.max())
        p /= p.sum()
        return int(scores.argmax()), float(-(p * np.log(p)).sum())

    supports: dict[int, list[tuple[float, np.ndarray]]] = {}
    for k, row in enumerate(w):
        supports[k] = [(head(row)[1], row)]
    for row in z:
        k, entropy = head(row)
        supports[k].append((entropy, row))
    found = np.zeros((len(z), len(w)))
    for k, mine in supports.items():
        mine = sorted(mine, key=lambda one: one[0])[:kept]
        row = sum(one / np.linalg.norm(one) for _, one in mine)
        found[:, k] = z @ (row / np.linalg.norm(row))
    return found


@pytest.mark.parametrize("kept", [1, 3, None])
def test_t3a_is_the_slow_one(kept: int | None) -> None:
    rng = np.random.default_rng(1)
    z, w, b = rng.normal(size=(40, 6)), rng.normal(size=(4, 6)), rng.normal(size=4)
    found = t3a(*map(torch.from_numpy, (z, w, b)), kept=kept)
    np.testing.assert_allclose(found.numpy(), slow_t3a(z, w, b, kept), atol=1e-12)


def test_t3a_sees_nothing_that_all_rows_of_the_head_share() -> None:
    torch.manual_seed(0)
    z, w, b, more = torch.randn(30, 5), torch.randn(3, 5), torch.randn(3), torch.randn(5)
    moved = t3a(z, w + more, b)
    torch.testing.assert_close(moved, t3a(z, w, b), atol=1e-5, rtol=0)


def test_t3a_does_not_depend_on_the_order_of_inputs() -> None:
    torch.manual_seed(0)
    z, head = torch.randn(50, 5), nn.Linear(5, 3)
    order = torch.randperm(50)
    for kept in (4, None):
        forth = t3a(z, head.weight, head.bias, kept)
        back = t3a(z[order], head.weight, head.bias, kept)
        torch.testing.assert_close(back, forth[order], atol=1e-12, rtol=0)


def likelihood(p: np.ndarray, before: np.ndarray, q: float) -> float:
    """Return the log-likelihood of inputs if the second class has the share q."""
    return float(np.log(p @ (np.array([1 - q, q]) / before)).sum())


def test_corrected_shares_are_the_most_likely_ones() -> None:
    """EM finds the shares with the highest likelihood; here a search over all of them does."""
    rng = np.random.default_rng(2)
    before = np.array([0.3, 0.7])
    y = rng.random(400) < 0.2
    x = rng.normal(size=400) + 1.5 * y
    odds = before * np.exp(np.stack([np.zeros(400), 1.5 * x - 1.125], 1))
    p = odds / odds.sum(1, keepdims=True)
    grid = np.linspace(0.0005, 0.9995, 2000)
    best = grid[np.argmax([likelihood(p, before, q) for q in grid])]
    found = np.exp(correct_shares(np.log(p), before))
    assert found.mean(0)[1] == pytest.approx(best, abs=1e-3)
    by_hand = p * np.array([1 - best, best]) / before
    np.testing.assert_allclose(found, by_hand / by_hand.sum(1, keepdims=True), atol=2e-3)
    assert ((found[:, 1] > 0.5) == y).mean() > ((p[:, 1] > 0.5) == y).mean()


def test_a_class_without_training_examples_stays_without() -> None:
    logs = np.log(np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    found = np.exp(correct_shares(logs, np.array([0.5, 0.5, 0.0])))
    assert found[:, 2].max() < 1e-12
    np.testing.assert_allclose(found.sum(1), 1)
    assert correct_shares(np.zeros((0, 3)), np.ones(3) / 3).shape == (0, 3)


def test_batch_norm_gets_the_statistics_of_new_inputs() -> None:
    """By hand: every layer gets the mean over batches of their means and variances."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2)]
    network = nn.Sequential(*layers).double().eval()
    x = 5 + 3 * torch.randn(24, 3, dtype=torch.float64)
    batches = x.split(8)
    found = with_statistics_of(network, batches)
    first = [network[0](batch) for batch in batches]
    mean = torch.stack([z.mean(0) for z in first]).mean(0)
    torch.testing.assert_close(found[1].running_mean, mean)
    var = torch.stack([z.var(0) for z in first]).mean(0)
    torch.testing.assert_close(found[1].running_var, var)

    def normed(z: torch.Tensor) -> torch.Tensor:
        return (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()

    second = [network[3](normed(z).relu()) for z in first]
    mean = torch.stack([z.mean(0) for z in second]).mean(0)
    torch.testing.assert_close(found[4].running_mean, mean)
    assert torch.equal(network[1].running_mean, torch.zeros(4, dtype=torch.float64))
    assert not any(part.training for part in found.modules())


@pytest.mark.parametrize("number", [1, 64, 65, 4033])
def test_batches_of_batch_norm_are_of_one_size(number: int) -> None:
    """All batches count alike, so a last one of one image would count as much as 64."""
    batches = shuffled_batches(number)
    sizes = [len(one) for one in batches]
    assert max(sizes) <= 64 and max(sizes) - min(sizes) <= 1
    assert sorted(torch.cat(batches).tolist()) == list(range(number))
    assert all(map(torch.equal, batches, shuffled_batches(number)))
    assert number < 64 or torch.cat(batches).tolist() != list(range(number))


def test_only_a_method_that_predicts_by_its_linear_head_has_one() -> None:
    linear = Network(nn.Identity(), nn.Linear(4, 3))
    deep = Network(nn.Identity(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)))
    assert linear_head(find("erm")(linear, 2)) is linear.classifier
    assert linear_head(find("erm")(deep, 2)) is None
    batchwise = type("Batchwise", (find("erm"),), {"predict": lambda self, inputs: inputs})
    assert linear_head(batchwise(linear, 2)) is None


def test_shares_in_training_follow_how_a_method_samples() -> None:
    one, other = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 1, 1, 1, 1, 2])
    domains = [Domain(name, y, torch.zeros(len(y), 1)) for name, y in (("a", one), ("b", other))]
    data = DomainDataset("d", ("x", "y", "z"), tuple(domains))
    methods = {name: find_candidate(name) for name in ("random-forest", "erm", LINE)}
    recipes = {one.method: one for one in reversed(recipes_of(methods, table_setup()))}
    expected = {
        "random-forest": ([3 / 12, 8 / 12, 1 / 12], [2 / 12, 6 / 12, 4 / 12]),
        "erm": ([3 / 8, (1 / 4 + 7 / 8) / 2, 1 / 16], [1 / 4, 1 / 2, 1 / 4]),
        # 4 examples weigh 4 / 34, and 8 weigh 8 / 38.
        LINE: (
            np.array([3 / 34, 1 / 34 + 7 / 38, 1 / 38]) / (4 / 34 + 8 / 38),
            np.array([2 / 34, 2 / 34 + 4 / 38, 4 / 38]) / (4 / 34 + 8 / 38),
        ),
    }
    for name, by_class in expected.items():
        for balanced, shares in zip((False, True), by_class, strict=True):
            found = training_shares(data, recipes[name].domain_weights, balanced)
            np.testing.assert_allclose(found, shares)


def test_a_head_on_frozen_features_is_measured_as_it_is_deployed(tmp_path: Path) -> None:
    """The deployed network has no standardisation: T3A is that of raw features."""
    pytest.importorskip("sklearn", reason="no scikit-learn")
    torch.manual_seed(0)
    domains, scale = [], torch.tensor([1.0, 5.0, 0.2, 3.0])
    for k, name in enumerate("abc"):
        y = torch.tensor([k] * 40 + [0, 1, 2] * 10)  # every domain has a class of its own
        z = torch.randn(70, 4) + 1.5 * torch.eye(3, 4)[y] + 0.5 * k
        domains.append(Domain(name, y, z * scale + 2))
    data = DomainDataset("photos", ("x", "y", "z"), tuple(domains))
    setup = FitSetup(
        dataset=data.name,
        fingerprint=data.fingerprint,
        kind="images",
        trained="head",
        backbone="efficientnet-lite0",
        steps=5,
        precision="float32",
        settings={},
    )
    methods = {"logistic-regression": find_candidate("logistic-regression")}
    workspace = FitWorkspace(methods, data, None, Machine(device=torch.device("cpu"), step="eager"))
    recipe = recipes_of(methods, setup)[0]
    make, worker, folds = RunMaker(workspace, None, False), Worker(tmp_path, workspace), "abc"
    runs = [make.run(recipe, (name,), 0) for name in folds]
    for run in runs:
        worker.attempt(run)
    results = finished_runs(tmp_path, runs)
    known = [(recipe.key, results[run.identity]) for run in runs]
    record = measure_adaptations(recipe, known, folds_of(data), workspace, "log-loss")
    assert record is not None and record.metric == "accuracy" and list(record.before) == [*"abc"]
    for name, (_, run) in zip(folds, known, strict=True):
        assert run.path is not None
        network = models.load(run.path, torch.device("cpu")).algorithm.model
        weight = (network.classifier.weight / network.features.std).numpy()
        bias = network.classifier.bias.numpy() - weight @ network.features.mean.numpy()
        z, y = data[name].tensor.double().numpy(), data[name].labels.numpy()
        right = slow_t3a(z, weight, bias, None).argmax(1) == y
        assert record.after[T3A][name] == pytest.approx(right.mean())
        logits = z @ weight.T + bias
        assert record.before[name] == pytest.approx((logits.argmax(1) == y).mean())
        others = torch.cat([data[one].labels for one in folds if one != name])
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        corrected = correct_shares(logs, others.bincount(minlength=3).numpy() / len(others))
        right = corrected.argmax(1) == y
        assert record.after[PRIOR][name] == pytest.approx(right.mean(), abs=0.01)  # half precision
    assert record.after[T3A] != record.before
    short = measure_adaptations(recipe, known[:2], folds_of(data), workspace, "accuracy")
    assert short is None  # a domain has no run


BEFORE = {"a": 0.6, "b": 0.7, "c": 0.8}
MORE = {**BEFORE, "d": 0.5, "e": 0.4}


def before(number: int) -> dict[str, float]:
    return dict(list(MORE.items())[:number])


def after(*gains: float) -> dict[str, float]:
    scores = before(len(gains)).items()
    return {name: score + gain for (name, score), gain in zip(scores, gains, strict=True)}


@pytest.mark.parametrize(
    ("gains", "helps"),
    [
        ((0.03, 0.02, 0.04), True),
        ((0.0, 0.0, 0.0), False),
        ((-0.01, 0.02, 0.05), False),  # mean 2, error 1.7
        ((0.01, 0.02, 0.04), True),  # mean 2.3, error 0.9
        ((0.009, 0.009, 0.0095), False),  # less than a point
        ((0.011, 0.010, 0.0105), True),
        ((-0.021, 0.3, 0.3, 0.3, 0.3), False),  # one domain loses too much
        ((-0.019, 0.3, 0.3, 0.3, 0.3), True),
        ((-0.03, -0.02, -0.04), False),
    ],
)
def test_the_rule(gains: tuple[float, ...], helps: bool) -> None:
    number = len(gains)
    gain = Gain.of(before(number), after(*gains))
    assert gain.mean == pytest.approx(np.mean(gains), abs=1e-12)
    assert gain.error == pytest.approx(np.std(gains, ddof=1) / number**0.5, abs=1e-12)
    assert gain.helps is helps
    assert (choose_adaptation(before(number), {T3A: after(*gains)}) == T3A) is helps


def test_the_best_of_those_that_help_is_offered_and_two_domains_are_too_few() -> None:
    found = {T3A: after(0.2, 0.2, -0.03), PRIOR: after(0.02, 0.02, 0.03)}
    assert choose_adaptation(BEFORE, found) == PRIOR
    found[BATCH_NORM] = after(0.05, 0.05, 0.06)
    assert choose_adaptation(BEFORE, found) == BATCH_NORM
    two = {name: {k: v for k, v in mine.items() if k != "c"} for name, mine in found.items()}
    assert choose_adaptation({"a": 0.6, "b": 0.7}, two) is None
    assert choose_adaptation({"a": 0.6}, {T3A: {"a": 0.9}}) is None


RECORD = AdaptationRecord(
    metric="accuracy",
    before=BEFORE,
    after={T3A: after(-0.02, 0.01, 0.0), PRIOR: after(0.02, 0.02, 0.03)},
    offered=PRIOR,
    temperature=1.5,
    shares={"x": 0.25, "y": 0.75},
)


def test_the_record_is_read_back_and_damage_is_reported() -> None:
    written = RECORD.as_json()
    assert AdaptationRecord.from_json(written, ("x", "y")) == RECORD
    without = replace(RECORD, offered=None)
    assert AdaptationRecord.from_json(without.as_json(), ("x", "y")) == without
    damaged: list[Any] = [
        None,
        [],
        {},
        written | {"offered": "T4A"},
        written | {"offered": BATCH_NORM},
        written | {"metric": "points"},
        written | {"temperature": 0},
        written | {"temperature": float("nan")},
        written | {"temperature": True},
        written | {"before": {"a": 0.6}},
        written | {"before": {"a": 2.0, "b": 0.7, "c": 0.8}},
        written | {"after": {"T4A": BEFORE}},
        written | {"after": {T3A: {}, PRIOR: BEFORE}},
        written | {"shares": {"x": 0.5, "y": 0.2}},
        written | {"shares": {"x": 0.5, "z": 0.5}},
        written | {"shares": {"x": "half", "y": 0.5}},
    ]
    for found in damaged:
        with pytest.raises(ValueError, match="entry 'adaptation' of the model's card is damaged"):
            AdaptationRecord.from_json(found, ("x", "y"))


def test_a_refusal_has_the_numbers() -> None:
    said = replace(RECORD, offered=None).refusal()
    assert "T3A -0.3 points on average (± 0.9), at worst -2.0 on a" in said
    assert "prior correction +2.3 points" in said


def write_sites(path: Path, sites: dict[str, float], domain: bool = True, rows: int = 120) -> None:
    """Write a table of two classes, with the share of the second by site."""
    rng = np.random.default_rng(len(sites))
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(["site"] if domain else []), "outcome", "f0", "f1"])
        for site, share in sites.items():
            for y in rng.random(rows) < share:
                x = rng.normal(size=2) + np.array([1.2, 0.8]) * y
                out.writerow([*([site] if domain else []), "ill" if y else "well", *x.round(4)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of sites with different class shares, and tables of a new site."""
    pytest.importorskip("sklearn", reason="no scikit-learn")
    folder = tmp_path_factory.mktemp("adaptation")
    write_sites(folder / "known.csv", SITES)
    write_sites(folder / "new.csv", {"n": 0.07}, domain=False)
    words = "--domain-column site --class-column outcome --only logistic-regression --runs 5"
    arguments = [str(folder / "known.csv"), *words.split(), "--out", str(folder / "model")]
    assert main(["fit", *arguments]) == 0
    return folder


def accuracy(folder: Path, printed: str) -> float:
    with (folder / "new.csv").open() as file:
        labels = [row["outcome"] for row in csv.DictReader(file)]
    found = [row["class"] for row in csv.DictReader(io.StringIO(printed))]
    return sum(map(str.__eq__, found, labels)) / len(labels)


def test_prior_correction_helps_where_class_shares_differ(place: Path, capsys: Output) -> None:
    record = shoal.load(place / "model", "cpu").adaptation
    assert record.offered == PRIOR and set(record.after) == {PRIOR, T3A}
    assert record.gain(PRIOR).mean > 0.05
    words = ["predict", str(place / "model"), str(place / "new.csv"), "--csv"]
    capsys.readouterr()
    assert main(words) == 0
    before = accuracy(place, capsys.readouterr().out)
    assert main([*words, "--adapt"]) == 0
    assert accuracy(place, capsys.readouterr().out) > before + 0.05


def test_the_page_of_the_fit_has_the_table(place: Path) -> None:
    page = (place / "model" / "report.html").read_text("utf-8")
    section = page.partition('<section id="adaptation">')[2].partition("</section>")[0]
    assert "prior correction, offered" in section and "T3A" in section
    record = shoal.load(place / "model", "cpu").adaptation
    gain = 100 * (record.after[PRIOR]["b"] - record.before["b"])
    assert f"{gain:+.1f}" in section


def test_all_inputs_are_adapted_to_together(place: Path, tmp_path: Path) -> None:
    """Their order does not matter; a row that cannot be read is reported and left out."""
    model = shoal.load(place / "model", "cpu")
    with (place / "new.csv").open() as file:
        rows = [{"f0": float(row["f0"]), "f1": float(row["f1"])} for row in csv.DictReader(file)]
    forth = model.predict(rows, adapt=True)
    back = model.predict(rows[::-1], adapt=True)[::-1]
    assert [one.label for one in forth] == [one.label for one in back]
    for one, other in zip(forth, back, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
    assert [one.probability for one in forth] != [one.probability for one in model.predict(rows)]
    found = model.predict([{"f0": "much", "f1": 0.0}, *rows], adapt=True)
    assert found[0].error is not None and found[0].label is None
    assert [one.label for one in found[1:]] == [one.label for one in forth]
    (only,) = model.adapted({"f0": "much", "f1": 0.0})
    assert only.error is not None
    frame = {"f0": [row["f0"] for row in rows], "f1": [row["f1"] for row in rows]}
    assert [one.label for one in model.predict(frame, adapt=True)] == [one.label for one in forth]


def with_card(place: Path, folder: Path, change: Any) -> Path:
    """Return a copy of the model with another card."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((place / "model/model.safetensors").read_bytes())
    card = read_json(place / "model" / "model.json")
    change(card)
    write_json(folder / "model.json", card)
    return folder


def test_t3a_of_a_model_is_that_of_its_head(place: Path, tmp_path: Path) -> None:
    changed = with_card(
        place,
        tmp_path / "t3a",
        lambda card: card["adaptation"].update(offered=T3A, temperature=2.0),
    )
    model = shoal.load(changed, "cpu")
    found = model.predict(place / "new.csv", adapt=True)
    with (place / "new.csv").open() as file:
        rows = [[float(row["f0"]), float(row["f1"])] for row in csv.DictReader(file)]
    network = model.module.algorithm.model
    z = network.features(torch.tensor(rows, dtype=torch.float32)).numpy()
    head = [one.detach().numpy() for one in (network.classifier.weight, network.classifier.bias)]
    logits = slow_t3a(z, head[0], head[1], None) / 2
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    got = [[one.probabilities[name] for name in model.classes] for one in found]
    np.testing.assert_allclose(got, p, atol=1e-6)


def test_few_inputs_are_adapted_to_with_a_warning(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    model = shoal.load(place / "model", "cpu")
    with pytest.warns(UserWarning, match="^1 input says little about a place"):
        model.predict({"f0": 0.0, "f1": 0.0}, adapt=True)
    lines = (place / "new.csv").read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join(lines[:6]))
    capsys.readouterr()
    assert main(["predict", str(place / "model"), str(few), "--adapt", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("shoal: 5 inputs say little about a place")
    fields = {"source", "label", "probability", "probabilities", "error", "unseen", "unusual"}
    assert [set(json.loads(line)) for line in said.out.splitlines()] == [fields] * 5


def test_what_is_not_offered_is_refused(place: Path, tmp_path: Path, capsys: Output) -> None:
    refused = with_card(
        place, tmp_path / "none", lambda card: card["adaptation"].update(offered=None)
    )
    capsys.readouterr()
    words = [str(place / "new.csv"), "--csv", "--adapt"]
    assert main(["predict", str(refused), *words]) != 0
    said = capsys.readouterr()
    assert said.out == "" and "none clearly helped on the domains left out" in said.err
    assert "points on average" in said.err
    older = with_card(place, tmp_path / "older", lambda card: card.pop("adaptation"))
    with pytest.raises(ValueError, match="'shoal fit' tries them"):
        shoal.load(older, "cpu").predict(place / "new.csv", adapt=True)
    damaged = with_card(place, tmp_path / "bad", lambda card: card["adaptation"].pop("shares"))
    with pytest.raises(ValueError, match="is damaged"):
        shoal.load(damaged, "cpu").adapted(place / "new.csv")
