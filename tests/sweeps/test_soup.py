"""Soups against slow versions: NumPy's mean, loops over members, logits summed by hand."""

import itertools
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

import shoal
from shoal.algorithms.erm import ERM
from shoal.datasets import DomainDataset, splits
from shoal.networks import Network
from shoal.randomness import stream
from shoal.results.records import RunResult, read_runs
from shoal.runs.best_weights import NotKept
from shoal.runs.model import load, prediction_tensors
from shoal.runs.run import Run
from shoal.sweeps import soup as soups
from shoal.sweeps.members import group_of, grouped
from shoal.sweeps.soup import _layers, make_soup, read_soup, write_soup
from shoal.sweeps.soup_weights import ALPHAS, best_first, greedy, interpolate
from tests.runs.small import CPU, carry_out, small_run, squares

PROBED = {"start": "linear-probe", "steps": 6}
# Learning rates so different that members differ and a greedy soup leaves some out.
RATES = (3e-7, 1e-6, 3e-6, 1e-5)


def tiny() -> DomainDataset:
    """Return squares of 8 × 8 pixels, a third of which has the other label, so that models err."""
    plain = squares((60, 70, 80), "tiny", side=8)
    domains = []
    for domain in plain.domains:
        flipped = torch.rand(len(domain), generator=stream("flips", domain.name)) < 1 / 3
        domains.append(
            replace(domain, labels=torch.where(flipped, 1 - domain.labels, domain.labels))
        )
    return replace(plain, domains=tuple(domains))


def tiny_run(algorithm: str, **changes: Any) -> Run:
    return small_run(algorithm, tiny(), **{"network": "mnist-cnn"} | changes)


def member_folder(sweep: Path, run: Run) -> Path:
    return sweep / "runs" / run.identity[:20]


