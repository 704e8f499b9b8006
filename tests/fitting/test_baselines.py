"""Baselines: as arrays they give scikit-learn's probabilities; their runs are like any other."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression

import shoal
from shoal.algorithms import find
from shoal.catalogue import BASELINES, title_of
from shoal.cli import main
from shoal.datasets import Domain, DomainDataset, splits
from shoal.fitting import baselines, fit, leave_one_out
from shoal.fitting.baselines import CLASSES
from shoal.fitting.onnx_export import write_onnx
from shoal.fitting.predictor import Predictor
from shoal.fitting.setup import FIRST_VERSION, VERSION, FitWorkspace, find_method
from shoal.runs import fitted
from shoal.runs import model as models
from shoal.runs.fitted import Fitted
from shoal.runs.machine import Machine
from shoal.runs.model import Model, registered
from shoal.runs.run import Run
from shoal.storage import write_json
from shoal.sweeps.plan import folder_of
from shoal.sweeps.status import RunState
from shoal.sweeps.worker import Worker
from tests.fitting.made import table_setup, write_table

CPU = torch.device("cpu")
# Fewer trees than by default, so that a test takes moments.
FEW: dict[str, dict[str, Any]] = {
    "logistic-regression": {"C": 0.5},
    "random-forest": {"n_estimators": 9, "min_samples_leaf": 2},
    "extra-trees": {"n_estimators": 9, "min_samples_leaf": 1},
    "gradient-boosting": {"learning_rate": 0.2, "max_iter": 12, "max_leaf_nodes": 6},
}
OTHERS: dict[str, dict[str, Any]] = {
    "logistic-regression": {"C": 0.05},
    "random-forest": {"n_estimators": 8},
    "extra-trees": {"n_estimators": 8},
    "gradient-boosting": {"max_iter": 11},
}


def sklearn_probabilities(
    name: str, settings: Mapping[str, Any], X: np.ndarray, y: np.ndarray, T: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and the probabilities of scikit-learn's own classifier."""
    if name == "logistic-regression":
        mean, std = np.nanmean(X.astype(float), 0), np.nanstd(X.astype(float), 0)
        std[std < 1e-9] = np.inf
        X, T = (np.nan_to_num((one - mean) / std) for one in (X, T))
        model: Any = LogisticRegression(max_iter=1000, tol=1e-5, **settings)
    elif name == "gradient-boosting":
        model = HistGradientBoostingClassifier(early_stopping=False, random_state=5, **settings)
    else:
        kinds = {"random-forest": RandomForestClassifier, "extra-trees": ExtraTreesClassifier}
        model = kinds[name](random_state=5, **settings)
    model.fit(X, y)
    return model.classes_, model.predict_proba(T)


