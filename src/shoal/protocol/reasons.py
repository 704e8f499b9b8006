"""Why something failed: all of it for a file, and one line of that to be shown."""

import re
import traceback
from itertools import dropwhile

UNKNOWN = "no reason was written down"
_TYPE_ALONE = re.compile(r"[\w.]+:\s*")


def reason_of(error: BaseException) -> str:
    """Return the error's type, message and notes, which may have many lines."""
    return "".join(traceback.format_exception_only(error)).rstrip()


def in_one_line(reason: str) -> str:
    """Return the type of the error and the first line of its message, also from a traceback.

    What follows in the message is advice more often than not, as in all errors of CUDA.
    """
    lines = [line for line in reason.split("\n") if line.strip()]
    if not lines:
        return UNKNOWN
    if lines[0].startswith("Traceback"):
        heads = [k for k, line in enumerate(lines) if line.startswith("Traceback")]
        lines = lines[heads[-1] + 1 :] or lines
    first, *rest = [*dropwhile(_is_indented, lines)] or lines  # frames are, and the error is not
    if rest and _TYPE_ALONE.fullmatch(first):
        first = f"{first.rstrip()} {rest[0].lstrip()}"
    return first.strip(" \t\r")


def _is_indented(line: str) -> bool:
    return line[0] in " \t"
