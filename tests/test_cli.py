"""The command ``shoal``: what it prints and writes, and how it says what is wrong."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shoal
from shoal.cli import main
from shoal.experiments import colored_mnist, demo, restarts
from shoal.experiments.colored_mnist import METHODS, TABLES, Setup, Training

REPRODUCE = ("reproduce", "colored-mnist")
SIZES = {"examples": 50, "hidden": 8, "updates": 4, "jump_step": 2}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the experiment's setup a tiny one; --flip and --precision still arrive."""
    monkeypatch.setattr(colored_mnist, "Setup", functools.partial(Setup, **SIZES))


@pytest.fixture
def never_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(restarts, "run", refuse)


def stopped(*arguments: str) -> int | str | None:
    """Return the exit status of a command that argparse ends."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped("--version") == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"


@pytest.mark.serial
def test_as_a_module() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "shoal", "--version"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, f"shoal {shoal.__version__}\n")
    found = subprocess.run(
        [sys.executable, "-m", "shoal"], capture_output=True, text=True, timeout=100, check=False
    )
    assert found.returncode == 2  # the status of main is the status of the process


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--help",), ("demo", "reproduce", "--version", "under three minutes")),
        (("demo", "--help"), ("--out",)),
        (("reproduce", "--help"), ("colored-mnist", "table:cmnistend")),
        (
            (*REPRODUCE, "--help"),
            ("--methods", "--restarts", "--flip", "--device", "--precision", "--out", "list"),
        ),
    ],
    ids=" ".join,
)
def test_help(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(*arguments) == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: shoal" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "arguments",
    [("train",), ("reproduce",), ("reproduce", "cifar"), (*REPRODUCE, "--flip", "0.5")],
    ids=" ".join,
)
def test_what_is_not_offered_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(*arguments) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.usefixtures("never_train")
def test_list_of_methods(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*REPRODUCE, "--methods", "list", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for key, method in METHODS.items():
        assert [line for line in lines if line.split()[0] == key] == [f"{key:28} {method.name}"]
    for label, keys in TABLES.items():
        (line,) = [line for line in lines if line.split()[0] == label]
        assert all(key in line for key in keys)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize(
    ("name", "nearest"), [("fisher-omega", "fishr-omega"), ("table:cmnist25", "table:cmnist_25")]
)
def test_an_unknown_method_gets_the_nearest_name(
    name: str, nearest: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*REPRODUCE, "--methods", "erm", name, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"shoal: unknown method '{name}'; did you mean '{nearest}'?")
    assert all(key in err for key in [*METHODS, *TABLES])
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize("restarts", ["0", "-3", "two", "1.5"])
def test_bad_restarts(restarts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped(*REPRODUCE, f"--restarts={restarts}") == 2
    err = capsys.readouterr().err
    assert "--restarts" in err and restarts in err
    assert "_positive" not in err  # the name of a function is no help


@pytest.mark.usefixtures("never_train")
def test_cuda_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        assert main([*REPRODUCE, "--device", device, "--out", str(tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert "no GPU" in err and "--device cpu" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize("device", ["gpu", "meta", "mps", ""])
def test_an_unknown_device(device: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also one that torch knows and the experiment does not run on."""
    assert main([*REPRODUCE, "--device", device, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"unknown device '{device}'" in err and "auto, cpu, cuda" in err


# Whole runs


def reproduce(out: Path, *more: str) -> int:
    return main([*REPRODUCE, "--device", "cpu", "--restarts", "2", "--out", str(out), *more])


@pytest.mark.usefixtures("tiny")
def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "--methods", "erm", "fishr-omega") == 0
    out, err = capsys.readouterr()
    assert "table:cmnist_25, 25 % of labels flipped" in out
    assert "table:cmnistend, 25 % of labels flipped" in out
    assert "69.5 ± 1.0" in out  # the paper's cell
    assert f"Written: {tmp_path / 'results-flip0.25'}.json and .md" in out
    assert "erm: restart 1, step 4 of 4" in err

    written = json.loads((tmp_path / "results-flip0.25.json").read_text())
    assert written["restarts"] == 2
    assert written["precision"] == "float32"
    assert written["command"] and written["device"] and written["torch"] == torch.__version__
    rows = {row["method"]: row for row in written["tables"]["table:cmnist_25"]}
    assert rows["irm"]["cells"]["test"] is None
    for method in ("erm", "fishr-omega"):
        found = [
            json.loads((tmp_path / "records" / f"{method}-flip0.25-{restart:02d}.json").read_text())
            for restart in (0, 1)
        ]
        for column in ("train", "test", "gray"):
            cell = rows[method]["cells"][column]
            values = [100 * record[column] for record in found]
            assert cell["mean"] == pytest.approx(sum(values) / 2)
            assert cell["std"] == pytest.approx(abs(values[0] - values[1]) / 2)
            assert cell["count"] == 2

    page = (tmp_path / "results-flip0.25.md").read_text()
    assert page.count("| Method | Runs |") == 2
    assert f"{rows['erm']['cells']['test']['mean']:.1f} ± " in page
    assert "not run" in page


@pytest.mark.usefixtures("tiny")
def test_a_second_run_trains_nothing_and_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce(tmp_path, "--methods", "vrex") == 0
    first = capsys.readouterr().out
    files = {name: (tmp_path / name).read_bytes() for name in ("results-flip0.25.json",)}
    monkeypatch.setattr(restarts, "Training", None)
    assert reproduce(tmp_path, "--methods", "vrex") == 0
    assert capsys.readouterr().out == first
    assert all((tmp_path / name).read_bytes() == content for name, content in files.items())


@pytest.mark.usefixtures("tiny")
def test_without_flips_and_by_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    plain = restarts.run

    def run(methods: list[str], count: int, setup: Setup, *rest: Any) -> None:
        asked.append((methods, count, setup.flip, setup.tf32))
        plain(["vrex"], 1, setup, *rest)

    monkeypatch.setattr(restarts, "run", run)
    assert reproduce(tmp_path, "--flip", "0") == 0
    assert asked == [(list(TABLES["table:cmnist_0"]), 2, 0.0, False)]
    out = capsys.readouterr().out
    assert "table:cmnist_0, 0 % of labels flipped" in out
    assert "table:cmnist_25" not in out
    assert (tmp_path / "results-flip0.json").exists()
    # A method that stands in two tables is run once.
    assert reproduce(tmp_path, "--methods", "erm", "table:cmnist_25", "table:cmnistend") == 0
    assert asked[1][0] == list(
        dict.fromkeys(("erm", *TABLES["table:cmnist_25"], *TABLES["table:cmnistend"]))
    )
    assert reproduce(tmp_path / "tf32", "--precision", "tf32") == 0
    assert asked[2] == (list(TABLES["table:cmnist_25"]), 2, 0.25, True)


@pytest.mark.usefixtures("tiny")
def test_a_folder_of_another_setup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "--methods", "erm") == 0
    capsys.readouterr()
    assert reproduce(tmp_path, "--methods", "erm", "--precision", "tf32") == 2
    err = capsys.readouterr().err
    assert str(tmp_path) in err and "choose another --out" in err