def normal_scores(column: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the ranks of values in a column as normal scores, between 32 of its quantiles."""
    known = np.sort(column[~np.isnan(column)])
    if len(np.unique(known)) < 3:
        return np.where(np.isnan(values), np.nan, 0.0)
    knots = np.unique(known[((np.arange(32) + 0.5) / 32 * len(known)).astype(int)])
    middles = [((known < one).sum() + (known == one).sum() / 2) / len(known) for one in knots]
    return np.interp(values, knots, [NormalDist().inv_cdf(middle) for middle in middles])


@pytest.mark.parametrize("gaps", [False, True])
def test_logistic_regression_on_values_and_ranks(gaps: bool) -> None:
    X, y, T = rows(3, gaps)
    X[:, 0], T[:, 0] = np.exp(3 * X[:, 0]), np.exp(3 * T[:, 0])  # skewed
    X[:, 1], T[:, 1] = (np.where(np.isnan(one), one, one > 0) for one in (X[:, 1], T[:, 1]))
    X[5:, 2] = X[4, 2]  # nearly constant
    T[:3, 3] = 1e9, -1e9, 0
    settings = {"C": 0.3}
    kind = CLASSES["logistic-regression"]
    given = [torch.from_numpy(one) for one in (X, y)]
    network = kind.fit_rows({**settings, "ranks": True}, *given, 3, seed=5)
    scores = [np.stack(list(map(normal_scores, X.T, one.T)), 1) for one in (X, T)]
    wide, unseen = np.hstack([X, scores[0]]), np.hstack([T, scores[1]])
    _, expected = sklearn_probabilities("logistic-regression", settings, wide, y, unseen)
    found = network(torch.from_numpy(T)).softmax(-1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    check_onnx(network, T, 3)
    outlier = network.features(torch.tensor([[1.0, 0, 0, 1e9, 0]]))[0]
    assert outlier[3] > 1e6 and outlier[8] < 3


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("alike", [False, True])
def test_weights_of_rows(alike: bool, balanced: bool) -> None:
    _, y, _ = rows(3, False, 200)
    domains = np.repeat([0, 1, 2], [4, 40, 156])
    y[domains == 1] %= 2  # a class is missing there
    expected = np.empty(200)
    for k, (domain, label) in enumerate(zip(domains, y, strict=True)):
        mine = y[domains == domain]
        share = 1 / (len(set(mine)) * (mine == label).sum()) if balanced else 1 / len(mine)
        expected[k] = (len(mine) / (len(mine) + 30) if alike else len(mine)) * share
    expected *= 200 / expected.sum()
    found = baselines.row_weights(y, domains, alike, balanced)
    np.testing.assert_allclose(found, expected)
    assert np.allclose(found, 1) is not (alike or balanced)


@pytest.mark.parametrize("balanced", [False, True])
def test_domains_weigh_in_a_logistic_regression_as_they_do_in_scores(balanced: bool) -> None:
    X, y, T = rows(2, False, 200)
    domains = np.repeat([0, 1, 2], [4, 40, 156])
    weights = baselines.row_weights(y, domains, True, balanced)
    kind = CLASSES["logistic-regression"]
    setup = replace(table_setup(), balanced=balanced)
    run = setup.run(vectors(), "logistic-regression", (kind, {}), ("c",), 0)
    given = [torch.from_numpy(one) for one in (X, y, domains)]
    found = kind.fit_network(run, *given, 2)
    scores = [np.stack(list(map(normal_scores, X.T, one.T)), 1) for one in (X, T)]
    wide, unseen = np.hstack([X, scores[0]]), np.hstack([T, scores[1]])
    mean, std = wide.mean(0), wide.std(0)
    model = LogisticRegression(C=0.3, max_iter=1000, tol=1e-5).fit((wide - mean) / std, y, weights)
    np.testing.assert_allclose(
        found(torch.from_numpy(T)).softmax(-1).numpy(),
        model.predict_proba((unseen - mean) / std),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("name", ["random-forest", "gradient-boosting"])
def test_balanced_trees_weigh_the_classes_of_each_domain_alike(name: str) -> None:
    X, y, T = rows(2, False, 200)
    domains = np.repeat([0, 1], [40, 160])
    y[:40] = (X[:40, 0] > 1).astype(int)  # a rare class in one domain
    run = replace(table_setup(), balanced=True).run(vectors(), name, (CLASSES[name], {}), ("c",), 0)
    few = replace(run, hparams={**FEW[name], "class_weight": "balanced"})
    found = CLASSES[name].fit_network(few, *map(torch.from_numpy, (X, y, domains)), 2)
    assert run.hparams["class_weight"] == "balanced"
    kinds = {
        "random-forest": RandomForestClassifier,
        "gradient-boosting": HistGradientBoostingClassifier,
    }
    model = kinds[name](random_state=run_seed(few), **FEW[name])
    if name == "gradient-boosting":
        model.set_params(early_stopping=False)
    weights = baselines.row_weights(y, domains, False, True)
    probabilities = model.fit(X, y, weights).predict_proba(T)
    np.testing.assert_allclose(
        found(torch.from_numpy(T)).softmax(-1).numpy(), probabilities, atol=1e-5, rtol=0
    )


def test_trees_take_all_rows_alike() -> None:
    X, y, T = rows(2, False, 200)
    kind = CLASSES["extra-trees"]
    run = table_setup().run(vectors(), "extra-trees", (kind, {}), ("c",), 0)
    few = replace(run, hparams={**run.hparams, "n_estimators": 9})
    found = [
        kind.fit_network(few, *map(torch.from_numpy, (X, y, np.repeat([0, 1], sizes))), 2)
        for sizes in ([100, 100], [5, 195])
    ]
    assert torch.equal(*(one(torch.from_numpy(T)) for one in found))


def rows(classes: int, gaps: bool, n: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.RandomState(classes + gaps)
    X, T = (draw.randn(size, 5).astype(np.float32).round(1) for size in (n, 400))
    y = (X[:, :classes] + draw.randn(n, classes)).argmax(1)
    if gaps:
        X[draw.rand(*X.shape) < 0.1] = np.nan
        T[draw.rand(*T.shape) < 0.2] = np.nan
    return X, y, T


def check_alike(name: str, X: np.ndarray, y: np.ndarray, T: np.ndarray, classes: int) -> Any:
    given = [torch.from_numpy(one) for one in (X, y)]
    network = CLASSES[name].fit_rows(FEW[name], *given, classes, seed=5)
    known, expected = sklearn_probabilities(name, FEW[name], X, y, T)
    found = network(torch.from_numpy(T)).softmax(-1).numpy()
    np.testing.assert_allclose(found[:, known], expected, atol=1e-6, rtol=0)
    return network


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", BASELINES)
def test_the_arrays_say_what_scikit_learn_says(name: str, classes: int, gaps: bool) -> None:
    X, y, T = rows(classes, gaps)
    check_onnx(check_alike(name, X, y, T, classes), T, classes)


def check_onnx(network: Any, T: np.ndarray, classes: int) -> None:
    """Check that the ONNX file says the same of these rows; it sums in float32."""
    pytest.importorskip("onnxruntime", reason="no onnxruntime")
    card = {"shape": [5], "classes": list(map(str, range(classes)))}
    model = Fitted(network, 2).eval()
    with TemporaryDirectory() as folder:
        for some, temperature in ((T, 1.0), (T[:1], 1.0), (T, 2.5), (T, 0.4)):
            predictor = Predictor(Model(model, card | {"temperature": temperature}))
            assert write_onnx(Path(folder) / "model.onnx", predictor, torch.from_numpy(some)) < 5e-6


@pytest.mark.parametrize("name", BASELINES)
def test_a_class_that_no_row_has_is_never_predicted(name: str) -> None:
    X, y, T = rows(2, False)
    network = check_alike(name, X, 2 * y + 1, T, 5)
    found = network(torch.from_numpy(T)).softmax(-1)
    assert found.shape == (400, 5)
    assert found[:, ::2].max() < 1e-8
    check_onnx(network, T, 5)


def test_real_rows(data_root: Path) -> None:
    path = data_root / "gas-drift.parquet"
    if not path.exists():
        pytest.skip(f"data not present: {path}")
    table = parquet.read_table(path)
    answers = [table.column(name).to_numpy() for name in ("gas", "batch")]
    columns = [name for name in table.column_names if name not in ("gas", "batch")]
    inputs = np.stack([table.column(name).to_numpy() for name in columns], 1).astype(np.float32)
    gases, labels = np.unique(answers[0], return_inverse=True)
    known = answers[1] == answers[1][0]
    for name in list(BASELINES)[1:]:
        check_alike(name, inputs[known], labels[known], inputs[~known], len(gases))


def test_a_fit_that_scikit_learn_keeps_in_another_way_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if another version had turned the children around."""
    X, y, _ = rows(2, False)
    real = baselines.TreeNodes

    def turned(**arrays: Any) -> Any:
        return real(**arrays | {"left": arrays["right"], "right": arrays["left"]})

    monkeypatch.setattr(baselines, "TreeNodes", turned)
    for name in ("extra-trees", "gradient-boosting"):
        with pytest.raises(ValueError, match=r"scikit-learn .* differ by .*, expected 1e-05"):
            CLASSES[name].fit_rows(FEW[name], torch.from_numpy(X), torch.from_numpy(y), 2, 5)


# Runs


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, settings in FEW.items():
        monkeypatch.setattr(CLASSES[name], "grid", (settings, settings | OTHERS[name]))


def vectors(lonely: bool = False) -> DomainDataset:
    """Return three domains of rows; in the ``lonely`` data set, two of them have one class."""
    draws = torch.Generator().manual_seed(0)
    domains = []
    for number, name in enumerate("abc"):
        inputs = torch.randn(30, 5, generator=draws) + number
        labels = (inputs[:, 0] > number).long() * (0 if lonely and name != "c" else 1)
        domains.append(Domain(name, labels, inputs))
    return DomainDataset("vectors", ("no", "yes"), tuple(domains))


def attempt(out: Path, data: DomainDataset, name: str, **changes: Any) -> tuple[Run, RunState]:
    method = (CLASSES.get(name) or find(name), {})
    tests, split = changes.get("tests", ("c",)), changes.get("split", False)
    run = table_setup(steps=4).run(
        data, name, method, tests, 0, changes.get("draw", 0), split=split
    )
    machine = Machine(device=CPU, step="eager")
    workspace = FitWorkspace({name: method}, data, None, machine)
    return run, Worker(out, workspace).attempt(run)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("name", BASELINES)
def test_a_run_leaves_the_files_of_any_run(tmp_path: Path, name: str) -> None:
    data = vectors()
    run, state = attempt(tmp_path, data, name)
    other, _ = attempt(tmp_path, data, "erm")
    assert state is RunState.DONE
    mine, its = (folder_of(tmp_path, one) for one in (run, other))
    files = {path.name for path in mine.iterdir()}
    assert files == {path.name for path in its.iterdir()}
    assert {"done", "records.jsonl", "model.safetensors", "confusion.json"} <= files
    (line,) = (mine / "records.jsonl").read_text().splitlines()
    record = json.loads(line)
    last = json.loads((its / "records.jsonl").read_text().splitlines()[-1])
    # It needs no held-out rows, and is measured on all rows of the domain left out.
    for key in ("accuracy", "calibration_error"):
        assert {domain: list(parts) for domain, parts in record[key].items()} == {"c": ["kept"]}
        assert set(last[key]["c"]) == {"kept", "held_out"}
    assert record["accuracy"]["c"]["kept"] > 0.6
    logits, theirs = (load_file(one / "logits.safetensors") for one in (mine, its))
    assert {key: list(one.shape) for key, one in logits.items()} == {
        "labels/c/kept": [30],
        "last/c/kept": [30, 2],
    }
    assert set(logits) <= set(theirs)

    # The logits are the logarithms of what scikit-learn says, fitted to all rows of the others.
    order = {one: splits(data, 0, 0.0)[one].kept for one in "abc"}
    X, y = (
        torch.cat([getattr(data[one], what)[order[one]] for one in "ab"])
        for what in ("tensor", "labels")
    )
    domains = torch.tensor([0, 1]).repeat_interleave(torch.tensor([len(order[e]) for e in "ab"]))
    expected = CLASSES[name].fit_network(run, X, y, domains, 2)
    np.testing.assert_allclose(
        logits["last/c/kept"].float().softmax(-1),
        expected(data["c"].tensor[order["c"]]).softmax(-1),
        atol=2e-3,  # they are kept in half precision
    )
    timing = json.loads((mine / "timing.json").read_text())
    assert timing["updates"] == 1
    assert timing["updating"] > 0

    # Loaded by its name alone, it is measured like the run.
    loaded = models.load(mine, CPU)
    assert type(loaded.algorithm) is Fitted
    measured = models.measure(loaded, data, None, ["c"])["c"]["accuracy"]
    assert measured == pytest.approx(record["accuracy"]["c"]["kept"])


@pytest.mark.usefixtures("few_trees")
def test_an_ordinary_split_is_measured_by_one_run_on_all_domains(tmp_path: Path) -> None:
    data = vectors()
    run, state = attempt(tmp_path, data, "random-forest", tests=(), split=True)
    last, _ = attempt(tmp_path, data, "random-forest", tests=())
    assert state is RunState.DONE and run.identity != last.identity
    found, of_last = (
        json.loads((folder_of(tmp_path, one) / "records.jsonl").read_text()) for one in (run, last)
    )
    parts = {domain: list(parts) for domain, parts in found["accuracy"].items()}
    assert parts == {domain: ["held_out"] for domain in "abc"}
    assert of_last["accuracy"] == {}
    logits = load_file(folder_of(tmp_path, run) / "logits.safetensors")
    assert list(logits["last/a/held_out"].shape) == [6, 2]


def run_seed(run: Run) -> int:
    return baselines.domainbed_hash("method", run.dataset, run.trial, *run.test_domains)


@pytest.mark.usefixtures("few_trees")
def test_runs_repeat_themselves_and_draws_are_other_runs(tmp_path: Path) -> None:
    data, found = vectors(), []
    for folder in ("one", "two"):
        run, _ = attempt(tmp_path / folder, data, "extra-trees")
        path = folder_of(tmp_path / folder, run)
        found.append([(path / name).read_bytes() for name in ("model.safetensors", "model.json")])
    assert found[0] == found[1]
    written = (path / "records.jsonl").stat().st_mtime_ns
    attempt(tmp_path / "two", data, "extra-trees")
    assert (path / "records.jsonl").stat().st_mtime_ns == written
    with pytest.raises(IndexError):
        attempt(tmp_path, data, "extra-trees", draw=2)
    # The model on all domains has all rows, because none of them is needed for a choice.
    last, _ = attempt(tmp_path, data, "extra-trees", tests=())
    assert last.protocol.holdout == 0
    assert models.load(folder_of(tmp_path, last), CPU).card["accuracy"] == {}


def test_grids_begin_with_the_defaults() -> None:
    data = vectors()
    for name, kind in CLASSES.items():
        runs = [
            table_setup().run(data, name, (kind, {}), ("a",), 0, draw)
            for draw in range(len(kind.grid))
        ]
        assert len(runs) > 1
        assert len({run.identity for run in runs}) == len(runs)
        assert [run.draw for run in runs] == list(range(len(runs)))
        assert [dict(run.hparams) for run in runs] == [dict(one) for one in kind.grid]
        assert title_of(name) == BASELINES[name] != name


def test_a_single_class_is_a_failure_that_is_told(tmp_path: Path) -> None:
    data = vectors(lonely=True)
    run, state = attempt(tmp_path, data, "logistic-regression")
    assert state is RunState.FAILED
    (line,) = leave_one_out.failures(tmp_path, [("Logistic regression (C 1)", run)])
    assert line.startswith("Logistic regression (C 1), c held out: ")
    assert "all rows of the training domains are of one class" in line


def damage(folder: Path, change: Any) -> None:
    """Change the tensors of a model, and the card with them, as nobody does by accident."""
    import hashlib

    from safetensors.torch import save

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    content = save(tensors)
    (folder / "model.safetensors").write_bytes(content)
    card = json.loads((folder / "model.json").read_text())
    write_json(folder / "model.json", card | {"sha256": hashlib.sha256(content).hexdigest()})


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda t: t.pop("model.features.roots"), "the arrays of its trees are missing"),
        (lambda t: t.pop("model.features.left"), "model.features.left is missing"),
        (lambda t: t.update(more=torch.zeros(1)), "more is unknown"),
        (lambda t: t["model.features.left"].zero_(), "the trees have children that no tree can"),
        (
            lambda t: t.update({"model.features.base": torch.zeros(2)}),
            r"model.features.base has the shape \[2\] and the type torch.float32",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, wrong: str) -> None:
    run, _ = attempt(tmp_path, vectors(), "random-forest")
    folder = folder_of(tmp_path, run)
    damage(folder, change)
    with pytest.raises(
        ValueError, match=rf"model.safetensors is damaged: {wrong}.*; copy it again"
    ):
        models.load(folder, CPU)


