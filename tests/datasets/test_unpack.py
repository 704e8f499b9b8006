"""Archives that mean harm, are damaged or are too large: refused by name, with nothing left."""

import bz2
import errno
import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.datasets import unpack as module
from shoal.datasets.unpack import unpack

FILES = {
    "set/one/cat/a.png": b"first",
    "set/one/cat/b.png": random.Random(0).randbytes(600_000),
    "set/two/dog/ä b.png": b"",
}
COMPRESSIONS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def tarred(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            for info in more:
                archive.addfile(info)
        return buffer.getvalue()


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name), content, compression)
        return buffer.getvalue()


def write(folder: Path, content: bytes) -> Path:
    """The name says nothing: an archive is known by its content."""
    path = folder / "archive"
    path.write_bytes(content)
    return path


def refused(folder: Path, content: bytes, limit: int | None = None) -> str:
    """Return the error, after a look that nothing but the archive is left."""
    archive = write(folder, content)
    with pytest.raises(ValueError) as caught:
        unpack(archive, folder / "target", limit)
    assert [path.name for path in folder.iterdir()] == ["archive"]
    assert str(archive) in str(caught.value)
    return str(caught.value)


GOOD: dict[str, Callable[[], bytes]] = {
    "stored.zip": lambda: zipped(FILES, zipfile.ZIP_STORED),
    "deflated.zip": lambda: zipped(FILES),
    **{
        f"plain.tar{suffix}": lambda compress=compress: compress(tarred(FILES))
        for suffix, compress in COMPRESSIONS.items()
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_every_format(tmp_path: Path, name: str) -> None:
    calls: list[tuple[int, int]] = []
    archive = write(tmp_path, GOOD[name]())
    unpack(archive, tmp_path / "new" / "target", progress=lambda *call: calls.append(call))
    target = tmp_path / "new" / "target"
    found = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*.png")}
    assert found == FILES
    assert sorted(p.name for p in tmp_path.rglob("*") if "." in p.name[:1]) == []
    assert len(calls) == len(FILES) + 1
    assert all(0 < done <= size == archive.stat().st_size for done, size in calls)
    assert calls[-1][0] == calls[-1][1]


def test_folders_and_odd_but_harmless_names(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("./set/empty")
    folder.type = tarfile.DIRTYPE
    unpack(write(tmp_path, tarred({"./a//b.png": b"x"}, folder)), tmp_path / "tar")
    assert (tmp_path / "tar" / "a" / "b.png").read_bytes() == b"x"
    assert (tmp_path / "tar" / "set" / "empty").is_dir()
    unpack(write(tmp_path, zipped({"set/": b"", "set/..png": b"x"})), tmp_path / "zip")
    assert (tmp_path / "zip" / "set" / "..png").read_bytes() == b"x"


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(ValueError, match="target exists already; move it away"):
        unpack(write(tmp_path, zipped(FILES)), tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("pack", [tarred, zipped])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/evil", "absolute"),
        ("../evil", "leads outside"),
        ("set/../../evil", "leads outside"),
        ("set/..", "leads outside"),
        ("C:/evil", "absolute"),
        ("c:evil", "absolute"),
        ("..\\evil", "backslash"),
        ("set\\evil", "backslash"),
        ("set/ev\nil", "control characters"),
        ("set/\x1b[2Jevil", "control characters"),
    ],
)
def test_a_name_that_leads_elsewhere(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes], name: str, why: str
) -> None:
    message = refused(tmp_path, pack({"set/good.png": b"x", name: b"evil"}))
    assert repr(name) in message and why in message


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_tar(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("set/link")
    info.type, info.linkname = kind, "../../outside"
    message = refused(tmp_path, tarred({"set/good.png": b"x"}, info))
    assert "'set/link'" in message and "a link or a device" in message


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_in_zip(tmp_path: Path, kind: int) -> None:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            info = zipfile.ZipInfo("set/link")
            info.external_attr = (kind | 0o777) << 16
            archive.writestr(info, "../../outside")
        message = refused(tmp_path, buffer.getvalue())
    assert "'set/link'" in message and "a link or a device" in message


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("pack", [tarred, zipped])
@pytest.mark.parametrize(
    ("first", "second"),
    [("set/a", "set/a"), ("set/a", "set//a"), ("set/a", "set/a/b"), ("set/a/b", "set/a")],
)
def test_a_name_twice(tmp_path: Path, pack: Callable[..., bytes], first: str, second: str) -> None:
    class Twice(dict[str, bytes]):
        def items(self) -> list[tuple[str, bytes]]:  # type: ignore[override]
            return [(first, b"x"), (second, b"y")]

    message = refused(tmp_path, pack(Twice()))
    assert f"holds {second!r} twice" in message


def test_an_encrypted_zip(tmp_path: Path) -> None:
    content = bytearray(zipped({"set/a.png": b"x"}))
    content[6] |= 1  # the flag in the local header, and in the central directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    message = refused(tmp_path, bytes(content))
    assert "'set/a.png'" in message and "encrypted" in message


@pytest.mark.parametrize("name", GOOD)
def test_the_real_bytes_are_counted(tmp_path: Path, name: str) -> None:
    size = sum(map(len, FILES.values()))
    message = refused(tmp_path, GOOD[name](), limit=size - 1)
    assert "the limit was reached in 'set/one/cat/b.png'" in message
    unpack(tmp_path / "archive", tmp_path / "target", limit=size)


def test_a_header_that_promises_less_than_it_holds(tmp_path: Path) -> None:
    """The size in the header is changed from two million to two."""
    bomb = zipped({"set/bomb": bytes(2_000_000)})
    assert len(bomb) < 4000
    lie = bomb.replace((2_000_000).to_bytes(4, "little"), (2).to_bytes(4, "little"))
    archive = write(tmp_path, lie)
    with pytest.raises(ValueError, match=r"set/bomb"):
        unpack(archive, tmp_path / "target", limit=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("pack", [zipped, lambda files: gzip.compress(tarred(files))])
def test_a_bomb_is_stopped_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(module, "ALWAYS_ALLOWED", 1000)
    message = refused(tmp_path, pack({f"set/{k}": bytes(500_000) for k in range(4)}))
    assert "unpacks to more bytes than it should" in message


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_too_many_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(module, "MEMBERS", 3)
    assert "more than 3 members" in refused(tmp_path, pack({f"set/{k}": b"" for k in range(4)}))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
@pytest.mark.parametrize("name", GOOD)
def test_a_truncated_archive(tmp_path: Path, name: str, share: float) -> None:
    content = GOOD[name]()
    assert "is damaged" in refused(tmp_path, content[: int(share * len(content))])


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_a_tar_file_cut_between_its_members(tmp_path: Path, blocks: int) -> None:
    """Python's own reader takes a missing or broken header for the end."""
    whole = tarred({"a": b"x", "b": b"y", "c": b"z"})
    assert "is damaged" in refused(tmp_path, whole[: 512 * blocks])
    broken = bytearray(whole)
    broken[2 * 512 + 148] ^= 1
    assert "is damaged after 'a'" in refused(tmp_path, bytes(broken))


@pytest.mark.parametrize("name", [name for name in GOOD if name != "plain.tar"])
def test_a_changed_byte_is_found_where_there_are_sums(tmp_path: Path, name: str) -> None:
    content = bytearray(GOOD[name]())
    content[len(content) // 2] ^= 0xFF
    assert "is damaged" in refused(tmp_path, bytes(content))


def test_the_sum_at_the_end_of_a_gzip_file_counts(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(tarred(FILES)))
    content[-6] ^= 0xFF
    message = refused(tmp_path, bytes(content))
    assert "is damaged after 'set/two/dog/ä b.png'" in message and "CRC" in message


@pytest.mark.parametrize("content", [b"", b"PK", b"this is no archive", bytes(10)])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    message = refused(tmp_path, content)
    assert "is damaged at its beginning, or neither a zip nor a tar file" in message


def test_a_tar_file_that_ends_in_a_zip_file_is_a_tar_file(tmp_path: Path) -> None:
    unpack(write(tmp_path, tarred({"inner.zip": zipped(FILES)})), tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["inner.zip"]


def test_a_header_of_tar_that_would_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33
    message = refused(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    assert "a header of 8,589,934,592 bytes" in message


def test_long_names_are_no_such_headers(tmp_path: Path) -> None:
    name = f"set/{'a' * 150}/{'b' * 150}.png"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with io.BytesIO() as buffer:
            with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
                archive.addfile(tarfile.TarInfo(name))
            unpack(write(tmp_path, buffer.getvalue()), tmp_path / f"target{form}")
        assert (tmp_path / f"target{form}" / name).is_file()


def test_a_full_disk_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_write_member", full)
    archive = write(tmp_path, zipped(FILES))
    with pytest.raises(OSError, match=f"no room in {tmp_path} to unpack {archive}"):
        unpack(archive, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    archive = write(tmp_path, zipped(FILES))
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "target", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
