"""Archives, unpacked with care: nothing outside the target, no links, all files or none."""

import errno
import os
import re
import secrets
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..files import ARCHIVE_BYTES, CHUNK, open_file
from ..storage import make_folder, move

MEMBERS = 2_000_000
# The most parts of a member's path, and its bytes: Python's own tools recurse into folders.
DEPTH, LONGEST_PATH = 64, 1024
# Images hardly compress: an archive that grows more than this holds something else.
GROWTH = 8
ALWAYS_ALLOWED = 2**30
# Headers of tar that Python reads into memory as a whole.
READ_WHOLE = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
LONGEST_HEADER = 2**20
# The fields of a tar header that count: Python would take 1_000, +7 or a cut name as well.
NAME, SIZE, MAGIC, PREFIX = slice(0, 100), slice(124, 136), slice(257, 263), slice(345, 500)
OCTAL, DECIMAL = re.compile(rb" *[0-7]*[\0 ]*"), re.compile(r"\d{1,18}", re.ASCII)
BINARY = 0x80  # the first byte of a size that is not octal; 0xff begins a negative one
# Errors of the disk and not of the archive.
DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE),
}
# Python's zipfile takes what it reads of other compressions apart at once: 4 KiB can become a GiB.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Characters of a name in a message.
SHOWN = 200
DRIVE = re.compile(r"[A-Za-z]:")


class Refused(ValueError):
    """An archive that is whole, and holds what is not unpacked."""


class Member(NamedTuple):
    """An entry of an archive: a folder, a file to open, or a fault."""

    name: str
    is_folder: bool
    fault: str | None
    open: Callable[[], Any]


