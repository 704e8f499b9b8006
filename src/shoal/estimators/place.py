"""The folder that a fit writes: one of its own, outside the data, and open to writing."""

import os
from pathlib import Path

from ..datasets.folders import name_of
from .setup import SETUP

# What a command may have left behind that was refused before its first run.
INSPECTION = "inspection.json"


def folder_for(data: Path) -> Path:
    """Return where a fit to ``data`` is written if nobody says where."""
    return Path("out") / f"{name_of(data) if data.is_dir() else data.stem}-fit"


def check_place(out: Path, data: Path) -> None:
    """Raise where ``out`` lies in the data, holds something else, or cannot be written."""
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise ValueError(
            f"{out} lies in the data, {data}, and would be taken for a domain of it; choose "
            "another --out"
        )
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose another --out")
    if out.is_dir() and not (out / SETUP).exists():
        there = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
        strange = [name for name in there if name != INSPECTION]
        if strange:
            raise ValueError(
                f"{out} holds {', '.join(strange[:5])} and is no folder of a fit; choose another "
                "--out"
            )
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(f"{parent} cannot be written; make it writable, or choose another --out")
