"""``shoal completion``: completion for a shell, written from the parser of all commands."""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalogue import BASELINES, DATASETS, METHODS
from ..report.screen import print_document
from .listing import LISTS

# Names that arguments take besides files or instead of them, where the parser has no choices: a
# user's own classes and folders have no names.
NAMES = {
    "algorithm": tuple(METHODS),
    "algorithms": tuple(METHODS),
    "only": (*BASELINES, *METHODS),
    "rows": tuple(METHODS),
    "compare": tuple(METHODS),
    "dataset": tuple(DATASETS),
    "datasets": tuple(DATASETS),
    "name": tuple(DATASETS),
    "device": ("auto", "cpu", "cuda", "mps"),
    "what": tuple(LISTS),
}
# Those of them that can be files or folders, too.
ALSO_FILES = ("algorithm", "algorithms", "dataset", "datasets", "name")


@dataclass(frozen=True)
class Values:
    """What completes a value.

    Args:
        words: to choose from.
        files: "files", "folders" or "none".
        many: whether more values can follow the first.
    """

    words: tuple[str, ...]
    files: str
    many: bool


@dataclass(frozen=True)
class OptionWords:
    """An option: its names, its help, and its values; None for a switch."""

    names: tuple[str, ...]
    help: str
    values: Values | None


@dataclass(frozen=True)
class CommandWords:
    """A command: its words after ``shoal``, its own commands with their help, and the rest."""

    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    options: tuple[OptionWords, ...]
    arguments: tuple[Values, ...]

    @property
    def name(self) -> str:
        return " ".join(self.words)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands, options and names in your shell",
        description="Print a script for bash, zsh or fish. Sourced, it completes commands, "
        "options, their choices, methods, data sets and files.",
        examples="""
            shoal completion bash        # to use it: source <(shoal completion bash)
            shoal completion zsh         # to keep it: save it as _shoal in a folder of $fpath
            shoal completion fish        # to keep it: ~/.config/fish/completions/shoal.fish
        """,
    )
    parser.add_argument("shell", choices=tuple(SHELLS), help="your shell")
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    from . import build_parser

    script = SHELLS[options.shell](list(commands_of(build_parser())))
    print_document(script.removesuffix("\n"))
    return 0


