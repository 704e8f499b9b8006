"""``shoal soup``: what it prints, writes, reads again and refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.cli import main
from shoal.datasets import DATASETS
from shoal.runs.run import Run
from shoal.sweeps.plan import folder_of, write_plan
from tests.runs.small import carry_out, small_run, squares

Output = pytest.CaptureFixture[str]


def data() -> Any:
    return squares((40, 50, 30), "colored-mnist", side=8)


def member(draw: int, test: str = "c", **changes: Any) -> Run:
    given = {"network": "mnist-cnn", "start": "linear-probe", "steps": 3, "lr": 1e-6 * (1 + draw)}
    return small_run("erm", data(), draw=draw, test_domains=(test,), **given | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two draws for each of two test domains, and a planned run that was not trained."""
    sweep = tmp_path_factory.mktemp("soups") / "sweep"
    runs = [member(draw, test) for test in "bc" for draw in (0, 1)]
    write_plan(sweep, [*runs, member(2)])
    for run in runs:
        carry_out(folder_of(sweep, run), run, dataset=data())
    return sweep


@pytest.fixture
def sweep(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(DATASETS, "colored-mnist", lambda root, trial: data())
    monkeypatch.setenv("COLUMNS", "100")
    return shutil.copytree(trained, tmp_path / "sweep")


def soup(sweep: Path, *more: str) -> int:
    return main(["soup", str(sweep), "--device", "cpu", *more])


def test_tables_and_models(sweep: Path, capsys: Output) -> None:
    assert soup(sweep) == 0
    out, err = capsys.readouterr()
    assert "ERM on colored-mnist, last weights, test domain b, trial 0" in out
    for name in (
        "draw 0",
        "draw 1",
        "mean of the members",
        "best by validation: draw ",
        "uniform soup",
        "greedy soup of ",
        "ensemble",
        "start: linear probe",
        "interpolated, α = 0.5",
    ):
        assert out.count(f"\n  {name}") >= 2, name
    assert out.count("The members share a basin of the loss: ") == 2
    assert out.count("In the greedy soup, in this order: draw") == 2
    assert "ERM on colored-mnist, last weights\n" in out.replace("  ", "")  # over test domains
    assert "Test accuracy in %, one trial." in out
    assert "the last weights are averaged, because " in err and "--keep-best" in err
    assert "1 run of these soups is not finished: 'shoal status" in err
    found = json.loads((sweep / "soups" / "soups.json").read_text())
    assert found["schema"] == 1
    assert list(found["groups"]) == [f"colored-mnist-erm-{test}-t0-last" for test in "bc"]
    for name in found["groups"]:
        for kind in ("uniform", "greedy", "interpolated"):
            folder = sweep / "soups" / name / kind
            assert shoal.load(folder, "cpu").classes == ("left", "right")
            assert main(["eval", str(folder), "--dataset", "colored-mnist", "--device", "cpu"]) == 0


def test_again_nothing_is_measured(
    sweep: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert soup(sweep, "--format", "json", "--test-domain", "c") == 0
    first = capsys.readouterr().out
    assert len(json.loads(first)) == 1

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("shoal.sweeps.soup.make_soup", refuse)
    monkeypatch.setitem(DATASETS, "colored-mnist", refuse)
    assert soup(sweep, "--format", "json", "--test-domain", "c") == 0
    assert capsys.readouterr().out == first
    assert soup(sweep, "--format", "markdown", "--test-domain", "c") == 0
    told = capsys.readouterr().out
    assert "| Model | validation % | test % | calibration error |" in told
    assert "\n- The members share a basin" in told


def test_other_weights_are_another_soup(sweep: Path, capsys: Output) -> None:
    assert soup(sweep, "--of", "best") == 2
    assert "did not keep the weights of step" in capsys.readouterr().err
    assert soup(sweep, "--of", "swad") == 2
    assert "has no model.json of the average swad" in capsys.readouterr().err
    assert not (sweep / "soups").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--test-domain", "d"), "unknown test domain of these runs 'd'"),
        (("--trial", "1"), "unknown trial of these runs '1'"),
        (("--algorithm", "fishr"), "unknown method of these runs 'fishr'"),
        (("--datasets", "rotated-mnist"), "unknown data set of these runs 'rotated-mnist'"),
    ],
)
def test_names_that_no_run_has(
    words: tuple[str, ...], why: str, sweep: Path, capsys: Output
) -> None:
    assert soup(sweep, *words) == 2
    assert why in capsys.readouterr().err


def test_what_cannot_be_averaged(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    assert soup(tmp_path / "none") == 2
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert soup(tmp_path / "empty") == 2
    assert "no finished run in" in capsys.readouterr().err
    run = member(0)
    carry_out(folder_of(tmp_path / "single", run), run, dataset=data())
    assert soup(tmp_path / "single") == 2
    assert "a soup needs two finished draws or more of one method" in capsys.readouterr().err
    other = member(5, start="network")
    carry_out(folder_of(sweep, other), other, dataset=data())
    assert soup(sweep) == 2
    told = capsys.readouterr().err
    assert "cannot be averaged" in told and "start linear-probe and network" in told
    assert not (sweep / "soups").exists()  # all groups are checked before the first is measured


def test_own_data_are_named(sweep: Path, capsys: Output) -> None:
    for path in sweep.glob("runs/*/run.json"):
        path.write_text(path.read_text().replace('"colored-mnist"', '"photos"'))
    assert soup(sweep) == 2
    assert "your own data, photos: name its folder or manifest with --datasets" in (
        capsys.readouterr().err
    )