def unpack(
    archive: Path,
    target: Path,
    limit: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Unpack a zip file (stored or deflated) or a tar file (plain, gzip, bzip2 or xz).

    The new folder ``target`` appears when all files are unpacked; after an error nothing is left
    behind.

    Args:
        limit: the most bytes to write; by default eight times the archive's, and at least a GiB.
        progress: called after each member with the bytes of the archive read, and its size.
    """
    if target.exists():
        raise ValueError(f"{target} exists already; move it away to unpack {archive} again")
    size = archive.stat().st_size
    limit = max(GROWTH * size, ALWAYS_ALLOWED) if limit is None else limit
    make_folder(target.parent)
    aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    aside.mkdir()
    try:
        with open_file(archive, ARCHIVE_BYTES) as file:
            _unpack_all(archive, file, aside, limit, progress)
        move(aside, target)
        if progress is not None:
            progress(size, size)
    except BaseException as error:
        shutil.rmtree(aside)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(f"no room in {target.parent} to unpack {archive}: make some") from error
        raise


def _unpack_all(
    archive: Path,
    file: IO[bytes],
    folder: Path,
    limit: int,
    progress: Callable[[int, int], object] | None,
) -> None:
    written, place, size = 0, "at its beginning", archive.stat().st_size
    try:
        # By the first bytes: is_zipfile would also find a zip file at the end of a tar file.
        members = _zip_members(file) if file.read(2) == b"PK" else _tar_members(file, limit)
        for count, member in enumerate(members, 1):
            place = f"at {member.name[:SHOWN]!r}"
            if count > MEMBERS:
                raise Refused(f"{archive} has more than {MEMBERS:,} members")
            written += _write_member(archive, member, folder, limit - written)
            place = f"after {member.name[:SHOWN]!r}"
            if progress is not None:
                progress(file.tell(), size)
    except Refused:
        raise
    except Exception as error:  # a damaged archive raises errors of any kind
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in DISK:
            raise
        reason = str(error) or type(error).__name__
        raise ValueError(
            f"{archive} is damaged {place}, or neither a zip nor a tar file: {reason}"
        ) from error


def _zip_members(file: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            fault = None
            if info.flag_bits & 1:
                fault = "it is encrypted"
            elif info.compress_type not in COMPRESSIONS:
                fault = "it is neither stored nor deflated; pack it again as usual"
            elif "\0" in info.orig_filename:
                fault = "its name has a NUL"
            elif mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                fault = "it is a link or a device"
            yield Member(info.filename, info.is_dir(), fault, partial(archive.open, info))


class _Header(tarfile.TarInfo):
    """A header of tar; tarfile would take a broken or missing one for the end, without an error.

    Every archive has a subclass of its own, with the bytes that GNU's long name of the next member
    must have: tarfile ends it at its first NUL.
    """

    long_name = 0

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        if len(buf) == tarfile.BLOCKSIZE and any(buf):
            _check_fields(bytes(buf))
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the proper end
            raise tarfile.ReadError(str(error)) from error
        if header.type in READ_WHOLE and header.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        if header.type == tarfile.GNUTYPE_LONGNAME:
            cls.long_name = header.size - 1
        return header


def _check_fields(block: bytes) -> None:
    """Raise if the size or the name in a header of tar is not as tar writes them."""
    size, names = block[SIZE], [block[NAME]]
    if not OCTAL.fullmatch(size) and size[0] != BINARY:
        raise tarfile.ReadError(f"a size that is not a number of bytes: {size!r}")
    if block[MAGIC] == b"ustar\0":  # GNU's headers have other fields there
        names.append(block[PREFIX])
    if any(b"\0" in name.rstrip(b"\0") for name in names):
        raise tarfile.ReadError("a name with a NUL in it")


def _tar_fault(info: tarfile.TarInfo) -> str | None:
    """Return why a member of a tar file is not unpacked, or None."""
    if info.issparse() or any(key.startswith("GNU.sparse") for key in info.pax_headers):
        return "it is sparse"
    if not (info.isfile() or info.isdir()):
        return "it is a link or a device"
    if not DECIMAL.fullmatch(info.pax_headers.get("size", "0")) or info.size < 0:
        return "its size is not a number of bytes"
    return None


def _tar_members(file: IO[bytes], limit: int) -> Iterator[Member]:
    file.seek(0)

    class Header(_Header):
        pass

    with tarfile.open(fileobj=file, mode="r:*", tarinfo=Header) as archive:
        for info in archive:
            fault = _tar_fault(info)
            # A folder's name has lost its slash.
            if len(os.fsencode(info.name)) + info.isdir() < Header.long_name:
                fault = "its name has a NUL"
            Header.long_name = 0
            yield Member(info.name, info.isdir(), fault, partial(archive.extractfile, info))
        # To the very end, where a compressed file has its checksum.
        rest = 0
        while archive.fileobj is not None and (chunk := archive.fileobj.read(CHUNK)):
            rest += len(chunk)
            if rest > limit:
                raise tarfile.ReadError(f"more than {limit:,} bytes follow its last member")


def _write_member(archive: Path, member: Member, folder: Path, allowed: int) -> int:
    """Unpack the member, and return its size in bytes: those written, not those promised."""
    fault = member.fault or _name_fault(member.name)
    if fault is not None:
        raise Refused(f"{archive} holds {member.name[:SHOWN]!r}, which is not unpacked: {fault}")
    path = folder.joinpath(*member.name.split("/"))
    try:
        if member.is_folder:
            path.mkdir(parents=True, exist_ok=True)
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused(f"{archive} holds {member.name!r} twice") from error
    written = 0
    with target, member.open() as source:
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > allowed:
                raise Refused(
                    f"{archive} unpacks to more bytes than it should: "
                    f"the limit was reached in {member.name!r}"
                )
            target.write(chunk)
    return written


def _name_fault(name: str) -> str | None:
    """Return why a member of this name cannot be under the target, or None."""
    if name.startswith("/") or DRIVE.match(name):
        return "its path is absolute"
    if ".." in name.split("/"):
        return "its path leads outside"
    if "\\" in name or any(ord(character) < 32 for character in name):
        return "its name has a backslash or control characters"
    if name.count("/") >= DEPTH or len(os.fsencode(name)) > LONGEST_PATH:
        return f"its path has more than {DEPTH} folders, or more than {LONGEST_PATH:,} bytes"
    return None
