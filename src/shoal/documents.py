"""Documents: JSON that is read, whoever wrote it; every error names the file and gives advice."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .escapes import brief
from .files import JSON_BYTES, read_bytes

# Advice for a file that is made again.
AGAIN = "move it away and run the command again"
# What the content of a damaged file raises where it is used.
DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
# Digits of a whole number: with more of them, not every one is a float.
DIGITS = 308


def _whole_number(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)


DECODER = json.JSONDecoder(parse_int=_whole_number)


def read_json(path: Path, most: int = JSON_BYTES, advice: str = AGAIN) -> Any:
    """Return the value of a JSON file; the error for a damaged file names it and gives advice."""
    return parse_json(read_bytes(path, most), path, advice)


def parse_json(
    content: bytes | str, where: object, advice: str = AGAIN, line: int | None = None
) -> Any:
    """Return the value of a JSON text; the error says where it is from and gives advice.

    It must be UTF-8, not too deep, and have no whole number beyond all floats.

    Args:
        line: of the file, if the text is one line of it.
    """
    try:
        return DECODER.decode(content.decode() if isinstance(content, bytes) else content)
    except (ValueError, RecursionError) as error:
        place = where if line is None else f"{where}, line {line},"
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f"{place} is not valid JSON ({why}); {advice}") from error


def read_object(
    path: Path, keys: Iterable[str] = (), most: int = JSON_BYTES, advice: str = AGAIN
) -> dict[str, Any]:
    """Return the object of a JSON file; raise if it is none, or lacks one of the keys."""
    found = read_json(path, most, advice)
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object, got {brief(found)}; {advice}")
    if lacking := [key for key in keys if key not in found]:
        raise ValueError(f"{path} lacks {', '.join(lacking)}; {advice}")
    return found


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object, or None if the content is not one."""
    try:
        found = parse_json(content, "it")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def damage_named(path: object, advice: str = AGAIN) -> Iterator[None]:
    """Name the file in any error that its content raises inside, and give advice.

    For content of the wrong types: what reads well as JSON can still lack a key, or have a text for
    a number. An error that names the file already stays as it is.
    """
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        if isinstance(error, KeyError):
            why = f"no {brief(error.args[0]) if error.args else 'key'}"
        raise ValueError(f"{path} is damaged ({why}); {advice}") from error
