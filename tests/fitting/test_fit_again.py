"""A second command on the folder of a fit, and other commands that read it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.progress import FitProgressBars, fit_progress
from shoal.fitting import inspection, leave_one_out
from shoal.fitting.schedule import FitProgress
from shoal.results.records import Record
from shoal.runs.run import Run
from shoal.training.loop import Progress
from tests.fitting.made import write_images, write_table

Output = pytest.CaptureFixture[str]
TABLE = ("fit", "t.csv", "--out", "out", "--steps", "20", "--only", "erm", "fishr")
TABLE += ("--trials", "1", "--runs", "6")
IMAGES = ("fit", "data", "--out", "out", "--cache", "cache", "--runs", "6", "--steps", "20")
IMAGES += ("--only", "erm", "fishr")


@pytest.fixture(autouse=True)
def without_onnx(own_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.fitting.fit.onnx_missing", lambda: "onnx")


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = leave_one_out._attempt, []

    def tried(*arguments):  # type: ignore[no-untyped-def]
        begun.append(1)
        if len(begun) == runs + 1:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(leave_one_out, "_attempt", tried)


def test_an_interrupted_fit(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    write_table(Path("t.csv"))
    interrupt_after(1, monkeypatch)
    assert main(list(TABLE)) == 130
    told = capsys.readouterr().err
    assert "already" not in told
    assert re.search(
        r"^ERM, hospital_a held out: 20 updates, [\d.]+ % on seen domains\n"
        r"  \(1 of 6 runs; about .+ left\)$",
        told,
        re.MULTILINE,
    )
    # Only the first two runs are planned, so nobody can tell what is left.
    assert main(["status", "out"]) == 0
    told = capsys.readouterr().out
    assert "more may follow" in told and "left" not in told
    assert main(["status", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_left"] == ""

    interrupt_after(2, monkeypatch)
    assert main(list(TABLE)) == 130
    assert "1 run is already done and not repeated" in capsys.readouterr().err
    (folder, *_) = (path.parent for path in Path("out/runs").glob("*/done"))
    (folder / "records.jsonl").write_text("{")
    assert main(list(TABLE)) == 2
    assert f"delete the folder {folder} and run the command" in capsys.readouterr().err


def test_a_broken_file_is_left_out_by_all_and_may_be_mended(capsys: Output) -> None:
    path = write_images(Path("data"), each=4) / "hospital_b/dark/0.png"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    assert main(list(IMAGES)) == 0
    out = capsys.readouterr().out
    assert f"   {path}: damaged or truncated (" in out
    for command in (
        ("eval", "out", "--dataset", "data", "--json"),
        ("diagnose", "out/model.safetensors", "data"),
    ):
        assert main([*command, "--cache", "cache"]) == 0
        told = capsys.readouterr()
        assert f"skipped as in the fit: {path}: damaged or truncated (" in told.err
        if command[0] == "eval":
            assert json.loads(told.out)["hospital_b"]["images"] == 7
    before = Path("out/inspection.json").read_text()
    path.write_bytes(whole[:150])  # no longer what the fit has seen
    capsys.readouterr()
    # The card has the head as one of ERM, also when logistic regression was deployed.
    card = json.loads(Path("out/model.json").read_text())
    card["estimate"]["deploy"] = "logistic-regression"
    Path("out/model.json").write_text(json.dumps(card))
    assert main(["eval", "out", "--dataset", "data", "--cache", "cache"]) == 0
    told = capsys.readouterr()
    assert f"shoal: skipped: {path}: " in told.err
    assert "Logistic regression: out on data" in told.out
    assert Path("out/inspection.json").read_text() == before
    path.write_bytes(whole)
    Path("out-2").mkdir()
    capsys.readouterr()
    assert main(list(IMAGES)) == 2
    assert (
        "out holds another fit (the images have changed since: 23 then, 24 now); choose another "
        "--out, such as out-3\n"
    ) in capsys.readouterr().err


def test_broken_files_of_a_new_site_are_left_out(capsys: Output) -> None:
    write_images(Path("data"), each=4)
    assert main(list(IMAGES)) == 0
    new = write_images(Path("new"), each=3, domains=("clinic", "ward"))
    broken = [new / "clinic/bright/1.png", new / "ward/dark/0.png"]
    for path in broken:
        path.write_bytes(b"")
    capsys.readouterr()
    for read in (True, False):
        assert main(["eval", "out", "--dataset", "new", "--cache", "cache", "--json"]) == 0
        out, err = capsys.readouterr()
        assert ("reading new: 12 images" in err) is read
        assert {name: one["images"] for name, one in json.loads(out).items()} == {
            "clinic": 5,
            "ward": 5,
        }
        told = [line for line in err.splitlines() if line.startswith("shoal: ")]
        assert told == [
            *(
                f"shoal: skipped: {path}: not an image file, or its header is damaged"
                for path in broken
            ),
            "shoal: 2 of 12 images cannot be read and are skipped",
        ]
    assert main(["diagnose", "out", "new", "--cache", "cache"]) == 0
    assert "shoal: 2 of 12 images cannot be read" in capsys.readouterr().err
    for path in (new / "ward").rglob("*.png"):
        path.write_bytes(b"")
    assert main(["eval", "out", "--dataset", "new", "--cache", "cache"]) == 2
    assert "no image of the domain 'ward' can be read" in capsys.readouterr().err


def test_what_is_decoded_is_not_read_again(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    write_images(Path("data"), each=4)
    assert main(list(IMAGES)) == 0
    write_images(Path("new"), each=1)
    command = ["eval", "out", "--dataset", "new", "--cache", "cache"]
    assert main(command) == 0
    assert "reading new: 6 images" in capsys.readouterr().err
    assert main(command) == 0
    assert "reading" not in capsys.readouterr().err
    # Its runs take features, of which nothing but the fit knows.
    run = next(path.parent for path in Path("out/runs").glob("*/model.safetensors"))
    assert main(["eval", str(run), *command[2:]]) == 2
    assert "features that the fit computes from images; evaluate the fit" in capsys.readouterr().err


def test_a_list_with_tabs_is_measured(capsys: Output) -> None:
    paths = sorted(write_images(Path("data"), each=4).rglob("*.png"))
    lines = [f"{path}\t{path.parts[2]}\t{path.parts[1]}" for path in paths]
    Path("list.tsv").write_text("\n".join(["path\tclass\tdomain", *lines]))
    assert main(list(IMAGES)) == 0
    capsys.readouterr()
    assert main(["eval", "out", "--dataset", "list.tsv", "--cache", "cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hospital_b"]["images"] == 8
    assert main(["diagnose", "out", "list.tsv", "--cache", "cache"]) == 0


def test_a_model_of_a_table_is_measured_on_another(capsys: Output) -> None:
    for name, domains in (("t.csv", ("a", "b", "c")), ("new.csv", ("x", "y"))):
        text = write_table(Path(name), domains=domains).read_text()
        Path(name).write_text(text.replace("domain,", "site,", 1).replace(",class", ",kind", 1))
    columns = ("--domain-column", "site", "--class-column", "kind")
    assert main([*TABLE, *columns]) == 0
    text = Path("new.csv").read_text().replace("red", "blue", 3)
    Path("new.csv").write_text(text)
    capsys.readouterr()
    assert main(["eval", "out", "--dataset", "new.csv", "--json"]) == 0
    out, err = capsys.readouterr()
    measured = json.loads(out)
    assert {name: one["images"] for name, one in measured.items()} == {"x": 40, "y": 40}
    assert "3 values of 'colour' did not occur in training and are ignored" in err
    assert main(["predict", "out", "new.csv"]) == 0
    said = [line.split()[3] for line in capsys.readouterr().out.splitlines()]
    known = [line.rpartition(",")[2] for line in text.splitlines()[1:]]
    right = [a == b for a, b in zip(said, known, strict=True)]
    assert measured["x"]["accuracy"] == pytest.approx(sum(right[:40]) / 40)
    sizes = [float(row.split(",")[1]) for row in Path("t.csv").read_text().splitlines()[1:]]
    wrong = "site,size,shade,colour,kind\nx,5,1,red,big\nx,6300,1,red,big\n"
    Path("wrong.csv").write_text(wrong)
    assert main(["predict", "out", "wrong.csv"]) == 0
    assert capsys.readouterr().err == (
        "shoal: wrong.csv: row 2 is unlike all in training: size is 6300, in training it was "
        f"{min(sizes):g} to {max(sizes):g}\n"
    )
    assert main(["diagnose", "out", "new.csv", "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text())
    assert found["domains"]["y"]["accuracy"] == pytest.approx(sum(right[40:]) / 40)

    Path("other.tsv").write_text(text.replace("site,", "place,", 1).replace(",", "\t"))
    assert main(["eval", "out", "--dataset", "other.tsv"]) == 2
    assert "unknown column of other.tsv 'site'" in capsys.readouterr().err
    assert main(["eval", "out", "--dataset", "other.tsv", "--domain-column", "place"]) == 0
    assert "rows" in capsys.readouterr().out
    assert main(["predict", "out", "other.tsv"]) == 1
    assert capsys.readouterr().err == (
        "shoal: other.tsv has a column that was not in training: place; the model takes size, "
        "shade, colour\n"
    )
    assert main(["eval", "out", "--dataset", "somewhere"]) == 2
    assert "takes rows of a table, and somewhere is not a table" in capsys.readouterr().err


def test_a_run_of_a_table_s_fit_is_measured_where_it_lies(capsys: Output) -> None:
    write_table(Path("t.csv"))
    assert main(list(TABLE)) == 0
    assert main(["status", "out"]) == 0
    assert "more may follow" not in capsys.readouterr().out  # it has ended
    tests = {
        path.parent: json.loads(path.read_text())["test_domains"]
        for path in Path("out/runs").glob("*/run.json")
    }
    run, (test,) = next((path, some) for path, some in tests.items() if some)
    last = json.loads((run / "records.jsonl").read_text().splitlines()[-1])["accuracy"][test]
    capsys.readouterr()
    for model in (run, run / "model.safetensors"):
        assert main(["eval", str(model), "--dataset", "t.csv", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)[test]["accuracy"]
        assert found == pytest.approx(0.8 * last["kept"] + 0.2 * last["held_out"])
    Path("link").symlink_to(run)
    assert main(["eval", "link", "--dataset", "t.csv"]) == 0
    Path("out/model.json").rename("kept.json")
    assert main(["eval", str(run), "--dataset", "t.csv"]) == 2
    assert "is not finished: the columns of its runs are not known yet" in capsys.readouterr().err
    run.rename("moved")
    for more in ((), ("--class-column", "class")):
        assert main(["eval", "moved", "--dataset", "t.csv", *more]) == 2
        assert (
            "moved takes 5 numbers, and only the fit that trained it knows their columns"
            in capsys.readouterr().err
        )


def test_an_unknown_network_is_refused_before_images_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("all images were read in vain")

    monkeypatch.setattr(inspection, "survey_images", read)
    write_images(Path("data"), each=1)
    assert main([*IMAGES, "--backbone", "resnet5"]) == 2
    assert "unknown backbone 'resnet5'" in capsys.readouterr().err


def test_the_help_says_what_a_bare_number_is(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "a bare number means minutes" in " ".join(capsys.readouterr().out.split())


def at(done: int, left: float) -> Progress:
    return Progress(done=done, steps=10, rate=3.0, seconds_left=left, record=None)


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr("shoal.cli.progress.QUIET", -1.0)
    with fit_progress(FitProgressBars) as progress:
        progress.run("erm", None, FitProgress(0, 8, None))
        progress.run("erm", at(0, 9.0), FitProgress(0, 8, 70.0))
        progress.run("erm", at(5, 9.0), FitProgress(0, 8, 70.0, 0.7834))
        title = "Fishr, sketch held out, split 1"
        progress.run(title, at(5, 9.0), FitProgress(2, 24, 125.0, 0.5))
        progress.run("last", at(10, 0.0), FitProgress(0, 1, 0.0, 1.0))
        progress.run("last", at(5, 4.0), FitProgress(0, 1, 4.0))
        progress.amount("reading", 1000, 2000)
        progress.amount("a table", 16_000_000, 330_000_000, "bytes")
        progress.amount("a table", 330_000_000, 330_000_000, "bytes")
        progress.amount("a small one", 1_000, 2_000, "bytes")
    assert capsys.readouterr().err.splitlines() == [
        "erm: 0 of 10 updates, preparing (1 of 8 runs; about 1 min 10 s left)",
        "erm: 5 of 10 updates, 78.3 % on seen domains",
        "  (1 of 8 runs; about 1 min 10 s left)",
        "Fishr, sketch held out, split 1: 5 of 10 updates, 50.0 % on seen domains",
        "  (3 of 24 runs; about 2 min 5 s left)",
        "last: 10 updates, 100.0 % on seen domains",
        "last: 5 of 10 updates (about 4 s left)",
        "reading: 1,000 of 2,000 images",
        "a table: 16 of 330 MB",
        "a table: 330 MB",
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_bars_fit_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with fit_progress(FitProgressBars) as progress:
        title = "Fishr, sketch held out, split 1"
        progress.run(title, at(5, 9.0), FitProgress(2, 24, 125.0, 0.5))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert all(len(line) <= columns for line in lines)
    whole, run = (line for line in lines[-3:] if line)
    assert re.fullmatch(r"all runs +[━╸╺ ]+ 2/24 +about 2 min 5 s left", whole)
    assert re.fullmatch(rf"{title} [━╸╺ ]+ 5/10 +50\.0 % on seen domains", run)


def test_progress_shows_the_accuracy_on_seen_domains() -> None:
    run = Run(dataset="x", fingerprint="", algorithm="erm", test_domains=("c",))
    told: list[FitProgress] = []

    class Listening(leave_one_out.FitWatcher):
        def run(self, title: str, progress: Progress | None, forecast: FitProgress) -> None:
            assert title == "ERM (lr 0.1), c held out"
            told.append(forecast)

    accuracy = {
        "a": {"kept": 0.9, "held_out": 0.5},
        "b": {"kept": 0.9, "held_out": 0.7},
        "c": {"kept": 0.1, "held_out": 0.1},
    }
    follows = leave_one_out._RunWatcher(
        run, "ERM (lr 0.1)", 0, Listening(), lambda *_: FitProgress(1, 3, 4.0)
    )
    for progress in (
        None,
        at(5, 4.0),
        replace(at(5, 4.0), record=Record(step=4, accuracy=accuracy)),
        replace(at(5, 4.0), record=Record(step=4, accuracy={"a": {"kept": 0.9}})),
    ):
        follows.progress(progress)
    assert told == [
        FitProgress(1, 3, 4.0),
        FitProgress(1, 3, 4.0),
        FitProgress(1, 3, 4.0, pytest.approx(0.6)),
        FitProgress(1, 3, 4.0),
    ]
