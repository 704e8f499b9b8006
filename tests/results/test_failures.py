"""One line that says why, of errors that have many."""

import pytest

from shoal.results.records import UNKNOWN, in_one_line, reason_of

FRAME = '  File "x.py", line 1, in f\n    f()\n    ~^^\n'
HEAD = "Traceback (most recent call last):\n"
CUDA = "RuntimeError: CUDA error: out of bounds\nFor debugging consider CUDA_LAUNCH_BLOCKING=1\n"


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("too hot", "too hot"),
        ("  too hot \n", "too hot"),
        ("", UNKNOWN),
        (" \n\t\n", UNKNOWN),
        (CUDA, "RuntimeError: CUDA error: out of bounds"),
        (HEAD + FRAME + CUDA, "RuntimeError: CUDA error: out of bounds"),
        (FRAME + CUDA, "RuntimeError: CUDA error: out of bounds"),
        (
            f"{HEAD}{FRAME}KeyError: 1\n\nDuring handling of it:\n\n{HEAD}{FRAME}{CUDA}",
            "RuntimeError: CUDA error: out of bounds",
        ),
        (f"ValueError: bad image\n{HEAD}{FRAME}KeyError: 1", "ValueError: bad image"),
        ("ValueError: \n\n  bad image\nand more", "ValueError: bad image"),
        ("Traceback …\nValueError: too hot\n", "ValueError: too hot"),
        (HEAD, "Traceback (most recent call last):"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_the_first_line_of_the_message(reason: str, line: str) -> None:
    assert in_one_line(reason) == line


def test_a_reason_is_the_whole_error() -> None:
    error = ValueError("bad image\nof a cat")
    error.add_note("in photos")
    assert reason_of(error) == "ValueError: bad image\nof a cat\nin photos"
    assert in_one_line(reason_of(error)) == "ValueError: bad image"
    assert in_one_line(reason_of(SyntaxError("no", ("x.py", 1, 1, "f(")))) == "SyntaxError: no"
