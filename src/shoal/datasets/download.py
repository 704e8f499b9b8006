"""Files from a server: resumed where they broke off, checked, and in place only when whole."""

import errno
import http.client
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from ..storage import hold_lock
from .partial_file import CHUNK, Origin, PartialFile, sums_of

TIMEOUT = 60
# Answers that another attempt may mend.
PASSING = {408, 425, 429, 500, 502, 503, 504}
UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
PAGES = (b"<!doctype html", b"<html")


class DownloadError(OSError):
    """A download that failed: what came, what was expected, and what is kept."""


class Unavailable(DownloadError):
    """A file that cannot be had from this address: it may be elsewhere, or for a person only."""


class Dropped(Exception):
    """A fault that another attempt may mend."""


def check_scheme(url: str) -> None:
    """Raise unless the address is one of a web server."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise DownloadError(f"expected an address that begins with http:// or https://, got {url}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def answer(part: PartialFile, url: str) -> Any:
    """Return the open answer to a request for the bytes after those of the part."""
    request = urllib.request.Request(
        url, headers={"User-Agent": "shoal", "Accept-Encoding": "identity"}
    )
    if part.resumable:
        request.add_header("Range", f"bytes={part.size}-")
        if part.origin is not None and part.origin.validator:
            request.add_header("If-Range", part.origin.validator)
    try:
        return urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        told = f"the server answered {error.code} {error.msg}"
        if error.code == 416:
            # It has no bytes after those that are there, so it is not the file they are of.
            part.discard()
        elif error.code not in PASSING:
            raise Unavailable(f"{url}: {told}") from error
        raise Dropped(told) from error
    except urllib.error.URLError as error:
        reason = error.reason
        away = isinstance(reason, socket.gaierror) or getattr(reason, "errno", 0) in UNREACHABLE
        if away and not part.grown:
            host = urlsplit(url).hostname
            raise Unavailable(f"cannot reach {host} ({reason}): is there a network?") from error
        raise Dropped(f"no connection ({reason})") from error
    except DownloadError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise Dropped(f"no connection ({str(error) or type(error).__name__})") from error


def begin(part: PartialFile, url: str, response: Any) -> int | None:
    """Return how many bytes the whole file has; empty the part where the answer starts anew."""
    headers = response.headers
    if response.status != 206:
        length = headers["Content-Length"]
        total = int(length) if length and length.isdecimal() else None
        part.restart(Origin(url, headers["ETag"], headers["Last-Modified"], total))
        return total
    match = RANGE.fullmatch(headers["Content-Range"] or "")
    total = int(match[2]) if match and match[2] != "*" else None
    if match is None or int(match[1]) != part.size or not _same(part.origin, headers, total):
        part.discard()
        raise Dropped("the server's file is another one than before")
    return total


def _same(origin: Origin | None, headers: Any, total: int | None) -> bool:
    """Return whether these are bytes of the same file, also where ``If-Range`` was ignored."""
    return (
        origin is not None
        and origin.length in (None, total)
        and headers["ETag"] in (None, origin.etag)
        and headers["Last-Modified"] in (None, origin.modified)
    )


def read(response: Any, size: int) -> bytes:
    """Return what there is by now of the answer, at most ``size`` bytes; none at its end."""
    try:
        chunk: bytes = response.read1(size)
    except (OSError, http.client.HTTPException) as error:
        raise Dropped(f"the connection broke ({str(error) or type(error).__name__})") from error
    return chunk


def refuse_page(part: PartialFile, url: str, response: Any, chunk: bytes) -> None:
    """Raise where a web page comes: of an archive that asks to be confirmed, or is gone."""
    kind = response.headers.get_content_type()
    if kind == "text/html" or chunk.lstrip().lower().startswith(PAGES):
        part.discard()
        raise Unavailable(
            f"{url} is a web page, expected {part.target.name}; open it in a browser to see why"
        )


# Called with how many bytes are there, of how many (None where the server does not say).
DownloadProgress = Callable[[int, int | None], object]
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
    progress: DownloadProgress | None = None,
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
    lock = path.with_name(f"{path.name}.lock")
    busy = DownloadError(f"another process is downloading {path}; wait until it is done")
    with hold_lock(lock, busy, remove=True):
        if path.exists():
            sums = sums_of(path)
            if wrong := sums.wrong(sha256, md5):
                raise DownloadError(f"{path} has the {wrong}; remove it to have it fetched again")
            return sums.sha256
        part = PartialFile(path, url, sum_known=bool(sha256 or md5))
        try:
            _persist(part, url, size_limit, progress, tell, wait)
            if wrong := part.sums.wrong(sha256, md5):
                part.discard()
                raise DownloadError(f"{url} has the {wrong}; what came was deleted")
            part.finish()
            return part.sums.sha256
        finally:
            part.close()


def _persist(
    part: PartialFile,
    url: str,
    limit: int,
    progress: DownloadProgress | None,
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


def _kept(part: PartialFile) -> str:
    if part.size == 0:
        return ""
    return f"; {part.size:,} bytes are kept in {part.path}, and the same command goes on from there"


def _stream(part: PartialFile, url: str, limit: int, progress: DownloadProgress | None) -> None:
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
