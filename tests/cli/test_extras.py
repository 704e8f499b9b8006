"""Extras: a command without its packages says so at once; no command is forgotten."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shoal.cli import build_parser, main
from shoal.cli.completion import commands_of
from shoal.cli.extras import EXTRAS, missing_message
from tests.cli import without_extras
from tests.cli.without_extras import FAILS_OTHERWISE, NEEDS, WORKS
from tests.docs.test_documents import ROOT


def test_every_command_without_its_extras() -> None:
    """In a process that cannot import them, all missing at once, as after ``pip install shoal``."""
    done = subprocess.run(
        [sys.executable, without_extras.__file__, "--block"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_command_is_forgotten() -> None:
    tried = [*NEEDS, *WORKS, *FAILS_OTHERWISE]
    for one in commands_of(build_parser()):
        if one.words and not one.commands:
            assert any(f"{command} ".startswith(f"{one.name} ") for command in tried), one.name
    assert {name for packages in NEEDS.values() for name in packages.split()} == set(EXTRAS)


@pytest.mark.parametrize("command", NEEDS)
def test_each_package_that_is_missing_alone(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The rest of the extras is there, and the command has not begun."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for name in NEEDS[command].split():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
            assert main(command.split()) == 2
        out, err = capsys.readouterr()
        assert out == "" and err == f"shoal: {missing_message(name)}\n"
        assert f"pip install 'shoal[{EXTRAS[name][0]}]'" in err
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_extras_install_what_they_are_named_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    offered = project["optional-dependencies"]
    for extra, package in EXTRAS.values():
        names = [re.split(r"[<>=~!; ]", line)[0] for line in offered[extra]]
        assert package in names, f"shoal[{extra}] does not install {package}"


def test_a_package_that_no_command_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> int:
        raise ModuleNotFoundError("No module named 'matplotlib.figure'", name="matplotlib.figure")

    monkeypatch.setattr("shoal.cli.status._run", broken)
    assert main(["status", "out"]) == 2
    assert "(matplotlib): pip install 'shoal[report]'" in capsys.readouterr().err
