"""Notes: lines on stderr beside a command's results; ``--quiet`` leaves them out, errors never."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..report.screen import open_console, print_lines

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


def say(*lines: str) -> None:
    """Print lines of progress."""
    if not _quiet:
        print_lines(*lines, stderr=True)


def report_error(text: str, *more: str) -> None:
    """Print what went wrong, and further lines about it."""
    print_lines(f"shoal: {text}", *more, stderr=True)


def progress_console() -> "Console":
    """Return the console of notes and progress."""
    return open_console(stderr=True, quiet=_quiet)
