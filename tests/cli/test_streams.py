"""Streams: --quiet leaves results and errors; a closed pipe ends every command with 141."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import shoal
from shoal.algorithms.erm import ERM
from shoal.cli import CLOSED_PIPE, main
from shoal.cli.notes import note, quietly, report_error, say
from shoal.datasets import DATASETS, DomainDataset
from shoal.experiments import demo
from shoal.experiments.colored_mnist import Setup
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol
from shoal.sweeps.attempt import BEGUN, FAILED, attempt
from shoal.sweeps.plan import Sweep, folder_of, runs_of
from shoal.sweeps.status import RunState
from shoal.training.watcher import Progress, Watcher
from tests.cli.test_help import COMMANDS
from tests.runs.small import squares

SOURCE = Path(shoal.__file__).parent
DOMAINS = ("+90%", "+80%", "-90%")
TRAIN = "--dataset colored-mnist --algorithm erm --test-domain=-90% --steps 2 --set batch_size=4"
TINY = Setup(examples=16, hidden=6, jump_step=2, updates=4)


def small(*_: object) -> DomainDataset:
    made = squares((9, 8, 9), "colored-mnist")
    domains = [replace(one, name=name) for one, name in zip(made.domains, DOMAINS, strict=True)]
    return DomainDataset("colored-mnist", made.classes, tuple(domains))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder with a small table, and small digits in place of Colored MNIST."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "colored-mnist", small)
    monkeypatch.setattr(demo, "SETUP", TINY)
    rows = [f"{n % 3},{n % 2},{n * 7 % 5 + n % 2}" for n in range(60)]
    Path("table.csv").write_text("\n".join(["domain,class,x", *rows]), encoding="utf-8")
    return tmp_path


# Quiet


def test_quiet_is_for_notes_and_not_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, wanted in ((False, "shoal: a\nb\nshoal: c\n"), (True, "shoal: c\n")):
        with quietly(quiet):
            note("a")
            say("b")
            report_error("c")
        assert capsys.readouterr().err == wanted
    note("again")
    assert capsys.readouterr().err == "shoal: again\n"


@pytest.mark.usefixtures("place")
def test_commands_print_nothing_but_results(capsys: pytest.CaptureFixture[str]) -> None:
    fit = "fit table.csv --only erm --runs 3 --steps 5 --trials 1"
    for command, result, left_out in (
        ("demo --steps 3", "The page with curves", ""),
        (f"train {TRAIN} --out run", "Records, model and card: run", ""),
        (f"{fit} --plan-only", "Comparing ERM", ""),
        (fit, "Deploy ERM", "Comparing ERM"),
        ("eval run --dataset colored-mnist", "accuracy %", ""),
        ("predict out/table-fit table.csv", "table.csv", ""),
    ):
        assert main([*command.split(), "-q"]) == 0
        out, err = capsys.readouterr()
        assert err == "", command
        assert result in out, command
        assert not left_out or left_out not in out, command


@pytest.mark.usefixtures("place")
def test_without_quiet_there_is_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "3"]) == 0
    assert "Fishr: restart 0, step 3 of 3" in capsys.readouterr().err


@pytest.mark.usefixtures("place", "no_probe")
def test_a_quiet_sweep(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = "sweep --algorithms erm --datasets colored-mnist --out out --steps 2 --trials 1"
    assert main([*sweep.split(), "--draws", "1", "--plan-only", "-q"]) == 0
    assert "3 runs, 6 updates in all" in capsys.readouterr().err, "the plan is the result"
    done = Counter({RunState.DONE: 3})
    monkeypatch.setattr("shoal.sweeps.local.run_locally", lambda *_: done)
    assert main([*sweep.split(), "--draws", "1", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "Runs of out" in out


@pytest.mark.usefixtures("place")
def test_errors_are_printed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dataset", "colored-mnist", "--test-domain", "nowhere", "-q"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_stream_that_is_not_utf8(tmp_path: Path) -> None:
    """As of a pipe on Windows: letters that it does not have are escaped."""
    words = [sys.executable, "-m", "shoal", "reproduce", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(words, capture_output=True, timeout=100, check=True, env=environment)
    assert r"the range of \u03bb" in done.stdout.decode("cp1252")


# Pipes


def closed_pipe(monkeypatch: pytest.MonkeyPatch, *streams: str) -> None:
    """Put a pipe that nobody reads in place of these streams."""
    for name in streams:
        reading, writing = os.pipe()
        os.close(reading)
        monkeypatch.setattr(sys, name, os.fdopen(writing, "w"))


def commands_that_print() -> list[str]:
    return [
        *(f"{name} --help".strip() for name in COMMANDS),
        "",
        "--version",
        "list",
        "list algorithms",
        "list datasets --json",
        "data list",
        "hparams fishr --dataset pacs",
        "hparams fishr --dataset pacs --json",
        "completion zsh",
        *(f"report --published --format {kind}" for kind in ("terminal", "markdown", "json")),
        "reproduce colored-mnist --methods list",
        "data verify colored-mnist",
        "demo --steps 1",
        f"train {TRAIN} --json",
        "fit table.csv --only erm --runs 3 --steps 5 --trials 1 --plan-only",
    ]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("command", commands_that_print())
def test_a_closed_pipe_ends_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_pipe(monkeypatch, "stdout")
    assert main(command.split()) == CLOSED_PIPE


@pytest.mark.usefixtures("place")
def test_a_closed_pipe_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``shoal train … 2>&1 | head -1``."""
    closed_pipe(monkeypatch, "stdout", "stderr")
    assert main(["demo", "--steps", "3"]) == CLOSED_PIPE


@pytest.mark.parametrize("command", ["list algorithms", "train --help", "report --published"])
def test_the_shell_gets_141_and_no_message(command: str) -> None:
    # Not head, which reads a line if it comes soon enough.
    line = f'{sys.executable} -m shoal {command} | true; echo "${{PIPESTATUS[0]}}"'
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=environment,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_run_that_nobody_watches_has_not_failed(tmp_path: Path) -> None:
    """``shoal fit … 2>&1 | head`` is an interruption: the same command resumes."""

    class Gone(Watcher):
        def progress(self, progress: Progress) -> None:
            raise BrokenPipeError

    class Space:
        def method(self, name: str) -> object:
            return ERM, {}

        def data(self, name: str, trial: int) -> object:
            return small(), None

        def machine(self) -> Machine:
            return Machine(device=torch.device("cpu"), step="eager")

    space = Space()
    sweep = Sweep(
        algorithms=("erm",),
        datasets=("colored-mnist",),
        trials=1,
        draws=1,
        settings={"batch_size": "4"},
        protocol=Protocol(steps=2),
    )
    run = runs_of(sweep, space.method, lambda *_: small())[0]
    with pytest.raises(BrokenPipeError):
        attempt(run, space, tmp_path, space.machine(), watcher=Gone())
    folder = folder_of(tmp_path, run)
    assert folder.is_dir()
    assert not (folder / FAILED).exists() and not (folder / BEGUN).exists()


def test_consoles_are_opened_in_one_place() -> None:
    """Rich's own ends a command with status 1 when its reader has gone."""
    own = re.compile(r"\bConsole\((?!width=10_000\))")  # which only measures
    assert not [path for path in SOURCE.rglob("*.py") if own.search(path.read_text("utf-8"))]
