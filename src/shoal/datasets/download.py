"""Files from a server: resumed where they broke off, checked, and in place only when whole."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .answers import (
    DownloadError,
    Dropped,
    Unavailable,
    answer,
    begin,
    check_scheme,
    read,
    refuse_page,
)
from .part import CHUNK, Part, sums_of

# Called with how many bytes are there, of how many (None where the server does not say).
Progress = Callable[[int, int | None], object]
Tell = Callable[[str], object]

LIMIT = 64 * 2**30
# Failures in a row, without a byte more than before, after which it is given up.
ATTEMPTS = 5
LONGEST_WAIT = 30.0
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def download(
    url: str,
    path: Path,
    sha256: str | None = None,
    md5: str | None = None,
    size_limit: int = LIMIT,
    progress: Progress | None = None,
    tell: Tell | None = None,
    wait: float = 1.0,
) -> str:
    """Return the SHA-256 sum of the file at ``path``, fetched from ``url`` unless it is there.

    Bytes go to ``path.part`` and are kept when the connection breaks or the process ends; the next
    call goes on from there, if the server's file is still the same. A file that is there already is
    checked and left alone.

    Args:
        tell: called with a line whenever another attempt is made.
        wait: seconds before the second attempt; twice as long before each one after it.
    """
    check_scheme(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        if path.exists():
            sums = sums_of(path)
            if wrong := sums.wrong(sha256, md5):
                raise DownloadError(f"{path} has the {wrong}; remove it to have it fetched again")
            return sums.sha256
        part = Part(path, url, sum_known=bool(sha256 or md5))
        try:
            _persist(part, url, size_limit, progress, tell, wait)
            if wrong := part.sums.wrong(sha256, md5):
                part.discard()
                raise DownloadError(f"{url} has the {wrong}; what came was deleted")
            part.finish()
            return part.sums.sha256
        finally:
            part.close()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let no other process download the same file in the meantime."""
    lock = path.with_name(f"{path.name}.lock")
    busy = DownloadError(f"another process is downloading {path}; wait until it is done")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it before may have removed it after it was opened here.
            if not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                raise busy
        except (BlockingIOError, FileNotFoundError):
            raise busy from None
        try:
            yield
        finally:
            lock.unlink()


def _persist(
    part: Part,
    url: str,
    limit: int,
    progress: Progress | None,
    tell: Tell | None,
    wait: float,
) -> None:
    """Complete the part, in as many attempts as bring it further."""
    failures, furthest = 0, part.size
    while not part.whole:
        try:
            return _stream(part, url, limit, progress)
        except Dropped as error:
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures == ATTEMPTS:
                raise Unavailable(f"{url}: {error}{_kept(part)}") from error
            if tell is not None:
                tell(f"{part.target.name}: {error}; trying again")
            time.sleep(min(wait * 2 ** (failures - 1), LONGEST_WAIT))
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DownloadError(
                f"no room for {part.target.name} ({error.strerror}): make some{_kept(part)}"
            ) from error


def _kept(part: Part) -> str:
    if part.size == 0:
        return ""
    return f"; {part.size:,} bytes are kept in {part.path}, and the same command goes on from there"


def _stream(part: Part, url: str, limit: int, progress: Progress | None) -> None:
    """Add to the part what one answer of the server gives; raise where that is not all."""
    with answer(part, url) as response:
        total = begin(part, url, response)
        if total is not None and total > limit:
            part.discard()
            raise DownloadError(f"{url} has {total:,} bytes, more than the limit of {limit:,}")
        while total is None or part.size < total:
            chunk = read(response, CHUNK if total is None else min(CHUNK, total - part.size))
            if not chunk:
                break
            if part.size == 0:
                refuse_page(part, url, response, chunk)
            if part.size + len(chunk) > limit:
                part.discard()
                raise DownloadError(f"{url} has more bytes than the limit of {limit:,}")
            part.write(chunk)
            if progress is not None:
                progress(part.size, total)
    if total is not None and part.size < total:
        raise Dropped(f"the connection ended after {part.size:,} of {total:,} bytes")
