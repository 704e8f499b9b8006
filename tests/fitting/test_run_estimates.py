"""Estimates from runs: scores of their logits, against scores by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.datasets import Domain, DomainDataset, splits
from shoal.fitting.candidates import Recipe
from shoal.fitting.estimates import Candidate, Estimates, Predictions
from shoal.fitting.folds import Fold
from shoal.fitting.run_estimates import RunEstimates, RunPredictions, _learned
from shoal.fitting.verdict import decide
from shoal.results.records import Record, RunResult
from shoal.runs.run import Run
from shoal.tensor_files import write_safetensors
from tests.fitting.made import table_setup

SIZES = {"a": 10, "b": 20, "c": 40}
FOLDS = tuple(Fold(name, (name,)) for name in SIZES)
METHODS = ("erm", "fishr")
SETUP = table_setup()


def dataset(sizes: Mapping[str, int] = SIZES, classes: int = 4) -> DomainDataset:
    domains = (
        Domain(name, torch.arange(size) % classes, torch.zeros(size, 3))
        for name, size in sizes.items()
    )
    return DomainDataset("made", tuple("nsew"[:classes]), tuple(domains))


def recipe(key: str) -> Recipe:
    """Return a recipe; "fishr λ=1" is another setting of "fishr"."""
    base = key.partition(" ")[0]
    candidate = Candidate(key, key.capitalize(), "erm" if base == "erm" else "penalty")
    return Recipe(candidate=candidate, method=base, settings={}, base=base, setup=SETUP)


def estimator(
    *keys: str, data: DomainDataset | None = None, folds: Sequence[Fold] = FOLDS, **more: str
) -> RunEstimates:
    recipes = [recipe(key) for key in keys or METHODS]
    return RunEstimates(dataset() if data is None else data, folds, recipes, **more)


# Runs with logits


class Runs:
    """Writes folders of runs with logits.

    The logits of a run are drawn; labels that are given as ``right`` have the largest one.
    """

    def __init__(self, root: Path, data: DomainDataset) -> None:
        self.root, self.data = root, data
        self.logits: dict[Path, dict[str, Tensor]] = {}

    def __call__(
        self,
        key: str,
        *tests: str,
        trial: int = 0,
        right: float = 0.7,
        inside: float = 0.8,
        logits: Mapping[str, Tensor] | None = None,
    ) -> tuple[str, RunResult]:
        """Return a run and the key of its candidate.

        Args:
            right, inside: how often the run is right, on the domains left out and on the others.
            logits: by domain and split, instead of drawn ones.
        """
        path = self.root / f"{key} {' '.join(tests)} {trial}"
        path.mkdir()
        seed = torch.Generator().manual_seed(len(self.logits))
        found = {}
        for name, split in splits(self.data, trial, 0.2).items():
            parts = {"kept": split.kept} if name in tests else {}
            for part, indices in {**parts, "held_out": split.held_out}.items():
                labels = self.data[name].labels[indices]
                share = right if name in tests else inside
                known = torch.arange(len(labels)) < round(share * len(labels))
                answers = torch.where(known, labels, (labels + 1) % len(self.data.classes))
                drawn = torch.rand(len(labels), len(self.data.classes), generator=seed)
                drawn[torch.arange(len(labels)), answers] += 1
                found[f"labels/{name}/{part}"] = labels
                found[f"last/{name}/{part}"] = drawn.half()
                found[f"half/{name}/{part}"] = -drawn.half()  # of averaged weights
        found |= logits or {}
        write_safetensors(path / "logits.safetensors", found)
        self.logits[path] = found
        run = result(key, *tests, trial=trial, path=path)
        return key, run

    def by_hand(self, run: RunResult, domains: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities and labels on all examples of these domains."""
        found = self.logits[run.path or Path()]
        names = [f"{name}/{part}" for name in domains for part in ("kept", "held_out")]
        logits = torch.cat([found[f"last/{name}"] for name in names]).double()
        labels = torch.cat([found[f"labels/{name}"] for name in names])
        return logits.softmax(-1).numpy(), labels.numpy()


def result(
    key: str, *tests: str, trial: int = 0, accuracy: float = 0.5, path: Path | None = None
) -> RunResult:
    def measured(step: int, value: float) -> Record:
        found = {name: {"held_out": 0.9} for name in SIZES if name not in tests}
        found |= {name: {"kept": value, "held_out": value} for name in tests}
        return Record(
            step=step, accuracy=found, calibration_error={name: {"kept": 0.1} for name in tests}
        )

    # The record before the last is better, and must not be read.
    return RunResult(
        dataset="made",
        algorithm=key.partition(" ")[0],
        test_domains=tests,
        trial=trial,
        draw=0,
        hparams={},
        records=(measured(0, 1.0), measured(9, accuracy)),
        path=path,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path, dataset())