def test_what_is_fitted_at_once_has_no_updates() -> None:
    assert registered("random-forest") is Fitted
    X, y, _ = rows(2, False)
    given = [torch.from_numpy(one) for one in (X, y)]
    network = CLASSES["logistic-regression"].fit_rows({}, *given, 2, seed=0)
    algorithm = Fitted(network, 2)
    with pytest.raises(TypeError, match="has no updates"):
        algorithm.update([])
    run = Run(dataset="x", fingerprint="", algorithm="x", test_domains=())
    with pytest.raises(TypeError, match="cannot be fitted again"):
        Fitted.fit_network(run, *given, torch.zeros(len(y), dtype=torch.int64), 2)


# The command


@pytest.mark.usefixtures("own_folder", "few_trees")
@pytest.mark.parametrize("name", ["extra-trees", "logistic-regression"])
def test_a_baseline_is_deployed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="no onnxruntime")
    write_table(Path("t.csv"))
    assert main(["fit", "t.csv", "--out", "out", "--only", name, "--trials", "1"]) == 0
    out, err = capsys.readouterr()
    assert f"Deploy {BASELINES[name].lower()}." in out
    assert f"{BASELINES[name]}, hospital_a held out: fitted (1 of 3 runs)\n" in err
    assert f"{BASELINES[name]} on all domains: fitted, " in err
    assert "checked model.onnx: probabilities match" in err
    assert "update" not in out + err
    card = json.loads(Path("out/model.json").read_text())
    assert (card["algorithm"], card["hparams"]) == (name, FEW[name])
    assert card["estimate"]["methods"][name]["average"]["mean"] > 0.8
    assert card["onnx"]["input"]["shape"] == ["n", 5]
    assert BASELINES[name] in Path("out/report.html").read_text()

    Path("new.csv").write_text("colour,size,shade\nred,9.5,0\nblue,0.5,\n")
    assert main(["predict", "out", "new.csv"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("new.csv: row 1: big") and second.startswith("new.csv: row 2: small")
    assert shoal.load("out").predict({"size": [9.5], "shade": [None], "colour": ["red"]})[0].label
    for model in ("out", next(str(path.parent) for path in Path("out/runs").glob("*/done"))):
        assert main(["eval", model, "--dataset", "t.csv", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["hospital_b"]["accuracy"] > 0.8
    diagnosed = main(["diagnose", "out", "t.csv"])
    err = capsys.readouterr().err
    assert diagnosed == (0 if name == "logistic-regression" else 2), err
    if diagnosed:
        assert "Extra trees has no gradients, which a diagnosis compares" in err
    assert main(["status", "out"]) == 0
    assert BASELINES[name] in capsys.readouterr().out
    assert main(["report", "out"]) == 2
    assert "another way than a benchmark: open out/report.html" in capsys.readouterr().err

    # The same command fits nothing again.
    before = [path.stat().st_mtime_ns for path in Path("out/runs").glob("*/done")]
    assert main(["fit", "t.csv", "--out", "out", "--only", name, "--trials", "1"]) == 0
    assert [path.stat().st_mtime_ns for path in Path("out/runs").glob("*/done")] == before


@pytest.mark.usefixtures("own_folder")
def test_what_is_compared() -> None:
    data, photos = write_table(Path("t.csv")), Path("photos")
    by_default = [*BASELINES, "erm", "fishr", "irm", "vrex", "groupdro", "coral"]

    def chosen(*given: Any, version: int = VERSION) -> list[str]:
        return list(fit._choose_methods(*given, version))

    table, heads, whole = (
        (data, "table", False),
        (photos, "images", True),
        (photos, "images", False),
    )
    assert chosen((), (), *table) == by_default
    assert chosen(("mmd", "erm"), (), *table) == [*by_default, "mmd"]
    assert chosen((), ("erm", "extra-trees"), *table) == ["erm", "extra-trees"]
    assert chosen(("mmd",), ("erm",), *table) == ["erm", "mmd"]
    # Features of images have the simplest baseline, and whole networks none.
    assert chosen((), (), *heads) == ["logistic-regression", "erm", "fishr"]
    assert chosen((), (), *whole) == ["erm", "fishr"]
    # Fits that an earlier version began have what they had.
    for kind in (table, heads, whole):
        assert chosen((), (), *kind, version=FIRST_VERSION) == ["erm", "fishr"]
    with pytest.raises(ValueError, match="random-forest is for tables, and photos holds images"):
        chosen((), ("random-forest",), *heads)
    with pytest.raises(ValueError, match=r"is for tables and for frozen features \(--train head\)"):
        chosen((), ("logistic-regression",), *whole)


def test_an_mlp_on_a_table_is_regularised_and_stopped() -> None:
    data = vectors()
    setup = replace(table_setup(steps=200), examples=300)
    for name in ("erm", "fishr-no-ema", "coral"):
        run = setup.run(data, name, find_method(name), ("a",), 0)
        assert run.hparams["weight_decay"] == 0.01
        assert (run.protocol.stop, run.protocol.record_every) == ("held-out", 10)
    set_by_hand = replace(setup, settings={"weight_decay": "0"})
    assert set_by_hand.run(data, "erm", find_method("erm"), (), 0).hparams["weight_decay"] == 0
    # A fit that an earlier version began goes on as it began.
    before = replace(setup, version=FIRST_VERSION).run(data, "erm", find_method("erm"), ("a",), 0)
    assert before.hparams["weight_decay"] == 0
    assert (before.protocol.stop, before.protocol.record_every) == ("last", 50)


@pytest.mark.usefixtures("own_folder")
def test_without_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "sklearn_missing", lambda: True)
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")
    monkeypatch.setattr(fit, "ON_TABLES", ("logistic-regression", "erm", "fishr"))
    write_table(Path("t.csv"), rows=10)
    command = ["fit", "t.csv", "--out", "out", "--steps", "2", "--trials", "1"]
    assert main([*command, "--only", "random-forest"]) == 2
    needs = "needs scikit-learn, which is not installed: pip install 'shoal[tables]'"
    assert f"random-forest {needs}" in capsys.readouterr().err
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert f"only networks are compared: the baselines {needs[:4]}" in err
    assert "Logistic regression" not in out


@pytest.mark.usefixtures("own_folder")
def test_baselines_are_for_tables(capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos").mkdir()
    assert main(["fit", "photos", "--only", "random-forest", "erm"]) == 2
    assert "random-forest is for tables, and photos holds images" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--only", "--algorithms"])
def test_a_misspelt_baseline_is_answered_with_its_name(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_table(tmp_path / "t.csv"))
    assert main(["fit", data, option, "logistic-regresion", "--out", str(tmp_path / "o")]) == 2
    assert "did you mean 'logistic-regression'?" in capsys.readouterr().err


def test_a_large_table_is_sampled_and_a_small_one_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = vectors()
    whole = table_setup().run(data, "random-forest", (CLASSES["random-forest"], {}), ("c",), 0)
    assert "rows" not in whole.hparams
    for kind in CLASSES.values():
        monkeypatch.setattr(kind, "most_numbers", 5 * 60)  # the rows of two domains
    same = table_setup().run(data, "random-forest", (CLASSES["random-forest"], {}), ("c",), 0)
    assert same.identity == whole.identity
    for kind in CLASSES.values():
        monkeypatch.setattr(kind, "most_numbers", 5 * 20 + 4)
    monkeypatch.setattr(fitted, "RARE", 0)
    seen: dict[str, torch.Tensor] = {}
    for name, kind in CLASSES.items():

        def keep(*given: Any, name: str = name, real: Any = kind.fit_rows) -> Any:
            seen[name] = given[1]
            return real(FEW[name], *given[1:])

        monkeypatch.setattr(kind, "fit_rows", keep)
        run, state = attempt(tmp_path, data, name)
        assert state is RunState.DONE and run.hparams["rows"] == 20
        assert run.identity != whole.identity
    assert all(torch.equal(one, seen["random-forest"]) for one in seen.values())
    rows = seen["random-forest"]
    trained = torch.cat([data["a"].tensor, data["b"].tensor])
    assert len(rows) == 20 == len(rows.unique(dim=0))
    assert (rows[:, None] == trained).all(2).any(1).all()
    # Both domains have their share.
    assert 5 <= (rows[:, None] == data["a"].tensor).all(2).any(1).sum() <= 15


def test_a_sample_keeps_rare_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.zeros(5000, dtype=torch.int64)
    labels[::1000] = 1
    inputs = torch.arange(5000.0)[:, None]
    domains = tuple(Domain(name, labels, inputs) for name in "ab")
    data = DomainDataset("rare", ("often", "rare"), domains)
    monkeypatch.setattr(CLASSES["extra-trees"], "most_numbers", 50)
    run = table_setup().run(data, "extra-trees", (CLASSES["extra-trees"], {}), (), 0)
    kept = {name: torch.arange(5000).flip(0)[:4000] for name in "ab"}
    rows = fitted.training_rows(run, data, kept)
    found = torch.cat([labels[rows[name]] for name in "ab"])
    assert found.bincount().tolist() == [fitted.RARE, 8]
    assert all(
        (rows[name] >= 1000).all() and len(rows[name].unique()) == len(rows[name]) for name in "ab"
    )
