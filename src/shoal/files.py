"""Files: only regular files of a stated size are opened, and none of them makes a reader wait.

A FIFO or a device can be named like an image, and would block a reader or never end.
"""

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

MIB, GIB = 2**20, 2**30
# The most bytes of a file, by what it holds.
JSON_BYTES = 64 * MIB
# The plan of a sweep with 100,000 runs, the records of a long run, a list of images.
LIST_BYTES = 256 * MIB
IMAGE_BYTES = 512 * MIB
TABLE_BYTES = 16 * GIB
TENSOR_BYTES = 64 * GIB
ARCHIVE_BYTES = 64 * GIB

CHUNK = 1 << 18
# The folders above a file that is looked for, from where it is looked for: Python recurses into
# them.
DEEPEST = 100
KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Not all systems have them. A file that is replaced by a FIFO after it was looked at does not wait.
FLAGS = 0
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    FLAGS |= getattr(os, _flag, 0)


class UnfitFile(ValueError):
    """A file that is not opened: it is no regular file, or larger than the stated size."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(f"cannot read {path}: {why}")


class _Raw(io.FileIO):
    """An open file that ends in an error where its reader would have to wait.

    Some files of the kernel, such as ``/proc/kmsg``, look like regular ones and are not.
    """

    def __init__(self, handle: int, path: str | Path) -> None:
        super().__init__(handle)
        self.path = path

    def readinto(self, buffer: Any) -> int:
        if (count := super().readinto(buffer)) is None:
            raise self._waits()
        return count

    def readall(self) -> bytes:
        content: bytes | None = super().readall()
        if content is None:
            raise self._waits()
        return content

    def _waits(self) -> UnfitFile:
        return UnfitFile(self.path, "its content has still to come, expected a regular file")


def open_file(path: str | Path, most: int) -> io.BufferedReader:
    """Return a regular file of at most ``most`` bytes, open to be read.

    Raise ``UnfitFile`` if it is none, and OSError if it does not exist or may not be read.
    """
    _check(path, os.stat(path), most)  # some devices act as soon as they are opened
    handle = os.open(path, FLAGS | os.O_RDONLY)
    try:
        _check(path, os.fstat(handle), most)
        return io.BufferedReader(_Raw(handle, path))
    except BaseException:
        os.close(handle)
        raise


def _check(path: str | Path, state: os.stat_result, most: int) -> None:
    kind = stat.S_IFMT(state.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "it is a folder, expected a file", str(path))
    if kind != stat.S_IFREG:
        raise UnfitFile(path, f"it is {KINDS.get(kind, 'special')}, expected a regular file")
    if state.st_size > most:
        raise UnfitFile(path, _too_large(f"{state.st_size:,} bytes", most))


def _too_large(came: str, most: int) -> str:
    return f"it has {came}, and at most {most:,} are read; make it smaller"


def read_bytes(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file; raise as ``open_file`` does."""
    with open_file(path, most) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)
        if len(content) <= size:
            return content
        # It grows while it is read, or is one of those that the kernel makes up.
        parts = [content]
        while chunk := file.read(CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > most:
                raise UnfitFile(path, _too_large(f"more than {most:,} bytes", most))
        return b"".join(parts)


def read_text(path: str | Path, most: int) -> str:
    """Return the text of a UTF-8 file, with or without a mark at its beginning."""
    content = read_bytes(path, most)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = Path(path).suffix[1:].upper() or "text"
        raise ValueError(f"{path} is not UTF-8 text; save it as {kind} UTF-8 ({error})") from error


def open_to_append(path: str | Path) -> IO[bytes]:
    """Return a regular file to be read and extended, made if it does not exist; unbuffered."""
    flags = FLAGS | os.O_RDWR | os.O_CREAT | os.O_APPEND
    handle = os.open(path, flags, 0o666)
    try:
        _check(path, os.fstat(handle), ARCHIVE_BYTES)
        return os.fdopen(handle, "ab+", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def walk(
    folder: Path, closed: Callable[[OSError], object], follow_links: bool = False
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield a folder and those below it, each with its folders and its files, as ``os.walk`` does.

    Args:
        closed: called with the error of each folder that cannot be opened, or is too deep.
    """
    above = str(folder)
    for place, folders, files in os.walk(folder, onerror=closed, followlinks=follow_links):
        if place.count(os.sep, len(above)) >= DEEPEST:
            for name in folders:
                why = f"it is more than {DEEPEST} folders deep"
                closed(OSError(errno.ELOOP, why, os.path.join(place, name)))
            folders.clear()
        yield place, folders, files
