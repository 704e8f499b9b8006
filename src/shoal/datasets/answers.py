"""What a server answers to a request for the bytes that are missing, and what is wrong with it."""

import errno
import http.client
import re
import socket
import urllib.error
import urllib.request
from typing import IO, Any
from urllib.parse import urlsplit

from .part import Origin, Part

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


def answer(part: Part, url: str) -> Any:
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


def begin(part: Part, url: str, response: Any) -> int | None:
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


def refuse_page(part: Part, url: str, response: Any, chunk: bytes) -> None:
    """Raise where a web page comes: of an archive that asks to be confirmed, or is gone."""
    kind = response.headers.get_content_type()
    if kind == "text/html" or chunk.lstrip().lower().startswith(PAGES):
        part.discard()
        raise Unavailable(
            f"{url} is a web page, expected {part.target.name}; open it in a browser to see why"
        )
