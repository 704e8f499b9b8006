"""Escapes: any text as a terminal, LaTeX, Markdown, CSV and JSON show it, whatever it contains.

Names of files, domains and classes come from others. Each output has one function here that makes
them harmless; nothing else is changed, so that names are read as they were given.
"""

import json
import re
import reprlib
import unicodedata
from collections.abc import Iterator
from typing import Any

# Joiners that Persian, Indic scripts and emoji need. All other characters of these categories are
# invisible, move the cursor, turn the direction of the text, or end the line.
JOINERS = "\u200c\u200d"
UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# A spreadsheet takes a cell that begins with one of these for a formula.
FORMULA = tuple("=+-@\t\r\n＝＋－＠")

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}

# Characters that would end a cell or begin markup; left alone where they mean nothing.
_MARKDOWN = re.compile(
    r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=\()|~(?=~)|&(?=#|\w+;)",
)

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def is_safe(character: str) -> bool:
    """Return whether a terminal shows the character and does nothing else."""
    return unicodedata.category(character) not in UNSAFE or character in JOINERS


def printable(text: str, keep: str = "") -> str:
    r"""Return the text in one line, unsafe characters as Python writes them: ``\n``, ``\x1b``.

    Args:
        keep: unsafe characters to leave alone.
    """
    if text.isprintable():
        return text
    return "".join(
        character if is_safe(character) or character in keep else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def as_latex(text: str) -> str:
    """Return the text in one line, escaped so that LaTeX shows it as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in printable(text))


def latex_comment(text: str) -> str:
    """Return the text as a comment of LaTeX, which ends with its line."""
    return f"% {printable(text)}"


def as_markdown(text: str) -> str:
    """Return the text in one line, escaped so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\g<0>", printable(" ".join(text.split())))


def csv_cell(text: str) -> str:
    """Return the text as a cell that no spreadsheet takes for a formula: ``'=cmd`` for ``=cmd``.

    Numbers such as -1 stay as they are. All else is left to the quotes of CSV.
    """
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text, re.ASCII) is not None


def json_text(value: Any, indent: int | None = None, allow_nan: bool = True) -> str:
    """Return a value as JSON that can be read, with unsafe characters escaped as JSON does."""
    return "".join(json_parts(value, indent, allow_nan))


def json_parts(value: Any, indent: int | None = None, allow_nan: bool = True) -> Iterator[str]:
    """Yield the text of ``json_text`` in parts, which need less memory."""
    encoder = json.JSONEncoder(indent=indent, ensure_ascii=False, allow_nan=allow_nan)
    for part in encoder.iterencode(value):
        yield part if part.isprintable() else "".join(map(_json_safe, part))


def _json_safe(one: str) -> str:
    return one if is_safe(one) or one == "\n" else json.dumps(one)[1:-1]


def html_json(text: str) -> str:
    """Return JSON that cannot end the HTML block around it."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def brief(value: object) -> str:
    """Return a short ``repr`` of any value that was read, however large or deep it is."""
    return _BRIEF.repr(value)
