"""The command ``shoal``: its parser, and one message for every error; one file per command."""

import argparse
import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from .._version import __version__
from ..choices import nearest
from ..compiled_code import keep_compiled_code
from ..escapes import printable
from ..report.screen import warn
from .domainbed import answers

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
}
EPILOG = """\
where to start:
  see what the methods do    shoal demo
  train on your own data     shoal fit photos --out model, then shoal predict model new-photos
  run a benchmark            shoal sweep … --out DIR, then shoal status DIR, shoal report DIR
  check the paper            shoal reproduce linear

'shoal COMMAND --help' explains every option of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(words)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        options.parser.refuse(unknown)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    _allow_any_file_name()
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # the errors of damaged files are our own
    keep_compiled_code()
    try:
        with warnings.catch_warnings():
            # Pillow's, of images above 89 megapixels, for which there are notes and errors.
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\)", RuntimeWarning)
            status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, FloatingPointError) as error:
        return _fail(str(error), *getattr(error, "__notes__", ()))
    except ModuleNotFoundError as error:
        message = str(error)  # if it names what to install, that is better than a guess
        if "pip install" not in message:
            message = f"this command needs {error.name}; pip install 'shoal[cli,report]'"
        return _fail(message)
    except ImportError as error:  # from a package that is installed but broken
        return _fail(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        message = str(error).partition(". ")[0]
        return _fail(f"{message}; try a smaller batch, or --place host")
    except KeyboardInterrupt:
        _fail(f"interrupted; {options.after_interrupt}")
        return 130
    return status


def _fail(*lines: str) -> int:
    """Print why a command stops; return its exit status."""
    warn(*lines)
    return 2


def _allow_any_file_name() -> None:
    """Write names of files that are not UTF-8 to CSV byte for byte, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with the line breaks of the epilog, and commands in one column with their help."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; argparse forgets that commands are indented once more."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class _Parser(argparse.ArgumentParser):
    """A parser that suggests the nearest command or option."""

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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
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


def _parser(words: Sequence[str]) -> _Parser:
    """Return the parser for these words; other commands than the one they name are not loaded."""
    parser = _Parser(
        prog="shoal",
        description="Train image and table classifiers that hold up at sites they have never seen.",
        epilog=EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    named = next((word for word in words if not word.startswith("-")), None)
    for command in [named] if named in COMMANDS else COMMANDS:
        import_module(f".{COMMANDS[command]}", __name__).add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