def train(sweep: Path, *runs: Run, **more: Any) -> None:
    for run in runs:
        carry_out(member_folder(sweep, run), run, dataset=tiny(), **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four draws of one trial from a linear probe, with the weights of their best records."""
    sweep = tmp_path_factory.mktemp("soup") / "sweep"
    runs = [tiny_run("erm", draw=draw, lr=lr, **PROBED) for draw, lr in enumerate(RATES)]
    train(sweep, *runs, machine={"keep_best": ("training-domain",), "averages": ("half",)})
    return sweep


@pytest.fixture
def sweep(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "sweep")


def members_of(sweep: Path, of: str | None = "last") -> Any:
    (runs,) = grouped(read_runs([sweep]))
    return group_of(runs, of)


def soup_of(sweep: Path, of: str = "last", **more: Any) -> Any:
    return make_soup(members_of(sweep, of), tiny(), None, sweep / "soups", CPU, **more)


def row(soup: Any, kind: str, **wanted: Any) -> Any:
    (found,) = [
        one
        for one in soup.of_kind(kind)
        if all(getattr(one, name) == value for name, value in wanted.items())
    ]
    return found


def weights_in(folder: Path) -> dict[str, Any]:
    """Return what a file holds of the weights, and what else, by name."""
    parameters = dict(load(folder, CPU).algorithm.named_parameters())
    tensors = load_file(folder / "model.safetensors")
    assert parameters.keys() <= tensors.keys()
    return {name: tensors[name] for name in parameters}


def test_the_uniform_soup_is_the_mean_of_all_members(sweep: Path) -> None:
    soup = soup_of(sweep)
    group = members_of(sweep)
    members = [weights_in(one.weights) for one in group.members]
    found = weights_in(sweep / "soups" / soup.name / "uniform")
    assert len(members) == 4 and len(found) > 10
    for name, tensor in found.items():
        expected = np.mean([one[name].astype(np.float64) for one in members], axis=0)
        assert np.array_equal(tensor, expected.astype(np.float32))
        assert not np.array_equal(tensor, members[0][name])
    # What is no weight is the first member's.
    first = load_file(group.members[0].weights / "model.safetensors")
    whole = load_file(sweep / "soups" / soup.name / "uniform" / "model.safetensors")
    assert first.keys() == whole.keys() > found.keys()
    for name in first.keys() - found.keys():
        assert np.array_equal(first[name], whole[name])


def test_members_have_the_numbers_of_their_records(sweep: Path) -> None:
    (runs,) = grouped(read_runs([sweep]))
    soup = soup_of(sweep)
    for result in runs:
        found = row(soup, "member", draws=(result.draw,))
        assert found.validation == pytest.approx(result.last_inside)
        assert found.test == result.last_accuracy
        errors = result.last.calibration_error["c"]["kept"]
        assert found.calibration_error == pytest.approx(errors, abs=1e-9)
    members = soup.of_kind("member")
    mean = row(soup, "mean")
    assert mean.test == pytest.approx(np.mean([one.test for one in members]))
    assert mean.validation == pytest.approx(np.mean([one.validation for one in members]))
    best = max(members, key=lambda one: (round(one.validation, 9), one.draws))
    assert row(soup, "best") == replace(best, kind="best")


def test_the_weights_of_the_best_record(sweep: Path) -> None:
    (runs,) = grouped(read_runs([sweep]))
    assert any(run.inside.index(max(run.inside)) < len(run.records) - 1 for run in runs)
    soup = soup_of(sweep, "best")
    for result in runs:
        at = result.inside.index(max(result.inside))
        found = row(soup, "member", draws=(result.draw,))
        assert found.validation == pytest.approx(result.inside[at])
        assert found.test == result.records[at].of("c", "kept")


def logits_by_hand(folder: Path, images: Tensor) -> Tensor:
    with torch.no_grad():
        return load(folder, CPU).algorithm.predict(images.float() / 255)


def test_the_ensemble_sums_logits(sweep: Path) -> None:
    soup, group, dataset = soup_of(sweep), members_of(sweep), tiny()
    kept = splits(dataset, 0)["c"].kept
    images, labels = dataset["c"].tensor[kept], dataset["c"].labels[kept]
    summed = sum(logits_by_hand(one.weights, images).double() for one in group.members)
    assert isinstance(summed, Tensor)
    found = row(soup, "ensemble")
    assert found.test == float((summed.argmax(1) == labels).double().mean())
    # Confidences are those of the mean: of the sum they would grow with the number of members.
    means = [
        logits_by_hand(one.weights, dataset[name].tensor[out]).double() / 4
        for name, (_, out) in splits(dataset, 0).items()
        for one in group.members
        if name != "c"
    ]
    right = []
    for number, name in enumerate(("a", "b")):
        mine = dataset[name].labels[splits(dataset, 0)[name].held_out]
        total = torch.stack(means[4 * number : 4 * number + 4]).sum(0)
        right.append(float((total.argmax(1) == mine).double().mean()))
    assert found.validation == pytest.approx(sum(right) / 2)
    confidence = (summed / 4).softmax(1).max(1).values
    bins = (confidence * 15).ceil().long() - 1
    gaps = [
        (confidence[bins == k] - (summed.argmax(1) == labels)[bins == k].double()).sum().abs()
        for k in range(15)
    ]
    assert found.calibration_error == pytest.approx(float(sum(gaps)) / len(labels), abs=1e-9)


def slow_greedy(table: dict[tuple[int, ...], float], members: int) -> list[int]:
    """Return the greedy soup as the paper tells it; of equal members the later is tried first."""
    chosen: list[int] = []
    best = -1.0
    for number in sorted(range(members), key=lambda k: (table[(k,)], k), reverse=True):
        attempt = [*chosen, number]
        if table[tuple(sorted(attempt))] >= best:
            chosen, best = attempt, table[tuple(sorted(attempt))]
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_the_greedy_choice(seed: int) -> None:
    random_, members = random.Random(seed), 5
    subsets = (
        subset
        for size in range(1, members + 1)
        for subset in itertools.combinations(range(members), size)
    )
    table = {subset: random_.choice([0.6, 0.7, 0.8, 0.9]) for subset in subsets}
    tried: list[list[int]] = []

    def score(numbers: list[int]) -> float:
        tried.append(numbers)
        return table[tuple(sorted(numbers))]

    found = greedy([table[(k,)] for k in range(members)], score)
    assert found == slow_greedy(table, members)
    assert len(tried) == members - 1  # every candidate is measured once


def test_scores_that_are_equal_or_no_number() -> None:
    assert best_first([0.5, 0.7, 0.7, float("nan"), 0.1 + 0.2, 0.3]) == [2, 1, 0, 5, 4, 3]
    almost = [0.3, 0.1 + 0.2]
    assert greedy(almost, lambda numbers: 0.3) == [1, 0]  # 0.3 has not fallen below 0.1 + 0.2
    assert greedy([0.5, 0.4], lambda numbers: float("nan")) == [0]


def test_the_greedy_soup_is_the_mean_of_those_that_stayed(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each candidate is measured as the average that it would make."""
    seen: list[dict[str, Tensor]] = []
    scores = iter([0.0, 1.1, 0.5])  # the second of three candidates stays
    models: Any = soups._GroupModels

    def score_of_average(self: Any, numbers: list[int]) -> float:
        ask(self, numbers)
        weights = dict(self.first.algorithm.named_parameters())
        seen.append({name: tensor.detach().clone() for name, tensor in weights.items()})
        asked.append(numbers)
        return next(scores)

    ask, asked = models.score_of_average, list[list[int]]()
    monkeypatch.setattr(models, "score_of_average", score_of_average)
    soup = soup_of(sweep)
    members = [weights_in(one.weights) for one in members_of(sweep).members]
    stayed = list(row(soup, "greedy").draws)
    assert len(stayed) == 2 and asked == [
        [stayed[0], asked[0][1]],
        stayed,
        [*stayed, asked[2][2]],
    ]
    found = weights_in(sweep / "soups" / soup.name / "greedy")
    for name, tensor in found.items():
        mean = np.mean([members[k][name].astype(np.float64) for k in stayed], axis=0)
        assert np.array_equal(tensor, mean.astype(np.float32))
        for numbers, weights in zip(asked, seen, strict=True):
            mean = np.mean([members[k][name].astype(np.float64) for k in numbers], axis=0)
            assert np.array_equal(weights[name].numpy(), mean.astype(np.float32))


def test_interpolation_ends_at_the_start_and_at_the_soup(sweep: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    start, end = ({"w": torch.randn(9, generator=draws)} for _ in range(2))
    assert torch.equal(interpolate(start, end, 0.0)["w"], start["w"].double())
    assert torch.equal(interpolate(start, end, 1.0)["w"], end["w"].double())
    between = 0.7 * start["w"] + 0.3 * end["w"]
    assert torch.allclose(interpolate(start, end, 0.3)["w"], between.double())

    soup = soup_of(sweep)
    found = soup.of_kind("interpolated")
    assert [one.alpha for one in found] == list(ALPHAS) == [k / 10 for k in range(11)]
    uniform = row(soup, "uniform")
    assert (found[-1].test, found[-1].validation) == (uniform.test, uniform.validation)
    # A run that trains nothing is its start.
    still = tiny_run("erm", lr=0.0, **PROBED)
    result = carry_out(sweep.parent / "still", still, dataset=tiny())
    assert (found[0].test, found[0].draws) == (result.last_accuracy, ())
    assert found[0].validation == pytest.approx(result.last_inside)
    best = max(found, key=lambda one: (round(one.validation, 9), one.alpha))
    assert soup.chosen == best and best.model == "interpolated"
    assert [one for one in found if one.model] == [best]
    saved = weights_in(sweep / "soups" / soup.name / "interpolated")
    ends = (weights_in(sweep.parent / "still"), weights_in(sweep / "soups" / soup.name / "uniform"))
    for name, tensor in saved.items():
        expected = (1 - best.alpha) * ends[0][name] + best.alpha * ends[1][name]
        assert np.allclose(tensor, expected, atol=1e-6)


def test_a_random_head_is_not_interpolated_with(tmp_path: Path) -> None:
    train(tmp_path, *(tiny_run("erm", draw=draw, lr=1e-3 * (draw + 1), steps=1) for draw in (0, 1)))
    soup = soup_of(tmp_path)
    assert soup.of_kind("interpolated") == []
    assert soup.why.startswith("the runs started with a random head; train them with --start")
    assert not (tmp_path / "soups" / soup.name / "interpolated").exists()


def test_without_the_start_there_is_no_interpolation(sweep: Path) -> None:
    folder = members_of(sweep).members[2].folder
    (folder / "start.json").unlink()
    soup = soup_of(sweep)
    assert soup.why == f"{folder} has no start.json, which was not copied with it"
    assert soup.of_kind("interpolated") == []


def test_a_soup_is_a_model_like_any_other(sweep: Path) -> None:
    soup = soup_of(sweep)
    for one in soup.rows:
        assert (one.model is not None) == (one.kind in ("uniform", "greedy") or one is soup.chosen)
        if one.model is None:
            continue
        folder = sweep / "soups" / soup.name / one.model
        predictor = shoal.load(folder, "cpu")
        about = predictor.card["soup"]
        assert about["validation"] == one.validation and about["test"] == one.test
        assert [member["draw"] for member in about["members"]] == list(one.draws)
        assert predictor.card["accuracy"]["c"]["kept"] == one.test
        members = {member["draw"]: member for member in about["members"]}
        for member in members_of(sweep).members:
            if member.draw in members:
                assert members[member.draw]["sha256"] == member.sha256
                assert members[member.draw]["hparams"]["lr"] == RATES[member.draw]
        assert sorted(predictor.card["training_domains"]) == ["a", "b"]


def test_numbers_are_kept_and_read(sweep: Path) -> None:
    out, group = sweep / "soups", members_of(sweep)
    counted: list[tuple[int, int]] = []
    soup = soup_of(sweep, progress=lambda done, total: counted.append((done, total)))
    assert {total for _, total in counted} == {counted[-1][0]}
    assert len(counted) == 4 + 1 + 3 + 1 + 10 and [*counted] == sorted(counted)
    assert read_soup(out, group.name, group.key) is None
    write_soup(out, soup)
    assert read_soup(out, group.name, group.key) == soup
    assert read_soup(out, group.name, "another") is None
    assert read_soup(out, "another", group.key) is None
    other = replace(soup, name="another", key="k", rows=())
    write_soup(out, other)
    assert read_soup(out, "another", "k") == other and read_soup(out, group.name, group.key) == soup
    (out / group.name / "greedy" / "model.json").unlink()
    assert read_soup(out, group.name, group.key) is None
    again = soup_of(sweep)
    assert again == soup  # the same numbers every time


def test_which_weights_are_taken(sweep: Path) -> None:
    assert members_of(sweep, None).of == "best"
    lacking = r"lacks the weights 'sma' of draws 0, 1, 2, 3 \(of 4 runs\): .* of the average sma"
    with pytest.raises(NotKept, match=lacking):
        members_of(sweep, "sma")
    found = members_of(sweep, "half")
    assert found.key != members_of(sweep).key and found.name != members_of(sweep).name
    for member, last in zip(found.members, members_of(sweep).members, strict=True):
        assert member.weights == last.folder / "averages" / "half"
        assert member.sha256 != last.sha256
    soup = soup_of(sweep, "half")
    means = [weights_in(one.weights)["model.classifier.weight"] for one in found.members]
    averaged = weights_in(sweep / "soups" / soup.name / "uniform")["model.classifier.weight"]
    assert np.allclose(averaged, np.mean(means, axis=0), atol=1e-6)
    for member in members_of(sweep).members:
        shutil.rmtree(member.folder / "kept", ignore_errors=True)
    assert members_of(sweep, None).of == "last"
    with pytest.raises(NotKept, match="did not keep the weights of step"):
        members_of(sweep, "best")


def changed(sweep: Path, **changes: Any) -> list[RunResult]:
    """Return the runs of the sweep, one of which is of another protocol."""
    (runs,) = grouped(read_runs([sweep]))
    path = runs[1].path
    assert path is not None
    values = json.loads((path / "run.json").read_text())
    values["protocol"] |= changes
    values["fingerprint"] = changes.get("fingerprint", values["fingerprint"])
    values["protocol"].pop("fingerprint", None)
    (path / "run.json").write_text(json.dumps(values))
    return list(runs)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"start": "network"}, "start linear-probe and network"),
        ({"network": "resnet18"}, "network mnist-cnn and resnet18"),
        ({"weights": "imagenet"}, "weights None and imagenet"),
        ({"frozen_statistics": False}, "frozen statistics True and False"),
        ({"holdout": 0.3}, "holdout 0.2 and 0.3"),
        ({"fingerprint": "0"}, "their data have changed in between"),
    ],
)
def test_members_of_different_starts_are_refused(
    changes: dict[str, Any], why: str, sweep: Path
) -> None:
    runs = changed(sweep, **changes)
    with pytest.raises(ValueError, match=f"cannot be averaged, because .*: {why}; put them"):
        group_of(runs, "last")


