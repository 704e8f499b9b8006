"""Downloads over HTTP: resumed after interruptions, checked, and in place only when complete."""

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

from ..files import CHUNK
from ..storage import hold_lock
from .partial_file import Origin, PartialFile, file_sums

# Seconds without an answer.
TIMEOUT = 60
# The most bytes of a file.
LIMIT = 64 * 2**30
# Failures in a row, without a byte more than before, after which the download fails.
ATTEMPTS = 5
# Seconds between two attempts, at most.
LONGEST_WAIT = 30.0
# Status codes that another attempt can cure.
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
PAGES = (b"<!doctype html", b"<html")

# Called with the number of bytes so far, and of all bytes (None if the server does not send it).
DownloadProgress = Callable[[int, int | None], object]
# Called with a line for the user.
Note = Callable[[str], object]


class DownloadError(OSError):
    """A failed download: what came, what was expected, and which bytes are kept."""


class Unavailable(DownloadError):
    """A file that cannot be downloaded from this address."""


class ConnectionDropped(Exception):
    """A fault that another attempt can cure."""


def download(
    url: str,
    path: Path,
    sha256: str | None = None,
    md5: str | None = None,
    size_limit: int = LIMIT,
    progress: DownloadProgress | None = None,
    note: Note | None = None,
    wait: float = 1.0,
) -> str:
    """Download ``url`` to ``path`` unless it exists, and return its SHA-256 sum.

    Bytes go to ``path.part`` and are kept when the connection breaks or the process ends. The next
    call resumes there if the server's file is still the same. An existing file is checked and left
    unchanged.

    Args:
        note: called with a line before every further attempt.
        wait: seconds before the second attempt; doubled before each later one.
    """
    check_scheme(url)
    lock = path.with_name(f"{path.name}.lock")
    busy = DownloadError(f"another process is downloading {path}; wait until it is done")
    with hold_lock(lock, busy, remove=True):
        if path.exists():
            sums = file_sums(path)
            if mismatch := sums.mismatch(sha256, md5):
                raise DownloadError(f"{path} has the {mismatch}; remove it to download it again")
            return sums.sha256
        part = PartialFile(path, url, sum_known=bool(sha256 or md5))
        try:
            _download_with_retries(part, url, size_limit, progress, note, wait)
            if mismatch := part.sums.mismatch(sha256, md5):
                part.discard()
                raise DownloadError(f"{url} has the {mismatch}; the download was deleted")
            part.finish()
            return part.sums.sha256
        finally:
            part.close()


def check_scheme(url: str) -> None:
    """Raise unless the address is that of a web server."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise DownloadError(f"expected an address that begins with http:// or https://, got {url}")


def _download_with_retries(
    part: PartialFile,
    url: str,
    limit: int,
    progress: DownloadProgress | None,
    note: Note | None,
    wait: float,
) -> None:
    """Complete the file; try again as long as attempts bring more bytes."""
    failures, furthest = 0, part.size
    while not part.complete:
        try:
            return _download_once(part, url, limit, progress)
        except ConnectionDropped as error:
            failures = 1 if part.size > furthest else failures + 1
            furthest = max(furthest, part.size)
            if failures == ATTEMPTS:
                raise Unavailable(f"{url}: {error}{_resume_hint(part)}") from error
            if note is not None:
                note(f"{part.target.name}: {error}; trying again")
            time.sleep(min(wait * 2 ** (failures - 1), LONGEST_WAIT))
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DownloadError(
                f"no room for {part.target.name} ({error.strerror}): make some{_resume_hint(part)}"
            ) from error


def _resume_hint(part: PartialFile) -> str:
    if part.size == 0:
        return ""
    return f"; {part.size:,} bytes are kept in {part.path}, and the same command resumes there"


def _download_once(
    part: PartialFile, url: str, limit: int, progress: DownloadProgress | None
) -> None:
    """Add the bytes of one response to the file; raise if they do not complete it."""
    with _open_response(part, url) as response:
        total = _match_response(part, url, response)
        if total is not None and total > limit:
            part.discard()
            raise DownloadError(f"{url} has {total:,} bytes, more than the limit of {limit:,}")
        while total is None or part.size < total:
            chunk = _read_chunk(response, CHUNK if total is None else min(CHUNK, total - part.size))
            if not chunk:
                break
            if part.size == 0:
                _refuse_page(part, url, response, chunk)
            if part.size + len(chunk) > limit:
                part.discard()
                raise DownloadError(f"{url} has more bytes than the limit of {limit:,}")
            part.write(chunk)
            if progress is not None:
                progress(part.size, total)
    if total is not None and part.size < total:
        raise ConnectionDropped(f"the connection ended after {part.size:,} of {total:,} bytes")


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


def _open_response(part: PartialFile, url: str) -> Any:
    """Request the bytes that follow those of the file, and return the open response."""
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
        answer = f"the server answered {error.code} {error.msg}"
        if error.code == 416:
            # The server's file has no such bytes, so the existing ones are of another file.
            part.discard()
        elif error.code not in TRANSIENT:
            raise Unavailable(f"{url}: {answer}") from error
        raise ConnectionDropped(answer) from error
    except urllib.error.URLError as error:
        reason = error.reason
        away = isinstance(reason, socket.gaierror) or getattr(reason, "errno", 0) in UNREACHABLE
        if away and not part.has_grown:
            host = urlsplit(url).hostname
            raise Unavailable(f"cannot reach {host} ({reason}): is there a network?") from error
        raise ConnectionDropped(f"no connection ({reason})") from error
    except DownloadError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionDropped(f"no connection ({str(error) or type(error).__name__})") from error


def _match_response(part: PartialFile, url: str, response: Any) -> int | None:
    """Return the size of the whole file; empty the partial file if the response starts over."""
    headers = response.headers
    if response.status != 206:
        length = headers["Content-Length"] or ""
        total = int(length) if re.fullmatch(r"\d{1,18}", length, re.ASCII) else None
        part.restart(Origin(url, headers["ETag"], headers["Last-Modified"], total))
        return total
    match = RANGE.fullmatch(headers["Content-Range"] or "")
    total = int(match[2]) if match and match[2] != "*" else None
    if match is None or int(match[1]) != part.size or not _is_same(part.origin, headers, total):
        part.discard()
        raise ConnectionDropped("the server's file has changed")
    return total


def _is_same(origin: Origin | None, headers: Any, total: int | None) -> bool:
    """Return whether a response is of the same file, also if ``If-Range`` was ignored."""
    return (
        origin is not None
        and origin.length in (None, total)
        and headers["ETag"] in (None, origin.etag)
        and headers["Last-Modified"] in (None, origin.modified)
    )


def _read_chunk(response: Any, size: int) -> bytes:
    """Return the bytes that have arrived, at most ``size``; none at the end of the response."""
    try:
        chunk: bytes = response.read1(size)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ConnectionDropped(f"the connection broke ({reason})") from error
    return chunk


def _refuse_page(part: PartialFile, url: str, response: Any, chunk: bytes) -> None:
    """Raise if a web page comes: the archive needs a confirmation, or is gone."""
    kind = response.headers.get_content_type()
    if kind == "text/html" or chunk.lstrip().lower().startswith(PAGES):
        part.discard()
        raise Unavailable(
            f"{url} is a web page, expected {part.target.name}; open it in a browser to see why"
        )
