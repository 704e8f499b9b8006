"""Compiled code: kept between processes in one folder, whose size is bounded; free of torch."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from .storage import cache_root

# Where torch's compiler and Triton keep their code, by the variables of the environment they read.
FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
# Bytes above which the code that was used least recently is deleted.
LIMIT = 2 * 1024**3


def code_folder() -> Path:
    """Return the folder of compiled code."""
    return cache_root() / "compiled"


def keep_compiled_code() -> None:
    """Let torch keep what it compiles, unless the environment says where or it cannot be kept.

    Must be called before torch is imported, and makes no folder: torch does, once it compiles. By
    default torch would keep its code in a temporary folder.
    """
    for variable, name in FOLDERS.items():
        folder = code_folder() / name
        if _can_be_written(folder):
            os.environ.setdefault(variable, str(folder))


def _can_be_written(folder: Path) -> bool:
    """Return whether a folder is, or could be made, one that files can be written in."""
    for place in (folder, *folder.parents):
        with suppress(OSError):
            if place.is_dir():
                return os.access(place, os.W_OK | os.X_OK)
            if place.exists():
                return False
    return False


def bound_compiled_code(limit: int = LIMIT) -> int:
    """Delete the oldest code while all of it takes more than ``limit`` bytes; return the bytes."""
    entries = [entry for name in FOLDERS.values() for entry in _children(code_folder() / name)]
    sizes = {entry: _size(entry) for entry in entries}
    total = sum(sizes.values())
    for entry in sorted(entries, key=_last_used):
        if total <= limit:
            break
        # Code that another process is reading stays readable for it.
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(
            missing_ok=True
        )
        total -= sizes[entry]
    return total


def _children(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _files(entry: Path) -> list[Path]:
    return [path for path in entry.rglob("*") if path.is_file()] if entry.is_dir() else [entry]


def _size(entry: Path) -> int:
    total = 0
    for path in _files(entry):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _last_used(entry: Path) -> float:
    newest = 0.0
    for path in _files(entry):
        with suppress(OSError):
            about = path.stat()
            newest = max(newest, about.st_atime, about.st_mtime)
    return newest
