"""Downloads from a server that breaks off, changes, lies and refuses."""

import errno
import fcntl
import functools
import hashlib
import json
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.datasets import download as answers
from shoal.datasets.download import ATTEMPTS, DownloadError, Unavailable, download
from shoal.datasets.partial_file import PartialFile
from tests.datasets.server import (
    Handler,
    Served,
    chunked,
    drop,
    redirect,
    serve,
    serving,
    slowly,
    status,
    without_ranges,
)

# Several chunks, none of them a whole one.
CONTENT = random.Random(0).randbytes(700_001)
OTHER = random.Random(1).randbytes(700_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()

quick = functools.partial(download, wait=0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in" / "file.zip"


def left(path: Path) -> list[str]:
    """Return the files in the folder of the download."""
    return sorted(entry.name for entry in path.parent.iterdir())


def ranges(served: Served) -> list[str | None]:
    return [headers.get("Range") for headers in served.asked]


def half_way(served: Served, path: Path, sent: int = 400_000) -> None:
    """Leave a part, as a process that was ended leaves it."""
    served.faults = [drop(sent), *[status(503)] * ATTEMPTS]
    with pytest.raises(Unavailable, match=f"{sent:,} bytes are kept in .*part, and the same"):
        quick(served.url, path)
    assert left(path) == ["file.zip.part", "file.zip.part.json"]
    assert path.with_name("file.zip.part").read_bytes() == CONTENT[:sent]
    served.faults = []
    served.asked.clear()


def test_a_file_is_fetched_checked_and_put_in_place(path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    with serving(CONTENT) as served:
        found = quick(served.url, path, SHA256, MD5, progress=lambda *call: calls.append(call))
    assert found == SHA256
    assert path.read_bytes() == CONTENT
    assert left(path) == ["file.zip"]
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert served.asked[0]["User-Agent"] == "shoal"


def test_capital_letters_are_the_same_sum(path: Path) -> None:
    with serving(CONTENT) as served:
        assert quick(served.url, path, SHA256.upper(), MD5.upper()) == SHA256


def test_a_dropped_connection_is_resumed_where_it_broke(path: Path) -> None:
    told: list[str] = []
    with serving(CONTENT, faults=[drop(300_000), drop(5)]) as served:
        assert quick(served.url, path, note=told.append) == SHA256
    assert path.read_bytes() == CONTENT
    assert ranges(served) == [None, "bytes=300000-", "bytes=300005-"]
    assert [headers.get("If-Range") for headers in served.asked] == [None, '"first"', '"first"']
    assert told[0] == (
        "file.zip: the connection ended after 300,000 of 700,001 bytes; trying again"
    )


def test_many_drops_are_no_failure_while_it_grows(path: Path) -> None:
    with serving(CONTENT, faults=[drop(50_000)] * 12) as served:
        assert quick(served.url, path) == SHA256
    assert len(served.asked) == 13


def test_the_next_process_goes_on_and_sums_the_whole(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        assert quick(served.url, path, SHA256, MD5) == SHA256
    assert ranges(served) == ["bytes=400000-"]
    assert left(path) == ["file.zip"]


def test_the_date_of_the_last_change_serves_where_there_is_no_strong_etag(path: Path) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    with serving(CONTENT, etag='W/"weak"', modified=date) as served:
        half_way(served, path)
        assert quick(served.url, path) == SHA256
    assert served.asked[0]["If-Range"] == date


def test_a_file_that_changed_is_not_glued_together(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        served.content, served.etag = OTHER, '"second"'
        quick(served.url, path)
    assert path.read_bytes() == OTHER
    assert ranges(served) == ["bytes=400000-"]  # one request: the server saw If-Range


@pytest.mark.parametrize("etag", ['"second"', '"first"'])
def test_nor_where_the_server_ignores_if_range(path: Path, etag: str) -> None:
    """The new one has another ETag, or only another length."""

    def blind(handler: Handler, served: Served) -> None:
        del handler.headers["If-Range"]
        serve(handler, served)

    with serving(CONTENT) as served:
        half_way(served, path)
        served.content = OTHER if etag == '"second"' else OTHER + b"more"
        served.etag, served.always = etag, blind
        quick(served.url, path)
    assert path.read_bytes() == served.content
    assert ranges(served) == ["bytes=400000-", None]


def test_without_a_validator_it_starts_again(path: Path) -> None:
    with serving(CONTENT, etag=None, faults=[drop(300_000)] + [status(503)] * ATTEMPTS) as served:
        with pytest.raises(Unavailable):
            quick(served.url, path)
        served.faults, served.content = [], OTHER
        served.asked.clear()
        quick(served.url, path)
    assert ranges(served) == [None]
    assert path.read_bytes() == OTHER


def test_without_a_validator_a_dropped_connection_starts_again_too(path: Path) -> None:
    def change(handler: Handler, served: Served) -> None:
        serve(handler, served, 300_000)
        served.content = OTHER

    with serving(CONTENT, etag=None, faults=[change]) as served:
        quick(served.url, path)
    assert ranges(served) == [None, None]
    assert path.read_bytes() == OTHER


def test_with_a_known_sum_it_goes_on_without_a_validator(path: Path) -> None:
    with serving(CONTENT, etag=None, faults=[drop(300_000)] + [status(503)] * ATTEMPTS) as served:
        with pytest.raises(Unavailable):
            quick(served.url, path, SHA256)
        served.faults = []
        served.asked.clear()
        assert quick(served.url, path, SHA256) == SHA256
    assert ranges(served) == ["bytes=300000-"]


def test_a_part_of_another_address_is_not_taken_up(path: Path) -> None:
    with serving(CONTENT) as served, serving(OTHER) as mirror:
        half_way(served, path)
        quick(mirror.url, path)
    assert ranges(mirror) == [None]
    assert path.read_bytes() == OTHER


@pytest.mark.parametrize("note", ["", "{}", "[1]", '{"url": 5, "colour": 1}'])
def test_a_part_without_a_readable_note_is_not_taken_up(path: Path, note: str) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        path.with_name("file.zip.part.json").write_text(note)
        served.faults = [status(404)]
        with pytest.raises(Unavailable):
            quick(served.url, path)
        assert left(path) == []  # nothing that could be gone on from is kept
        assert quick(served.url, path) == SHA256
    assert ranges(served) == [None, None]


def test_a_server_without_ranges_starts_again(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        served.always = without_ranges()
        assert quick(served.url, path) == SHA256
    assert path.read_bytes() == CONTENT


def test_a_server_that_never_gets_further_is_given_up(path: Path) -> None:
    with (
        serving(CONTENT, always=without_ranges(sent=1000)) as served,
        pytest.raises(Unavailable, match=r"ended after 1,000 of 700,001 bytes; 1,000 bytes"),
    ):
        quick(served.url, path)
    assert len(served.asked) == ATTEMPTS
    assert not path.exists()


def test_a_promise_that_is_too_short_is_kept_to(path: Path) -> None:
    """Bytes after the promised length are not part of the file."""

    def liar(handler: Handler, served: Served) -> None:
        handler.answer(CONTENT + b"surplus", length=len(CONTENT))

    with serving(always=liar) as served:
        assert quick(served.url, path) == SHA256


def test_bytes_from_elsewhere_in_the_file_are_not_taken(path: Path) -> None:
    def wrong(handler: Handler, served: Served) -> None:
        span = f"bytes 399999-{len(CONTENT) - 1}/{len(CONTENT)}"
        handler.answer(CONTENT[399_999:], 206, Content_Range=span, ETag=served.etag)

    with serving(CONTENT) as served:
        half_way(served, path)
        served.faults = [wrong]
        assert quick(served.url, path) == SHA256
    assert ranges(served) == ["bytes=400000-", None]


def test_a_rest_without_a_length_ends_where_the_file_does(path: Path) -> None:
    def endless(handler: Handler, served: Served) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 400000-{len(CONTENT) - 1}/{len(CONTENT)}")
        handler.end_headers()
        handler.wfile.write(CONTENT[400_000:] + b"surplus")

    with serving(CONTENT) as served:
        half_way(served, path)
        served.faults = [endless]
        assert quick(served.url, path) == SHA256
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_request(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        path.with_name("file.zip.part").write_bytes(CONTENT)
        assert quick(served.url, path) == SHA256
    assert served.asked == []


def test_a_part_that_is_too_long_starts_again(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        path.with_name("file.zip.part").write_bytes(CONTENT + b"more")
        assert quick(served.url, path) == SHA256
    assert ranges(served) == ["bytes=700005-", None]


def test_chunks_without_a_length(path: Path) -> None:
    totals: list[int | None] = []
    with serving(CONTENT, faults=[chunked(400_000, whole=False)]) as served:
        quick(served.url, path, progress=lambda done, total: totals.append(total))
    assert ranges(served) == [None, "bytes=400000-"]
    assert path.read_bytes() == CONTENT
    assert totals[0] is None and totals[-1] == len(CONTENT)
    path.unlink()
    with serving(CONTENT, always=chunked(len(CONTENT))) as served:
        assert quick(served.url, path) == SHA256


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_passing_fault_passes(path: Path, code: int) -> None:
    with serving(CONTENT, faults=[status(code), status(code)]) as served:
        assert quick(served.url, path) == SHA256
    assert len(served.asked) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_refusal_is_final(path: Path, code: int) -> None:
    with (
        serving(CONTENT, always=status(code)) as served,
        pytest.raises(Unavailable, match=f"file.zip: the server answered {code} "),
    ):
        quick(served.url, path)
    assert len(served.asked) == 1
    assert left(path) == []


def test_five_hundreds_without_end_are_final(path: Path) -> None:
    with (
        serving(CONTENT, always=status(500)) as served,
        pytest.raises(Unavailable, match="the server answered 500"),
    ):
        quick(served.url, path)
    assert len(served.asked) == ATTEMPTS
    assert left(path) == []


@pytest.mark.parametrize("sums", [{"sha256": "0" * 64}, {"md5": "0" * 32}])
def test_a_wrong_sum_leaves_nothing(path: Path, sums: dict[str, str]) -> None:
    with (
        serving(CONTENT) as served,
        pytest.raises(DownloadError) as caught,
    ):
        quick(served.url, path, **sums)
    expected, found = next(iter(sums.values())), SHA256 if "sha256" in sums else MD5
    assert f"sum {found}, expected {expected}; the download was deleted" in str(caught.value)
    assert left(path) == []


def test_a_wrong_beginning_is_found_by_the_sum(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
        part = path.with_name("file.zip.part")
        part.write_bytes(b"x" + part.read_bytes()[1:])
        with pytest.raises(DownloadError, match="the download was deleted"):
            quick(served.url, path, SHA256)
    assert left(path) == []


def test_a_file_that_is_there_is_checked_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    with serving(OTHER) as served:
        assert quick(served.url, path, SHA256) == SHA256
        with pytest.raises(DownloadError, match="remove it to download it again"):
            quick(served.url, path, "0" * 64)
    assert served.asked == []
    assert path.read_bytes() == CONTENT
    assert left(path) == ["file.zip"]


@pytest.mark.parametrize("chunks", [False, True])
def test_a_size_over_the_limit_is_refused(path: Path, chunks: bool) -> None:
    """According to its length header, and without one according to the bytes that come."""
    with serving(CONTENT, always=chunked(len(CONTENT)) if chunks else None) as served:
        with pytest.raises(DownloadError, match="the limit of 700,000"):
            quick(served.url, path, size_limit=700_000)
        assert left(path) == []
        quick(served.url, path, size_limit=700_001)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/html; charset=utf-8", b"anything"),
        ("application/octet-stream", b"\n <!DOCTYPE html><html>Confirm</html>"),
        ("application/octet-stream", b"<HTML><body>"),
    ],
)
def test_a_web_page_is_no_archive(path: Path, kind: str, content: bytes) -> None:
    with (
        serving(content, kind=kind) as served,
        pytest.raises(Unavailable, match=r"is a web page, expected file\.zip"),
    ):
        quick(served.url, path)
    assert left(path) == []


def test_a_redirection_is_followed_with_the_range(path: Path) -> None:
    with serving(CONTENT) as served, serving() as door:
        door.always = redirect(served.url)
        served.faults = [drop(100)]
        assert quick(door.url, path) == SHA256
    assert ranges(served) == [None, "bytes=100-"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://localhost/x"])
def test_a_redirection_to_elsewhere_is_refused(path: Path, target: str) -> None:
    with (
        serving(always=redirect(target)) as served,
        pytest.raises(DownloadError, match=r"not allowed|expected an address"),
    ):
        quick(served.url, path)
    assert len(served.asked) == 1
    assert left(path) == []


def test_a_redirection_in_a_circle_is_refused(path: Path) -> None:
    with serving() as served:
        served.always = redirect(served.url)
        with pytest.raises(Unavailable, match="302"):
            quick(served.url, path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "data:,x", "/etc/passwd", ""])
def test_only_addresses_of_web_servers(path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="begins with http:// or https://, got"):
        quick(url, path)
    assert not path.parent.exists()


def test_no_network(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    with pytest.raises(Unavailable, match=r"cannot reach nowhere\.example \(.*is there a network"):
        download("http://nowhere.example/file.zip", path)  # at once: no wait to wait for
    assert left(path) == []


def test_a_refused_connection_is_tried_again(path: Path) -> None:
    with serving() as served:
        pass
    told: list[str] = []
    with pytest.raises(Unavailable, match="no connection"):
        quick(served.url, path, note=told.append)
    assert len(told) == ATTEMPTS - 1


def test_a_silent_server_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "TIMEOUT", 0.05)
    with serving(CONTENT, faults=[slowly(0.3)]) as served:
        assert quick(served.url, path) == SHA256
    assert ranges(served) == [None, "bytes=350000-"]


def test_a_slow_server_is_waited_for(path: Path) -> None:
    with serving(CONTENT, faults=[slowly(0.1)]) as served:
        assert quick(served.url, path) == SHA256
    assert len(served.asked) == 1


class Disk:
    """A file on a disk with so much room, and which takes so many bytes in one write."""

    def __init__(self, file: Any, room: int, at_once: int) -> None:
        self.file, self.room, self.at_once = file, room, at_once

    def write(self, chunk: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self.file.write(chunk[: min(self.room, self.at_once)])
        self.room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def on_a_disk(monkeypatch: pytest.MonkeyPatch, room: int, at_once: int) -> None:
    begin = PartialFile.__init__

    def begin_there(self: PartialFile, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._file = Disk(self._file, room, at_once)  # type: ignore[assignment]

    monkeypatch.setattr(PartialFile, "__init__", begin_there)


def test_a_full_disk_keeps_what_fits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(CONTENT) as served:
        with monkeypatch.context() as patch:
            on_a_disk(patch, 300_000, 1_000_000)
            with pytest.raises(DownloadError, match=r"no room for file\.zip .*300,000 bytes are"):
                quick(served.url, path)
        assert path.with_name("file.zip.part").read_bytes() == CONTENT[:300_000]
        assert quick(served.url, path) == SHA256
    assert ranges(served) == [None, "bytes=300000-"]


def test_a_disk_that_takes_a_little_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_disk(monkeypatch, 1_000_000, 999)
    with serving(CONTENT) as served:
        assert quick(served.url, path, SHA256, MD5) == SHA256
    assert path.read_bytes() == CONTENT


def test_a_second_download_of_the_same_file_is_refused(path: Path) -> None:
    hold, running = threading.Event(), threading.Event()

    def held(handler: Handler, served: Served) -> None:
        running.set()
        hold.wait(10)
        serve(handler, served)

    with serving(CONTENT, faults=[held]) as served:
        first = threading.Thread(target=quick, args=(served.url, path))
        first.start()
        running.wait(10)
        with pytest.raises(DownloadError, match=r"another process is downloading .*file\.zip"):
            quick(served.url, path)
        assert len(served.asked) == 1
        hold.set()
        first.join()
    assert path.read_bytes() == CONTENT
    assert left(path) == ["file.zip"]


def test_a_lock_that_was_removed_meanwhile_is_no_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder finished between our opening and our locking of it."""
    lock = fcntl.flock

    def late(file: object, how: int) -> None:
        path.with_name("file.zip.lock").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with serving(CONTENT) as served, pytest.raises(DownloadError, match="another process"):
        quick(served.url, path)


def test_the_note_says_which_file_it_is(path: Path) -> None:
    with serving(CONTENT) as served:
        half_way(served, path)
    note = json.loads(path.with_name("file.zip.part.json").read_text())
    assert note == {
        "url": served.url,
        "etag": '"first"',
        "modified": None,
        "length": len(CONTENT),
    }