@pytest.mark.usefixtures("tiny")
def test_an_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert reproduce(tmp_path / "file", "--methods", "erm") == 2
    err = capsys.readouterr().err
    assert err.startswith("shoal: ") and str(tmp_path / "file") in err


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_and_going_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Training.step

    def step(self: Training) -> None:
        if self.done == 3:
            raise KeyboardInterrupt
        plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", step)
        assert reproduce(tmp_path, "--methods", "irm") == 130
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "shoal: interrupted; the same command goes on from here"
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    steps = count_steps(monkeypatch)
    assert reproduce(tmp_path, "--methods", "irm") == 0
    assert len(steps) == 1 + 4
    assert reproduce(tmp_path / "other", "--methods", "irm") == 0
    for name in ("irm-flip0.25-00.json", "irm-flip0.25-01.json"):
        mine, theirs = (
            json.loads((folder / "records" / name).read_text())
            for folder in (tmp_path, tmp_path / "other")
        )
        assert mine | {"seconds": 0} == theirs | {"seconds": 0}


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    plain: Callable[[Training], None] = Training.step

    def step(self: Training) -> None:
        steps.append(self.done)
        plain(self)

    monkeypatch.setattr(Training, "step", step)
    return steps


@pytest.mark.usefixtures("tiny")
def test_the_name_of_the_folder_is_printed_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets are no markup, and a long name is not broken over lines."""
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "runs[bold]" / ("a-long-name" * 6)
    assert reproduce(out, "--methods", "erm", "--restarts", "1") == 0
    assert str(out) in capsys.readouterr().out


# The demo


@pytest.fixture
def tiny_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", functools.partial(demo.run, setup=Setup(**SIZES)))


@pytest.mark.usefixtures("tiny_demo")
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.lstrip().startswith("<!DOCTYPE html>")
    out = capsys.readouterr().out
    assert all(name in out for name in ("ERM", "V-REx", "Fishr", "Test, reversed colours"))
    assert str(tmp_path / "page" / "index.html") in out


def test_ctrl_c_in_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nothing, and so must not say that it goes on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    err = capsys.readouterr().err
    assert "interrupted" in err
    assert "goes on" not in err


def forget(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a package one that is not installed."""

    class Absent:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])


@pytest.mark.usefixtures("never_train")
@pytest.mark.parametrize("arguments", [("demo",), REPRODUCE], ids=" ".join)
def test_without_rich(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    forget("rich", monkeypatch)
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "shoal: this command needs rich; pip install 'shoal[cli,report]'\n"
    )


def test_without_jinja2_the_demo_says_so_before_it_trains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> dict[str, Any]:
        raise AssertionError("trained for minutes, for a page that cannot be made")

    forget("jinja2", monkeypatch)
    monkeypatch.setattr(demo, "run", refuse)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "needs jinja2; pip install 'shoal[cli,report]'" in capsys.readouterr().err
