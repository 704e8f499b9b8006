"""The command ``shoal``: its parser, and one message for every error; one file per command."""

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from textwrap import dedent, indent
from typing import Any, NoReturn

from .._version import __version__
from ..choices import nearest
from ..compiled_code import bound_compiled_code, keep_compiled_code
from ..escapes import printable
from .domainbed import answers, name_here
from .extras import missing_message
from .notes import note, quietly, report_error

# The module of each command, in the order of the help: your own data, one run, many runs, the
# paper, and what they need.
COMMANDS = {
    "demo": "demo",
    "fit": "fit",
    "predict": "predict",
    "monitor": "monitor",
    "train": "train",
    "eval": "evaluate",
    "diagnose": "diagnose",
    "sweep": "sweep",
    "status": "status",
    "report": "report",
    "select": "select",
    "soup": "soup",
    "reproduce": "reproduce",
    "data": "data",
    "hparams": "hparams",
    "list": "listing",
    "completion": "completion",
}
EPILOG = """\
examples:
  shoal demo                           # see what the methods do
  shoal fit photos --out model         # train on your own data,
  shoal predict model new-photos       # and classify new ones
  shoal reproduce linear               # check the paper
  shoal sweep --algorithms erm fishr --datasets colored-mnist --out out/sweep
  shoal report out/sweep               # the tables of a benchmark

'shoal COMMAND --help' explains every option of a command.
"""


# The exit status after a closed pipe: 128 + SIGPIPE, a signal that Windows does not have.
CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # also after --help, which exits
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a stream in memory
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return CLOSED_PIPE


def _run(words: Sequence[str]) -> int:
    _allow_any_text()
    parser = build_parser(words)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        options.parser.refuse(unknown)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # the errors of damaged files are our own
    keep_compiled_code()
    try:
        with quietly(getattr(options, "quiet", False)), warnings.catch_warnings():
            # Pillow's, of images above 89 megapixels, for which there are notes and errors.
            warnings.showwarning = lambda message, *_, **__: note(str(message))
            warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\)", RuntimeWarning)
            status: int = options.run(options)
        if "torch" in sys.modules:  # otherwise nothing was compiled
            bound_compiled_code()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, FloatingPointError) as error:
        return _fail(str(error), *getattr(error, "__notes__", ()))
    except ModuleNotFoundError as error:
        message = str(error)  # if it names what to install, that is better than a guess
        if "pip install" not in message:
            message = missing_message((error.name or "a package").partition(".")[0])
        return _fail(message)
    except ImportError as error:  # from a package that is installed but broken
        return _fail(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        message = str(error).partition(". ")[0]
        return _fail(f"{message}; try a smaller batch, or --place host")
    except MemoryError as error:
        return _fail(f"out of memory{f' ({error})' if str(error) else ''}; give it less at once")
    except KeyboardInterrupt:
        _fail(f"interrupted; {options.after_interrupt}")
        return 130
    return status


def _fail(*lines: str) -> int:
    """Print why a command stops; return its exit status."""
    report_error(*lines)
    return 2


def _allow_any_text() -> None:
    """Write file names that are not UTF-8 to CSV as they are; escape what a stream cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that keeps line breaks of texts that have any, and commands in one column."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; argparse forgets that commands are indented once more."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests the nearest command or option, and ends its help with examples."""

    def __init__(self, *given: Any, examples: str = "", **named: Any) -> None:
        if examples:
            named["epilog"] = f"examples:\n{indent(dedent(examples).strip(), '  ')}\n"
        super().__init__(*given, **{"formatter_class": _Formatter, **named})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; ``parser`` of the result is the parser of the innermost command."""
        if self._subparsers is None:  # an option belongs to the innermost command
            words = sys.argv[1:] if args is None else list(args)
            places = any(not one.option_strings for one in self._actions)
            if told := answers(words, self._option_string_actions, action=not places):
                self.error("\n  ".join(["words of DomainBed, which are others here:", *told]))
        found, unknown = super().parse_known_args(args, namespace)
        if not hasattr(found, "parser"):  # the inner one has parsed before this one
            found.parser = self
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse would not say that the pipe is closed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if told := name_here(action.dest, str(value)):
                raise argparse.ArgumentError(action, f"{value} of DomainBed is {told!r} here")
            near = nearest(str(value), map(str, action.choices))
            if near:
                message = f"unknown {value!r}; did you mean {near!r}?"
                raise argparse.ArgumentError(action, message)
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit."""
        super().error(printable(message, keep="\n"))

    def refuse(self, unknown: Sequence[str]) -> None:
        """Print the usage and the unknown arguments, and exit."""
        near = nearest(unknown[0], self._option_string_actions, cutoff=0.75)
        hint = f"; did you mean {near!r}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def build_parser(words: Sequence[str] = ()) -> CommandParser:
    """Return the parser for these words; other commands than the one they name are not loaded."""
    parser = CommandParser(
        prog="shoal",
        description="Train image and table classifiers that hold up at sites they have never seen.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    named = next((word for word in words if not word.startswith("-")), None)
    for command in [named] if named in COMMANDS else COMMANDS:
        import_module(f".{COMMANDS[command]}", __name__).add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
