"""Mutations: good files with a few wrong values or bytes, and files that are wrong throughout."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

# Names and values that readers trip over.
ODD_TEXTS = ("", "\0", "../../x", "a\x1b[2J\u202eb\nc", "=cmd", "nan", "x" * 3000, "\ud7ff\ufffe")
ODD_NUMBERS = (-1, 0, 1, 2**31, 2**63, 10**18, 10**30, 10**400, 1e308, -0.0, 1e-320)
ODD = (None, True, False, [], {}, [[]], [[[[[]]]]], {"a": {"b": {}}}, *ODD_TEXTS, *ODD_NUMBERS)
DEEP = 100_000
NASTY = (
    b"",
    b"\0" * 100,
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"[" * 500 + b"]" * 500,
    b"1" + b"0" * 400,
    b"1" + b"0" * 5000,
    b"NaN",
    b"null",
    b'"x"',
    b"[[]]",
    b'{"schema": 1}',
)

scalars = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container inside a value with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        keys = one.keys() if isinstance(one, dict) else range(len(one))
        for key in list(keys):
            found.append((one, key))
            if isinstance(one[key], (dict, list)):
                waiting.append(one[key])
    return found


@st.composite
def changed_values(draw: st.DrawFn, value: Any) -> Any:
    """Draw a value with up to three of its parts replaced, removed, doubled or wrapped."""
    found = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        known = places(found)
        container, key = known[draw(st.integers(0, len(known) - 1))]
        action = draw(st.sampled_from(("replace", "replace", "remove", "double", "wrap")))
        if action == "replace":
            container[key] = copy.deepcopy(draw(values))  # some are shared, and changed later
        elif action == "wrap":
            container[key] = [container[key]]
        elif action == "double" and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif container is not found:
            del container[key]
    return found[0]


def changed_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for the content with up to four edits."""
    position = st.integers(0, len(content))
    piece = st.one_of(
        st.binary(max_size=12),
        st.sampled_from((b"\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"9" * 12, b"-1")),
    )
    edit = st.tuples(
        position, st.integers(0, 40), piece, st.sampled_from(["replace", "cut", "end"])
    )

    def apply(edits: list[tuple[int, int, bytes, str]]) -> bytes:
        found = content
        for place, length, new, how in edits:
            if how == "replace":
                found = found[:place] + new + found[place + len(new) :]
            elif how == "cut":
                found = found[:place] + new + found[place + length :]
            else:
                found = found[: max(place, 1)]
        return found

    return st.lists(edit, min_size=1, max_size=4).map(apply)


def json_files(value: Any) -> st.SearchStrategy[bytes]:
    """Return a strategy for damaged files that held this value."""
    whole = json.dumps(value).encode()
    changed = changed_values(value).map(lambda one: json.dumps(one).encode())
    return st.one_of(changed, changed, changed_bytes(whole), st.sampled_from(NASTY))


def line_files(values: list[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy for damaged files that held these values, one on each line."""

    def lines(found: Any) -> bytes:
        found = found if isinstance(found, list) else [found]
        return "".join(json.dumps(one) + "\n" for one in found).encode()

    return st.one_of(
        changed_values(values).map(lines),
        changed_bytes(lines(values)),
        st.sampled_from(NASTY),
    )


cells = st.one_of(
    st.sampled_from(("1", "2.5", "a", "b", "")), st.text(max_size=6), scalars.map(str)
)


@st.composite
def tables(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a damaged CSV file, or any other table."""
    if draw(st.booleans()):
        return draw(changed_bytes(content))
    width = draw(st.integers(0, 6))
    rows = draw(st.lists(st.lists(cells, min_size=width, max_size=width + 1), max_size=12))
    delimiter = draw(st.sampled_from(",;\t|"))
    end = draw(st.sampled_from(("\n", "\r\n", "\r")))
    return end.join(delimiter.join(row) for row in rows).encode("utf-8", "backslashreplace")
