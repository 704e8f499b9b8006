"""Completion: the scripts of all shells, and what bash, zsh and fish make of them."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.catalogue import DATASETS, METHODS
from shoal.cli import COMMANDS, build_parser, main
from shoal.cli.completion import SHELLS, commands_of
from shoal.results.selection import ALL_RULES

ASK = """
source {script}
ask() {{
    COMP_WORDS=("$@")
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _shoal
    printf '%s\\n' "${{COMPREPLY[@]}}"
    echo ==
}}
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """The script for each shell, in a file."""
    found = {}
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        found[shell] = tmp_path / f"script.{shell}"
        found[shell].write_text(capsys.readouterr().out, encoding="utf-8")
    return found


def ask_bash(script: Path, lines: list[list[str]], folder: Path) -> list[list[str]]:
    """Return bash's answers to a TAB after these words."""
    asked = "\n".join(shlex.join(["ask", "shoal", *words]) for words in lines)
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(script=script) + asked],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=folder,
    )
    assert done.stderr == ""
    return [answer.split("\n")[:-1] for answer in done.stdout.split("==\n")[:-1]]


def test_bash_completes(script: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "my photos").mkdir(parents=True)
    (place / "my table.csv").touch()
    starting = {start: sorted(n for n in METHODS if n.startswith(start)) for start in ("fi", "s")}
    expected = {
        "": list(COMMANDS),
        "tr": ["train"],
        "data ''": ["list", "download", "verify", "cache", "features"],
        "reproduce abl": [f"ablation-{name}" for name in ("ema", "iga", "lambda", "batch")],
        "fit --jud": ["--judge"],
        "fit photos --judge ''": ["mean", "worst"],
        "fit photos --judge worst --met": ["--metric"],
        "report --rule ''": [*ALL_RULES, "all"],
        "report --rule = tr": ["training-domain"],
        "train --algorithm fi": starting["fi"],
        "sweep --algorithms erm s": starting["s"],
        "sweep --algorithms erm --datasets pa": ["pacs"],
        "hparams fishr --dataset ''": [*DATASETS, "my photos", "my table.csv"],
        "fit my": ["my photos", "my table.csv"],
        "train --out ''": ["my photos"],
        "predict model my": ["my photos", "my table.csv"],
        "completion ''": list(SHELLS),
        "completion bash ''": [],
        "list d": ["datasets"],
        "train --steps ''": [],
        "train --steps 5 --dataset pacs -q --pre": ["--precision", "--predictions"],
        "data list --": ["--help", "--data", "--json"],
    }
    words = [shlex.split(line) or [""] for line in expected]
    answers = ask_bash(script["bash"], words, place)
    for (line, wanted), found in zip(expected.items(), answers, strict=True):
        assert sorted(filter(None, found)) == sorted(wanted), line


def test_every_option_and_choice_is_in_every_script(script: dict[str, Path]) -> None:
    texts = {shell: path.read_text("utf-8") for shell, path in script.items()}
    for one in commands_of(build_parser()):
        for option in one.options:
            for name in option.names:
                assert all(name in texts[shell] for shell in ("bash", "zsh"))
                flag = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                assert f"'__shoal_at {one.name}' " in texts["fish"] or not one.words
                assert flag in texts["fish"]
            for word in option.values.words if option.values else ():
                assert all(word in text for text in texts.values()), word


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_understands_its_script(shell: str, script: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    subprocess.run([shell, "-n", str(script[shell])], check=True, timeout=60)


def test_fish_completes(script: dict[str, Path]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    for line, wanted in {
        "shoal tr": ["train"],
        "shoal data ver": ["verify"],
        "shoal train --algorithm fishr --prec": ["--precision"],
        "shoal report --rule cal": ["calibrated"],
    }.items():
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script['fish']}; complete -C '{line}'"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert [found.split("\t")[0] for found in done.stdout.splitlines()] == wanted, line
