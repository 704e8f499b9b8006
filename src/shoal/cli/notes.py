"""Notes: lines on stderr beside a command's results; ``--quiet`` leaves them out, errors never."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..report.console import open_console

if TYPE_CHECKING:
    from rich.console import Console

_quiet = False


def add_quiet(parser: Any) -> None:
    """Add ``--quiet``, which ``main`` reads."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing but results and errors"
    )


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Leave notes and progress out inside, if ``quiet``."""
    global _quiet  # noqa: PLW0603
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def note(text: str) -> None:
    """Print a line about the command."""
    say(f"shoal: {text}")


def say(text: str) -> None:
    """Print a line of progress."""
    if not _quiet:
        print(text, file=sys.stderr)


def report_error(text: str) -> None:
    """Print what went wrong."""
    print(f"shoal: {text}", file=sys.stderr)


def progress_console() -> "Console":
    """Return the console of notes and progress."""
    return open_console(stderr=True, quiet=_quiet)


def has_bars(console: "Console") -> bool:
    """Return whether progress is shown by bars: on a terminal, unless it is quiet."""
    return console.is_terminal and not console.quiet
