"""Index of a sweep: what the files of its finished runs say, in one file that is quick to read.

An entry is used only while the files of its run are those that it was made from. So the index can
be deleted at any time, and a run that changes is read anew.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..documents import parse_json
from ..files import read_bytes
from ..storage import write_aside
from .packed import Packed, Shape, layout_of, shape_of

# In a sweep's folder: its plan, the folder of its runs, and the index.
PLAN, RUNS, INDEX = "plan.json", "runs", "index.bin"
MAGIC = b"shoal index 1 " + sys.byteorder.encode() + b"\n"
DIGEST = 32
# A sweep with fewer runs than this is read in a second, and gets no index.
FEWEST = 500
# Nanoseconds. A file that is younger can change once more without a trace in its times.
SETTLED = 2_000_000_000
# By file: the times of its last changes, its size and its inode; None if it cannot be reached.
Files = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True)
class Entry:
    """What the files of a run say: its description, its records, and those of its averages."""

    files: Files
    run: Mapping[str, Any]
    records: Packed
    averages: Packed | None = None


def files_of(folder: Path, names: Iterable[str]) -> Files:
    """Return what tells whether files of a folder have changed."""
    found: list[tuple[int, int, int, int] | None] = []
    for name in names:
        try:
            one = os.stat(f"{folder}{os.sep}{name}")
            found.append((one.st_mtime_ns, one.st_ctime_ns, one.st_size, one.st_ino))
        except OSError:  # reading the run reports the reason
            found.append(None)
    return tuple(found)


def may_have_index(sweep: Path, runs: Path, count: int) -> bool:
    """Return whether a sweep has so many runs in its folder ``runs`` that an index pays."""
    return count >= FEWEST and runs.name == RUNS and (sweep / PLAN).is_file()


def most_bytes(files: Iterable[Files]) -> int:
    """Return how large the index of these files can be: a number takes two bytes of text or more.

    What is larger was not written for them, and is not read.
    """
    every = [one for some in files for one in some if one is not None]
    return 4096 * (1 + len(every)) + 8 * sum(one[2] for one in every)


def is_settled(files: Files, now: int) -> bool:
    """Return whether no file is so young that its next change could go unnoticed."""
    return all(one is None or max(one[:2]) < now - SETTLED for one in files)


def write_index(sweep: Path, entries: Mapping[str, Entry]) -> None:
    """Write the entries by the names of their folders; do nothing if that is not possible."""
    layouts: dict[str, int] = {}
    shapes: dict[Shape, int] = {}
    protocols: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    start, blocks, runs = 0, list[Any](), list[Any]()

    def place(packed: Packed | None) -> list[int] | None:
        nonlocal start
        if packed is None:
            return None
        blocks.append(packed.numbers)
        begin, start = start, start + len(packed.numbers)
        return [shapes.setdefault(packed.shape, len(shapes)), begin]

    for name, entry in entries.items():
        run = {key: value for key, value in entry.run.items() if key != "protocol"}
        text = json.dumps(entry.run["protocol"])
        protocols[text] = entry.run["protocol"]
        number = numbers.setdefault(text, len(numbers))
        runs.append((name, entry.files, run, number, place(entry.records), place(entry.averages)))
    by_layout = [
        [layouts.setdefault(one.text, len(layouts)) for one in shape.layouts] for shape in shapes
    ]
    head = {
        "layouts": [*layouts],
        "shapes": by_layout,
        "protocols": [*protocols.values()],
        "runs": runs,
    }
    content = json.dumps(head).encode()
    content += b" " * (-len(content) % 8)
    parts = [len(content).to_bytes(8, "little"), content, *blocks]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)

    def write(file: Any) -> None:
        for part in (MAGIC, digest.digest(), *parts):
            file.write(part)

    with suppress(OSError):
        write_aside(sweep / INDEX, write)


def read_index(sweep: Path, most: int) -> dict[str, Entry]:
    """Return the entries by the names of their folders; none if the index is missing or damaged.

    Args:
        most: its greatest size in bytes.
    """
    try:
        return dict(_entries(memoryview(read_bytes(sweep / INDEX, most))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _entries(content: memoryview) -> Iterable[tuple[str, Entry]]:
    body = content[len(MAGIC) + DIGEST :]
    if content[: len(MAGIC)] != MAGIC:
        raise ValueError("another format")
    if hashlib.sha256(body).digest() != content[len(MAGIC) : len(MAGIC) + DIGEST]:
        raise ValueError("damaged")
    size = int.from_bytes(body[:8], "little")
    head = parse_json(bytes(body[8 : 8 + size]), INDEX)
    whole = body[8 + size :].cast("d")
    layouts = [layout_of(text) for text in head["layouts"]]
    shapes = [shape_of(tuple(layouts[k] for k in one)) for one in head["shapes"]]
    protocols = head["protocols"]

    def packed(place: Any) -> Packed | None:
        if place is None:
            return None
        shape, begin = shapes[place[0]], place[1]
        if begin < 0 or begin + shape.width > len(whole):
            raise ValueError("numbers are missing")
        return Packed(shape, whole[begin : begin + shape.width])

    for name, files, run, number, records, averages in head["runs"]:
        known = tuple(None if one is None else tuple(one) for one in files)
        found = packed(records)
        if found is None:
            raise ValueError("records are missing")
        yield name, Entry(known, run | {"protocol": protocols[number]}, found, packed(averages))
