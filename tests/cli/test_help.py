"""Help: every command ends it with examples, and every example is understood."""

import re
import shlex

import pytest

from shoal.cli import CommandParser, build_parser
from shoal.cli.completion import CommandWords, commands_of

COMMANDS = {one.name: one for one in commands_of(build_parser())}
# Commands that print nothing but results in any case.
ALWAYS_QUIET = {"status", "hparams", "list", "data list", "completion"}


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    words = [*command.split(), "--help"]
    with pytest.raises(SystemExit) as caught:
        build_parser(words).parse_args(words)
    assert caught.value.code == 0
    return capsys.readouterr().out


def examples_of(text: str) -> list[str]:
    """Return the commands under "examples:", each on one line."""
    _, found, after = text.partition("\nexamples:\n")
    assert found, "the help has no examples"
    lines = re.sub(r" \\\n +", " ", after.partition("\n\n")[0]).splitlines()
    assert all(line.startswith("  shoal ") for line in lines), lines
    return [line.strip() for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = examples_of(help_of(command, capsys))
    assert any(line.startswith(f"shoal {command}") for line in found)
    for line in found:
        words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
        try:
            options = build_parser(words).parse_args(words)
        except SystemExit:
            pytest.fail(f"{line!r} is not understood: {capsys.readouterr().err}")
        assert hasattr(options, "run"), line


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_of_the_help_fit(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 100 columns; argparse breaks all but the examples by itself."""
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, help_of(command, capsys).splitlines())) <= 100


def test_a_wrong_example_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser(prog="shoal", examples="shoal fot photos")
    assert examples_of(parser.format_help()) == ["shoal fot photos"]
    with pytest.raises(SystemExit):
        build_parser(["fot"]).parse_args(["fot", "photos"])
    assert "did you mean 'fit'" in capsys.readouterr().err


def test_quiet_is_offered_where_it_makes_a_difference() -> None:
    def is_quiet(one: CommandWords) -> bool:
        return any(option.names == ("-q", "--quiet") for option in one.options)

    leaves = {name: one for name, one in COMMANDS.items() if not one.commands}
    assert {name for name, one in leaves.items() if not is_quiet(one)} == ALWAYS_QUIET