def test_accuracy_is_of_the_whole_domain(runs: Runs) -> None:
    key, one = runs("erm", "b", right=0.55)
    found = estimator()([(key, one)])
    p, y = runs.by_hand(one, ["b"])
    assert len(y) == 20
    assert found.scores == {"erm": {"b": [pytest.approx(np.mean(p.argmax(1) == y))]}}
    assert 0.4 < found.scores["erm"]["b"][0] < 0.7  # and not the 0.5 of its records
    assert found.examples == SIZES
    assert (found.metric, found.judge) == ("accuracy", "mean")


def recalls(p: np.ndarray, y: np.ndarray) -> list[float]:
    return [float(np.mean(p.argmax(1)[y == k] == k)) for k in range(4)]


def f1(p: np.ndarray, y: np.ndarray) -> float:
    found = []
    for k in range(4):
        right = np.sum((p.argmax(1) == k) & (y == k))
        found.append(2 * right / (np.sum(p.argmax(1) == k) + np.sum(y == k)))
    return float(np.mean(found))


def auroc(p: np.ndarray, y: np.ndarray) -> float:
    found = []
    for k in range(4):
        gaps = p[y == k, k][:, None] - p[y != k, k][None]
        found.append(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    return float(np.mean(found))


BY_HAND = {
    "balanced": lambda p, y: np.mean(recalls(p, y)),
    "f1": f1,
    "auroc": auroc,
    "log-loss": lambda p, y: -np.mean(np.log(p[np.arange(len(y)), y])),
}


@pytest.mark.parametrize("metric", BY_HAND)
def test_other_metrics(metric: str, runs: Runs) -> None:
    all_runs = [runs("erm", name, right=0.6) for name in SIZES]
    found = estimator(metric=metric, judge="worst")(all_runs)
    assert (found.metric, found.judge) == (metric, "worst")
    for (_, one), name in zip(all_runs, SIZES, strict=True):
        expected = BY_HAND[metric](*runs.by_hand(one, [name]))
        assert found.scores["erm"][name] == [pytest.approx(expected, abs=1e-12)]
    # What needs no model has the same metric.
    even = {"balanced": 0.25, "auroc": 0.5, "log-loss": math.log(4)}
    if metric in even:
        assert found.chance == pytest.approx(dict.fromkeys(SIZES, even[metric]))
        assert found.guess["b"] == pytest.approx(even[metric], abs=0.01)


def test_calibration_and_predictions_are_of_the_domain_left_out(runs: Runs) -> None:
    key, one = runs("erm", "b")
    found = estimator()([(key, one), runs("erm", "b", trial=1)])
    p, y = runs.by_hand(one, ["b"])
    # Probabilities of four classes near each other are all in a few bins.
    bins = np.ceil(p.max(1) * 15)
    gaps = [abs(np.sum((p.max(1) - (p.argmax(1) == y))[bins == k])) for k in np.unique(bins)]
    first, second = found.calibration_errors["erm"]["b"]
    assert first == pytest.approx(np.sum(gaps) / 20)
    assert second != first
    # Those of the first trial feed the temperature.
    mine = found.predictions["erm"]["b"]
    np.testing.assert_allclose(np.exp(mine.log_probabilities), p)
    assert (mine.labels == y).all()


def test_predictions_feed_the_temperature(runs: Runs) -> None:
    loud = []
    for name in SIZES:
        _, one = runs("erm", name, right=0.75, inside=0.9)
        logits = {
            where: 20 * values
            for where, values in runs.logits[one.path or Path()].items()
            if where.startswith("last")
        }
        loud.append(runs("fishr", name, right=0.75, inside=0.9, logits=logits))
    found = decide(estimator("fishr")(loud)).decision.temperature
    assert found is not None and found.helps
    assert found.value > 3


def test_a_run_that_left_out_two_folds_is_scored_on_both(runs: Runs) -> None:
    key, one = runs("erm", "a", "c", logits={"last/a/held_out": torch.zeros(2, 4).half()})
    found = estimator()([(key, one)])
    accuracy = {}
    for name in "ac":
        p, y = runs.by_hand(one, [name])
        accuracy[name] = np.mean(p.argmax(1) == y)
    assert accuracy["a"] != accuracy["c"]
    # (d, v) is the score on v.
    assert found.pairs == {"erm": {("a", "c"): accuracy["c"], ("c", "a"): accuracy["a"]}}
    assert found.scores == {}
    assert found.predictions == {} and found.inside == {}  # nothing else is known by them


def test_all_pairs_make_it_nested(runs: Runs) -> None:
    singles = [runs("erm", name) for name in SIZES]
    pairs = [runs("erm", *pair) for pair in ("ab", "ac", "bc")]
    some, found = (estimator("erm")(singles + pairs[:k]) for k in (2, 3))
    assert not some.nested and found.nested
    # The temperature, too, and its predictions are those of the run that left both out.
    p, y = runs.by_hand(pairs[1][1], ["c"])
    read = found.pair_predictions["erm"]["a", "c"]()
    np.testing.assert_allclose(np.exp(read.log_probabilities), p)
    assert (read.labels == y).all()
    nested = [decide(one).decision.temperature for one in (some, found)]
    assert [one and one.nested for one in nested] == [False, True]


def test_inside_is_of_held_out_examples_of_training_domains(runs: Runs) -> None:
    wrong = torch.zeros(2, 4).half()
    wrong[:, 0] = 1
    changed = {"last/a/held_out": wrong}
    # What was trained on says nothing.
    changed |= {"last/c/kept": wrong.clone(), "labels/c/kept": torch.ones(2, dtype=torch.long)}
    key, one = runs("erm", "b", trial=1, right=0.0, inside=1.0, logits=changed)
    labels = runs.logits[one.path or Path()]["labels/a/held_out"]
    expected = (float((labels == 0).double().mean()) + 1.0) / 2  # domains count alike
    assert expected < 1
    assert estimator()([(key, one)]).inside == {"erm": pytest.approx(expected)}
    # Over runs it is a mean, too.
    both = [runs("fishr", "a", inside=1.0), runs("fishr", "b", inside=0.0)]
    assert estimator()(both).inside == {"fishr": pytest.approx(0.5)}


def test_the_split_of_a_baseline_tells_of_its_own_domains_alone(runs: Runs) -> None:
    found = estimator()([runs("erm", inside=1.0)])
    assert found.inside == {"erm": 1.0}
    assert found.scores == {} and found.predictions == {}
    assert estimator()([runs("fishr", inside=0.0)]).inside == {"fishr": 0.0}


def test_folds_of_several_domains(tmp_path: Path) -> None:
    data = dataset({"a": 12, "b": 20, "c": 40, "d": 8})
    folds = (Fold("a and 1 more", ("a", "d")), Fold("b", ("b",)), Fold("c", ("c",)))
    runs = Runs(tmp_path, data)
    key, one = runs("erm", "a", "d", right=0.6)
    key, two = runs("erm", "a", "b", "d", right=0.4)
    found = estimator(data=data, folds=folds)([(key, one), (key, two)])
    p, y = runs.by_hand(one, ["a", "d"])
    assert len(y) == 20
    # All examples together, not the mean of two domains.
    assert found.scores == {"erm": {"a and 1 more": [pytest.approx(np.mean(p.argmax(1) == y))]}}
    p, y = runs.by_hand(two, ["a", "d"])
    assert found.pairs["erm"]["b", "a and 1 more"] == pytest.approx(np.mean(p.argmax(1) == y))
    assert found.examples == {"a and 1 more": 20, "b": 20, "c": 40}
    assert list(found.guess) == ["a and 1 more", "b", "c"]
    failed = Run(dataset="made", fingerprint="", algorithm="erm", test_domains=("a", "d"))
    assert estimator(data=data, folds=folds)([], [("erm", failed)]).failed == {
        ("erm", "a and 1 more")
    }


def test_trials_of_a_domain_are_kept_apart(runs: Runs) -> None:
    some = [runs("erm", name, trial=t, right=r) for name in SIZES for t, r in ((0, 0.0), (1, 1.0))]
    found = estimator()(some)
    assert found.scores["erm"] == {name: [0.0, 1.0] for name in SIZES}
    assert found.trials == (2, 2)


def test_files_are_read_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    real = RunPredictions.read

    def reading(folder: Path, *given: object) -> RunPredictions | None:
        read.append(folder)
        return real(folder, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RunPredictions, "read", reading)
    make, one, other = estimator(), runs("erm", "a"), runs("erm", "b")
    first = make([one])
    assert make([one, other]).scores["erm"]["a"] == first.scores["erm"]["a"]
    assert len(read) == 2


def test_logits_beyond_half_precision(runs: Runs) -> None:
    huge = torch.tensor([[1e6, 0, 0, 0], [0, -1e6, 0, 0]]).half()
    assert huge.isinf().any()
    _, one = runs("erm", "b", logits={"last/a/held_out": huge})
    found = RunPredictions.read(one.path or Path(), ["a"])
    assert found is not None
    p = np.exp(found.of(["a"]).log_probabilities)
    np.testing.assert_allclose(p, [[1, 0, 0, 0], [1 / 3, 0, 1 / 3, 1 / 3]], atol=1e-12)


def test_a_whole_network_is_scored_by_its_averaged_weights(runs: Runs) -> None:
    setup = replace(SETUP, kind="images", trained="all", backbone="resnet50")
    recipes = [recipe("erm"), replace(recipe("fishr"), setup=setup)]
    some = [runs(key, "c", right=1.0) for key in METHODS]
    found = RunEstimates(dataset(), FOLDS, recipes)(some)
    assert found.scores == {"erm": {"c": [1.0]}, "fishr": {"c": [0.0]}}
    # If there was too little memory for averages, the last weights count.
    one = some[1][1].path or Path()
    last = {name: found for name, found in runs.logits[one].items() if "half" not in name}
    write_safetensors(one / "logits.safetensors", last)
    assert RunEstimates(dataset(), FOLDS, recipes)(some).scores["fishr"] == {"c": [1.0]}


# Candidates


def test_other_settings_count_once_they_are_complete(runs: Runs) -> None:
    make = estimator("erm", "fishr", "fishr λ=1")
    some = [runs(key, name) for key in ("erm", "fishr λ=1") for name in "ab"]
    some += [runs("fishr λ=1", "a", "b")]
    found = make(some)
    # One with the defaults is named as not compared, also if it was not tried at all.
    assert [one.key for one in found.candidates] == ["erm", "fishr"]
    assert set(found.scores) == {"erm"} and found.pairs == {}
    found = make([*some, runs("fishr λ=1", "c")])
    assert [one.key for one in found.candidates] == ["erm", "fishr", "fishr λ=1"]
    assert set(found.scores) == {"erm", "fishr λ=1"} and set(found.pairs) == {"fishr λ=1"}
    assert [one.key for one in found.complete] == ["fishr λ=1"]


def outcome(runs: Runs, inside: Mapping[str, Sequence[float]], *more: str) -> Estimates:
    """Return estimates of candidates that are so often right on their own domains."""
    found = [
        runs(key, name, inside=share)
        for key, shares in inside.items()
        for name, share in zip(SIZES, shares, strict=False)
    ]
    return estimator(*inside, *more)(found)


def test_a_candidate_that_learned_nothing_is_not_compared(runs: Runs) -> None:
    found = outcome(runs, {"erm": [1, 1, 1], "fishr": [0, 0, 1], "irm": [0, 1, 1]})
    assert found.collapsed == {"fishr"}  # in most of its runs
    assert [one.key for one in found.complete] == ["erm", "irm"]


def test_if_nothing_can_be_learned_all_are_compared(runs: Runs) -> None:
    found = outcome(runs, {"erm": [0, 0, 0], "fishr": [0, 0, 0]})
    assert found.collapsed == frozenset() and len(found.complete) == 2


def test_if_what_is_complete_has_collapsed_it_is_compared(runs: Runs) -> None:
    """Otherwise a candidate that had no time to end would take the verdict with it."""
    found = outcome(runs, {"erm": [0, 0, 0], "fishr": [1]})
    assert found.collapsed == frozenset() and [one.key for one in found.complete] == ["erm"]


def uneven(**counts: tuple[int, int]) -> DomainDataset:
    """Return a data set with so many examples of "no" and of "yes" in each domain."""
    domains = []
    for name, (no, yes) in counts.items():
        labels = torch.tensor([0] * no + [1] * yes)
        domains.append(Domain(name, labels, torch.zeros(no + yes, 3)))
    return DomainDataset("made", ("no", "yes"), tuple(domains))


def collapses(right_no: float, right_yes: float, n: int = 400) -> bool:
    """Return whether a model has collapsed that finds so many of the 300 "no" and 100 "yes"."""
    labels = np.repeat([0, 1], [3 * n // 4, n // 4])
    right = np.concatenate(
        [np.arange(3 * n // 4) < right_no * 3 * n // 4, np.arange(n // 4) < right_yes * n // 4]
    )
    answers = np.where(right, labels, 1 - labels)
    logs = np.log(np.where(answers[:, None] == [0, 1], 0.9, 0.1))
    return not _learned(
        [Predictions(logs[::2], labels[::2]), Predictions(logs[1::2], labels[1::2])]
    )


def test_collapse_is_no_bad_luck() -> None:
    assert not collapses(1.0, 0.0)  # always "no", which is right most often
    assert collapses(0.0, 1.0)  # always "yes"
    assert collapses(0.5, 0.5)  # thrown dice
    # Right less often than always "no", 75 %, but by less than two errors of 2.2 %.
    assert not collapses(0.95, 0.02)
    assert collapses(0.92, 0.04)
    # It finds "yes", at the cost of "no".
    assert not collapses(0.6, 0.95)


def test_no_probabilities_at_all(runs: Runs) -> None:
    lost = {
        f"last/{name}/held_out": torch.full((k, 4), math.nan).half()
        for name, k in (("b", 4), ("c", 8))
    }
    found = estimator()([runs("erm", "a", logits=lost), *(runs("fishr", one) for one in SIZES)])
    assert found.collapsed == {"erm"}


# Runs without logits, and other facts


def test_a_run_without_logits_has_its_records(tmp_path: Path) -> None:
    one = result("erm", "b", path=tmp_path)
    parts = splits(dataset(), 0, 0.2)["b"]
    measured = {**one.last.accuracy, "b": {"kept": 0.5, "held_out": 0.25}}
    one = replace(one, records=(one.records[0], replace(one.last, accuracy=measured)))
    found = estimator()([("erm", one), ("erm", result("erm", "a"))])
    right = 0.5 * len(parts.kept) + 0.25 * len(parts.held_out)
    assert found.scores == {"erm": {"b": [pytest.approx(right / 20)], "a": [0.5]}}
    assert found.inside == {"erm": pytest.approx(0.9)}
    assert found.calibration_errors == {"erm": {"b": [0.1], "a": [0.1]}}
    assert found.predictions == {} and found.collapsed == frozenset()
    # Accuracies say nothing of other metrics.
    other = estimator(metric="auroc")([("erm", one)])
    assert math.isnan(other.scores["erm"]["b"][0]) and other.inside == {}


def test_too_few_examples_to_hold_any_out() -> None:
    runs = []
    for one in (result(name, d) for d in SIZES for name in METHODS):
        kept = {d: {"kept": parts.get("kept", 0.9)} for d, parts in one.last.accuracy.items()}
        last = replace(one.last, accuracy=kept)
        runs.append((one.algorithm, replace(one, records=(last,), protocol={"holdout": 0.0})))
    odd = {**runs[0][1].last.accuracy, "b": {"kept": 0.5, "held_out": float("nan")}}
    last = replace(runs[0][1].last, accuracy=odd)
    runs[0] = ("erm", replace(runs[0][1], records=(last,)))
    found = estimator()(runs)
    assert found.inside == {}
    json.dumps(decide(found).as_json(), allow_nan=False)


def test_answers_without_a_model() -> None:
    data = uneven(a=(6, 4), b=(2, 18), c=(13, 2))
    found = estimator(data=data)([])
    # Without a there are 15 no and 20 yes, without b 19 and 6, without c 8 and 22.
    assert found.guess == pytest.approx({"a": 4 / 10, "b": 2 / 20, "c": 2 / 15})
    assert found.majority == pytest.approx({"a": 6 / 10, "b": 18 / 20, "c": 13 / 15})
    assert found.chance == {"a": 0.5, "b": 0.5, "c": 0.5}
    losses = estimator(data=data, metric="log-loss")([])
    assert losses.guess["a"] == pytest.approx(-0.6 * math.log(15 / 35) - 0.4 * math.log(20 / 35))


def test_a_run_that_failed_is_told_apart_from_one_that_had_no_time() -> None:
    runs = [(name, result(name, d, accuracy=0.6)) for d in "ab" for name in METHODS]
    found = decide(estimator()(runs))
    assert found.sentences[0].startswith("Not enough time or runs: only 2 of 3 domains were")
    failed = [
        (name, Run(dataset="made", fingerprint="", algorithm=name, test_domains=("c",)))
        for name in METHODS
    ]
    found = decide(estimator()(runs, failed))
    assert found.sentences[0] == "No verdict: runs failed, so only 2 of 3 domains were left out."