def test_a_longer_run_is_a_member(sweep: Path) -> None:
    assert len(group_of(changed(sweep, steps=9), "last").members) == 4


def test_other_linear_probes_are_refused(sweep: Path) -> None:
    first, second, *_ = (one.folder for one in members_of(sweep).members)
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file

    head = load_tensors(first / "start.safetensors")
    nudged = {name: tensor * (1 + 1e-5) for name, tensor in head.items()}
    save_file(nudged, second / "start.safetensors")
    soup_of(sweep)  # rounding is no other start
    save_file({name: tensor * 1.1 for name, tensor in head.items()}, second / "start.safetensors")
    with pytest.raises(ValueError, match="started from different linear probes"):
        soup_of(sweep)


def test_changed_data_are_refused(sweep: Path) -> None:
    dataset = tiny()
    dataset["a"].tensor[0] += 1
    with pytest.raises(ValueError, match="tiny has changed since its runs were trained"):
        make_soup(members_of(sweep), dataset, None, sweep / "soups", CPU)


def test_nothing_held_out_is_refused(tmp_path: Path) -> None:
    train(tmp_path, *(tiny_run("erm", draw=draw, steps=1, holdout=0.0) for draw in (0, 1)))
    with pytest.raises(ValueError, match="nothing of tiny was held out"):
        soup_of(tmp_path)


