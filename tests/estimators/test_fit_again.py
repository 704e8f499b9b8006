"""A second command on the folder of a fit, and others beside it: what each of them says."""

import json
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.fit_progress import fit_progress
from shoal.estimators import estimate, inspection
from shoal.estimators.outlook import Ahead
from shoal.training.loop import Progress
from tests.estimators.made import write_images, write_table

Output = pytest.CaptureFixture[str]
TABLE = ("fit", "t.csv", "--out", "out", "--steps", "20", "--trials", "1", "--runs", "4")
IMAGES = ("fit", "data", "--out", "out", "--cache", "cache", "--runs", "4", "--steps", "20")


@pytest.fixture(autouse=True)
def without_onnx(own_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.estimators.deploying.onnx_missing", lambda: "onnx")


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = estimate._tried, []

    def tried(*arguments):  # type: ignore[no-untyped-def]
        begun.append(1)
        if len(begun) == runs + 1:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(estimate, "_tried", tried)


def test_an_interrupted_fit(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    write_table(Path("t.csv"))
    interrupt_after(1, monkeypatch)
    assert main(list(TABLE)) == 130
    told = capsys.readouterr().err
    assert "already" not in told
    assert "20 updates" in told and "(1 of 4 runs; about " in told
    # Only the first two runs are planned, so nobody can tell what is left.
    assert main(["status", "out"]) == 0
    told = capsys.readouterr().out
    assert "there may be more to come" in told and "left" not in told
    assert main(["status", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_left"] == ""

    interrupt_after(2, monkeypatch)
    assert main(list(TABLE)) == 130
    assert "1 run is there already, and not made again" in capsys.readouterr().err
    (folder, *_) = (path.parent for path in Path("out/runs").glob("*/done"))
    (folder / "records.jsonl").write_text("{")
    assert main(list(TABLE)) == 2
    assert f"delete the folder {folder} and give the command" in capsys.readouterr().err


def test_a_broken_file_is_left_out_by_all_and_may_be_mended(capsys: Output) -> None:
    path = write_images(Path("data"), each=4) / "hospital_b/dark/0.png"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    assert main(list(IMAGES)) == 0
    out = capsys.readouterr().out
    assert f"   {path}: it is damaged or cut off (" in out
    for command in (
        ("eval", "out", "--dataset", "data", "--json"),
        ("diagnose", "out/model.safetensors", "data"),
    ):
        assert main([*command, "--cache", "cache"]) == 0
        told = capsys.readouterr()
        assert f"left out, as by the fit: {path}: it is damaged or cut off (" in told.err
        if command[0] == "eval":
            assert json.loads(told.out)["hospital_b"]["images"] == 7
    before = Path("out/inspection.json").read_text()
    path.write_bytes(whole[:150])  # no longer what the fit has seen
    assert main(["eval", "out", "--dataset", "data", "--cache", "cache"]) == 2
    assert Path("out/inspection.json").read_text() == before
    path.write_bytes(whole)
    Path("out-2").mkdir()
    capsys.readouterr()
    assert main(list(IMAGES)) == 2
    assert (
        "out is of another fit (the images have changed since: 23 then, 24 now); choose another "
        "--out, such as out-3\n"
    ) in capsys.readouterr().err


def test_an_unknown_network_is_refused_before_images_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("all images were read in vain")

    monkeypatch.setattr(inspection, "verify", read)
    write_images(Path("data"), each=1)
    assert main([*IMAGES, "--backbone", "resnet5"]) == 2
    assert "unknown backbone 'resnet5'" in capsys.readouterr().err


def test_the_help_says_what_a_bare_number_is(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "a bare number is minutes" in " ".join(capsys.readouterr().out.split())


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr("shoal.cli.fit_progress.QUIET", -1.0)
    with fit_progress() as progress:
        progress.run("erm", None, Ahead(0, 8, None))
        progress.run("erm", Progress(5, 10, 3.0, 9.0, None), Ahead(0, 8, 70.0))
        progress.run("last", Progress(10, 10, 3.0, 0.0, None), Ahead(0, 1, 0.0))
        progress.run("last", Progress(5, 10, 3.0, 4.0, None), Ahead(0, 1, 4.0))
    assert capsys.readouterr().err.splitlines() == [
        "erm: 5 of 10, 3 examples/s (1 of 8 runs; about 1 min 10 s left)",
        "last: 10 updates, 3 examples/s",
        "last: 5 of 10, 3 examples/s (about 4 s left)",
    ]