def commands_of(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[CommandWords]:
    """Yield the command of a parser, then all below it."""
    options, arguments, inner = [], [], None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = action
        elif action.option_strings:
            values = None if action.nargs == 0 else _values(action)
            options.append(OptionWords(tuple(action.option_strings), _first(action.help), values))
        else:
            arguments.append(_values(action))
    listed = inner._choices_actions if inner is not None else []
    commands = tuple((one.dest, _first(one.help)) for one in listed)
    yield CommandWords(words, commands, tuple(options), tuple(arguments))
    if inner is not None:
        for name, command in inner.choices.items():
            yield from commands_of(command, (*words, name))


def _values(action: argparse.Action) -> Values:
    many = action.nargs in ("+", "*", 2)
    if action.choices is not None:
        return Values(tuple(map(str, action.choices)), "none", many)
    files = "none"
    if action.type is Path:
        files = "folders" if action.metavar == "DIR" else "files"
    elif action.dest in ALSO_FILES:
        files = "files"
    return Values(NAMES.get(action.dest, ()), files, many)


def _first(text: str | None) -> str:
    """Return the beginning of a help, up to its first semicolon, colon or bracket."""
    plain = (text or "").replace("%%", "%")
    for stop in (";", ":", " (", ". "):
        plain = plain.partition(stop)[0]
    return plain


# Functions that bash and zsh share: what follows a command, or an option of it.

WORDS = """\
_shoal_commands() {{
    case "$1" in
{commands}
    esac
}}

_shoal_options() {{
    case "$1" in
{options}
    esac
}}

# Of a command and an option, or of its argument with a number: one or many, files or folders,
# and words.
_shoal_values() {{
    case "$1/$2" in
{values}
    esac
}}
"""


def _words(commands: Sequence[CommandWords]) -> str:
    def case(pattern: str, answer: str) -> str:
        return f"        {shlex.quote(pattern)}) echo {shlex.quote(answer)} ;;"

    inner, options, values = [], [], []
    for one in commands:
        if one.commands:
            inner.append(case(one.name, " ".join(name for name, _ in one.commands)))
        names = [name for option in one.options for name in option.names]
        options.append(case(one.name, " ".join(names)))
        asked = [(name, option.values) for option in one.options for name in option.names]
        asked += [(str(number), found) for number, found in enumerate(one.arguments)]
        for name, found in asked:
            if found is not None:
                line = ["many" if found.many else "one", found.files, *found.words]
                values.append(case(f"{one.name}/{name}", " ".join(line)))
    return WORDS.format(
        commands="\n".join(inner), options="\n".join(options), values="\n".join(values)
    )


BASH = r"""
# Sets command, option and place: where the words before the current one lead.
_shoal_walk() {
    local word
    local -a kind
    command="" option="" place=0
    for word in "$@"; do
        case "$word" in
            =) ;;
            -*)
                option="$word"
                if [ -z "$(_shoal_values "$command" "$option")" ]; then option=""; fi
                ;;
            *)
                if [ -n "$option" ]; then
                    kind=($(_shoal_values "$command" "$option"))
                    if [ "${kind[0]}" = one ]; then option=""; fi
                elif [[ " $(_shoal_commands "$command") " == *" $word "* ]]; then
                    command="${command:+$command }$word"
                else
                    kind=($(_shoal_values "$command" "$place"))
                    if [ "${kind[0]}" = one ]; then place=$((place + 1)); fi
                fi
                ;;
        esac
    done
}

_shoal() {
    local current="${COMP_WORDS[COMP_CWORD]}" command option place word
    local -a kind
    COMPREPLY=()
    _shoal_walk "${COMP_WORDS[@]:1:COMP_CWORD-1}"
    if [ "$current" = "=" ]; then current=""; fi
    if [[ "$current" == -* ]]; then
        COMPREPLY=($(compgen -W "$(_shoal_options "$command")" -- "$current"))
        return
    fi
    kind=(many none $(_shoal_commands "$command"))
    if [ -n "$option" ]; then
        kind=($(_shoal_values "$command" "$option"))
    elif [ ${#kind[@]} -eq 2 ]; then
        kind=($(_shoal_values "$command" "$place"))
    fi
    COMPREPLY=($(compgen -W "${kind[*]:2}" -- "$current"))
    case "${kind[1]}" in
        files) word=-f ;;
        folders) word=-d ;;
        *) return ;;
    esac
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen "$word" -- "$current")
}

complete -F _shoal shoal
"""


def _bash(commands: Sequence[CommandWords]) -> str:
    return f"# Completion of shoal for bash.\n\n{_words(commands)}{BASH}"


ZSH = r"""
_shoal_walk() {
    local word
    local -a kind
    command="" option="" place=0
    for word in "$@"; do
        case "$word" in
            --*=*) option="" ;;
            -*)
                option="$word"
                if [[ -z "$(_shoal_values "$command" "$option")" ]]; then option=""; fi
                ;;
            *)
                if [[ -n "$option" ]]; then
                    kind=(${=$(_shoal_values "$command" "$option")})
                    if [[ "$kind[1]" == one ]]; then option=""; fi
                elif [[ " $(_shoal_commands "$command") " == *" $word "* ]]; then
                    command="${command:+$command }$word"
                else
                    kind=(${=$(_shoal_values "$command" "$place")})
                    if [[ "$kind[1]" == one ]]; then place=$((place + 1)); fi
                fi
                ;;
        esac
    done
}

_shoal() {
    local command option place
    local -a kind described
    _shoal_walk "${(@)words[2,CURRENT-1]}"
    if [[ "$words[CURRENT]" == --*=* ]]; then
        option="${words[CURRENT]%%=*}"
        compset -P '*='
    elif [[ "$words[CURRENT]" == -* ]]; then
        described=("${(@f)$(_shoal_described_options "$command")}")
        _describe -o option described
        return
    fi
    if [[ -z "$option" && -n "$(_shoal_commands "$command")" ]]; then
        described=("${(@f)$(_shoal_described_commands "$command")}")
        _describe command described
        return
    fi
    kind=(${=$(_shoal_values "$command" "${option:-$place}")})
    if (( $#kind > 2 )); then compadd -- "${(@)kind[3,-1]}"; fi
    case "$kind[2]" in
        files) _files ;;
        folders) _files -/ ;;
    esac
}

if [[ "$funcstack[1]" == _shoal ]]; then
    _shoal "$@"
else
    compdef _shoal shoal
fi
"""
DESCRIBED = """
_shoal_described_{kind}() {{
    case "$1" in
{cases}
    esac
}}
"""


def _zsh(commands: Sequence[CommandWords]) -> str:
    found = ""
    for kind in ("options", "commands"):
        cases = []
        for one in commands:
            lines = [f"{name}:{about}" for name, about in one.commands]
            if kind == "options":
                lines = [f"{name}:{which.help}" for which in one.options for name in which.names]
            if lines:
                cases.append(
                    f"        {shlex.quote(one.name)}) print -rl -- {shlex.join(lines)} ;;"
                )
        found += DESCRIBED.format(kind=kind, cases="\n".join(cases))
    return f"#compdef shoal\n# Completion of shoal for zsh.\n\n{_words(commands)}{found}{ZSH}"


FISH = """\
# Completion of shoal for fish.

# Prints the command that the words so far name.
function __shoal_command
    set -l found
    set -l known {known}
    for word in (commandline -opc)[2..]
        if contains -- "$found $word" $known
            set found "$found $word"
        end
    end
    echo $found
end

function __shoal_at
    test "$(string trim -- (__shoal_command))" = "$argv"
end

complete -c shoal -f
"""


def _fish(commands: Sequence[CommandWords]) -> str:
    known = [f" {one.name}" for one in commands if one.words]
    lines = [FISH.format(known=shlex.join(known))]
    for one in commands:
        at = ["complete", "-c", "shoal", "-n", f"__shoal_at {one.name}".strip()]
        for name, about in one.commands:
            lines.append(shlex.join([*at, "-a", name, "-d", about]))
        for option in one.options:
            names = [
                word
                for name in option.names
                for word in (("-l", name[2:]) if name.startswith("--") else ("-s", name[1:]))
            ]
            lines.append(shlex.join([*at, *names, *_fish_values(option.values), "-d", option.help]))
        for values in one.arguments:
            lines.append(shlex.join([*at, *_fish_values(values, option=False)]))
    return "\n".join(lines) + "\n"


def _fish_values(values: Values | None, option: bool = True) -> list[str]:
    if values is None:
        return []
    words = " ".join(values.words)
    if values.files == "folders":
        words = f"{words} (__fish_complete_directories)".strip()
    # -x takes a value and no files; -r with -F takes files, too.
    takes = (["-r", "-F"] if values.files == "files" else ["-x"]) if option else []
    takes += ["-F"] if not option and values.files == "files" else []
    return [*takes, *(["-a", words] if words else [])]


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
