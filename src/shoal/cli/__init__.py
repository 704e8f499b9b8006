"""The command ``shoal``: one file for each of its commands."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from .._version import __version__
from . import (
    data,
    demo,
    diagnose,
    evaluate,
    fit,
    hparams,
    listing,
    predict,
    report,
    reproduce,
    select,
    status,
    sweep,
    train,
)

COMMANDS = (
    *(demo, fit, predict, data, train, evaluate, diagnose),
    *(sweep, status, select, report, reproduce, hparams, listing),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.parser.refuse(unknown)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    _show_all_names()
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        told = str(error)  # where it names what to install, that is better than a guess
        if "pip install" not in told:
            told = f"this command needs {error.name}; pip install 'shoal[cli,report]'"
        print(f"shoal: {told}", file=sys.stderr)
        return 2
    except ImportError as error:  # of a package that is there and does not work, or an extra
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here
            raise
        told = str(error).partition(". ")[0]
        print(f"shoal: {told}; try a smaller batch, or --place host", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"shoal: interrupted; {options.after_interrupt}", file=sys.stderr)
        return 130
    return status


def _show_all_names() -> None:
    """Let names of files that are no UTF-8 be shown as they are."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")


class _Parser(argparse.ArgumentParser):
    """Says which command or option may have been meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ever; ``parser`` of what is returned is that of the command, or its action."""
        found, unknown = super().parse_known_args(args, namespace)
        if not hasattr(found, "parser"):  # an inner one comes first
            found.parser = self
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = get_close_matches(str(value), list(map(str, action.choices)), 1)
            if near:
                told = f"unknown {value!r}; did you mean {near[0]!r}?"
                raise argparse.ArgumentError(action, told)
        super()._check_value(action, value)

    def refuse(self, unknown: Sequence[str]) -> None:
        """Exit with the usage."""
        near = get_close_matches(unknown[0], list(self._option_string_actions), 1, 0.75)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _parser() -> _Parser:
    parser = _Parser(
        prog="shoal",
        description="Classifiers that keep working on a domain they never saw.",
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