def test_weights_of_different_shapes_are_refused(tmp_path: Path) -> None:
    widths = [tiny_run("dann", draw=draw, steps=1, mlp_width=8 + 8 * draw) for draw in (0, 1)]
    train(tmp_path, *widths)
    with pytest.raises(ValueError, match=r"change the shape of discriminator.*--search mild"):
        soup_of(tmp_path)


def test_weights_of_different_layers_are_refused(tmp_path: Path) -> None:
    """URM's bound has no weights, and one network with both kinds is neither."""
    bounds = [
        tiny_run("urm", draw=draw, steps=1, output=output)
        for draw, output in enumerate(("tanh", "relu"))
    ]
    train(tmp_path, *bounds)
    with pytest.raises(
        ValueError, match=r"urm .* change the network's layers \(Tanh and ReLU\); .* --set"
    ):
        soup_of(tmp_path)


def test_dropout_does_not_keep_runs_apart() -> None:
    assert _layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))) == _layers(
        nn.Sequential(nn.Linear(2, 2), nn.Identity())
    )


def test_batch_norm_that_follows_the_data_is_refused() -> None:
    method = ERM(Network(nn.Sequential(nn.BatchNorm1d(3)), nn.Linear(3, 2)), num_domains=2)
    with pytest.raises(ValueError, match="batch-norm statistics of these runs followed the data"):
        soups._refuse_moving_statistics(method.eval())
    assert not method.training
    norm: Any = method.model.features[0]  # type: ignore[index]
    norm.train = lambda mode=True: norm
    soups._refuse_moving_statistics(method)
    assert "optimiser.steps" not in prediction_tensors(method)
