"""Partial files: the bytes of an unfinished download, their checksums, and their origin."""

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ..documents import read_object
from ..files import ARCHIVE_BYTES, CHUNK, open_file, open_to_append
from ..storage import move, write_json


class Sums:
    """SHA-256 and MD5 of the bytes so far."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        # Not for security; without the flag a FIPS build of Python refuses.
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        self._md5.update(chunk)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def mismatch(self, sha256: str | None, md5: str | None) -> str | None:
        """Return how the sums differ from the expected ones, or None if they agree."""
        for kind, expected, found in (
            ("SHA-256", sha256, self.sha256),
            ("MD5", md5, self._md5.hexdigest()),
        ):
            if expected is not None and expected.lower() != found:
                return f"{kind} sum {found}, expected {expected.lower()}"
        return None


def file_sums(path: Path) -> Sums:
    """Return the sums of a whole file."""
    sums = Sums()
    with open_file(path, ARCHIVE_BYTES) as file:
        while chunk := file.read(CHUNK):
            sums.update(chunk)
    return sums


@dataclass(frozen=True)
class Origin:
    """The file of a server that bytes belong to; without a validator that cannot be checked."""

    url: str
    etag: str | None = None
    modified: str | None = None
    length: int | None = None

    @property
    def validator(self) -> str | None:
        """The value for ``If-Range``: a strong ETag, else the date of the last change."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.modified


class PartialFile:
    """``path.part``, open for more bytes; its origin is kept in ``path.part.json``.

    Existing bytes are kept if they are from this URL and a validator or a known sum can tell
    whether they still fit; otherwise the file is emptied.
    """

    def __init__(self, path: Path, url: str, sum_known: bool) -> None:
        self.target = path
        self._sum_known = sum_known
        self.path = path.with_name(f"{path.name}.part")
        self._note = path.with_name(f"{path.name}.part.json")
        self.origin = self._read_origin(url)
        # Unbuffered: written bytes are counted and summed even if the next write fails.
        self._file = open_to_append(self.path)
        self.size = self.path.stat().st_size
        if not self.resumable:
            self.restart(None)
        self.sums = file_sums(self.path)
        self._size_at_opening = self.size

    def _read_origin(self, url: str) -> Origin | None:
        try:
            origin = Origin(**read_object(self._note))
        except (OSError, ValueError, TypeError):
            return None
        texts = all(isinstance(text, str | None) for text in (origin.etag, origin.modified))
        sized = origin.length is None or type(origin.length) is int
        return origin if origin.url == url and texts and sized else None

    @property
    def resumable(self) -> bool:
        """Whether there are bytes, and bytes of another file would be noticed."""
        known = self.origin is not None and (self._sum_known or self.origin.validator)
        return self.size > 0 and bool(known)

    @property
    def has_grown(self) -> bool:
        return self.size > self._size_at_opening

    @property
    def complete(self) -> bool:
        return self.origin is not None and 0 < self.size == self.origin.length

    def restart(self, origin: Origin | None) -> None:
        """Empty the file; the bytes that follow are from ``origin``."""
        self._file.truncate(0)
        self.size, self.sums, self.origin = 0, Sums(), origin
        self._size_at_opening = 0
        if origin is None:
            self._note.unlink(missing_ok=True)
        else:
            write_json(self._note, asdict(origin))

    def write(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            written = self._file.write(left)
            self.sums.update(bytes(left[:written]))
            self.size += written
            left = left[written:]

    def finish(self) -> None:
        """Move the complete file into place."""
        os.fsync(self._file.fileno())
        move(self.path, self.target)
        self._note.unlink(missing_ok=True)

    def discard(self) -> None:
        """Drop all bytes."""
        self.restart(None)

    def close(self) -> None:
        """Keep the bytes for the next attempt; delete an empty file."""
        self._file.close()
        if self.size == 0:
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
