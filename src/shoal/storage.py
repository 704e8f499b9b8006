"""Storage: atomic files, JSON and file locks; free of torch."""

import io
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .files import JSON_BYTES, open_file, open_to_append, read_bytes, read_text

# Seconds between two attempts to take a lock.
RETRY_EVERY = 0.01
# The file systems of this machine, and the options of NFS by which locks hold on one machine only.
MOUNTS = Path("/proc/self/mountinfo")
LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock"))
# A child that tries a lock which its parent holds; it must not succeed.
CANARY = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "rb"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""
CANARY_SECONDS = 30.0


class FolderLost(OSError):
    """A folder that this process has locked was deleted or moved, or is another's as well."""


def cache_root() -> Path:
    """Return the folder of all caches of decoded images: $SHOAL_CACHE, or ~/.cache/shoal."""
    return Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal"))


def write_aside(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Give ``path`` the bytes that ``write`` produces, all of them or none.

    They are written to a file next to it, synced, and moved into place. Raise ``FolderLost`` if
    this process has locked a folder around it, which is not there any more.
    """
    _check_held(path)
    make_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it, or another path")
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        move(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        _check_held(path)  # a folder that is gone is not a full disk
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # the error of a full disk names no file
        raise


def move(source: Path, target: Path) -> None:
    """Move a file or folder into place, as ``move_all`` does."""
    move_all([(source, target)])


def move_all(moves: Iterable[tuple[Path, Path]]) -> None:
    """Move files or folders into place, and sync the folders that they come to.

    Without that, the power could fail and undo a move that others have seen.
    """
    folders = dict[Path, None]()
    for source, target in moves:
        os.replace(source, target)
        folders[target.parent] = None
    for folder in folders:
        _sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they exist; one that is locked is not made anew."""
    if folder.is_dir():
        return
    _check_held(folder)
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system, and not Windows, syncs folders
        handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_asides(folder: Path) -> None:
    """Delete the files that killed processes left half written.

    Call it only when no other process writes to the folder.
    """
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.\d+\.[0-9a-f]{8}", path.name):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    # File names need not be UTF-8. Escaped, they are still JSON and read back the same.
    write_aside(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def print_aside(path: Path, show: Callable[[IO[str]], object]) -> None:
    """Give ``path`` the UTF-8 text that ``show`` prints, all of it or nothing.

    The text can be longer than the memory.
    """

    def write(file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
        show(text)
        text.detach()

    write_aside(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Add to an OSError raised inside which file it concerns, and that a repeat resumes."""
    try:
        yield
    except FolderLost:
        raise
    except OSError as error:
        raise OSError(
            f"{error.filename or path} cannot be written: {error.strerror or error}; make room or "
            "make the folder writable, then run the same command again to resume"
        ) from error


@dataclass(frozen=True, eq=False)
class _Held:
    """A lock of this process: its open file, and what it wrote into it."""

    path: Path
    file: IO[bytes]
    mark: bytes

    def check(self) -> None:
        """Raise if the file is not at its path any more, or another process has taken it, too."""
        try:
            there = _is_at(self.file, self.path)
            mark = read_bytes(self.path, len(self.mark) + 256) if there else b""
        except (OSError, ValueError):
            there, mark = False, b""
        folder = self.path.parent
        if not there:
            raise FolderLost(
                f"{folder} was deleted or moved while this process was using it; run the same "
                "command again, which begins it anew"
            )
        if mark != self.mark:
            other = mark.decode(errors="replace").strip()
            raise FolderLost(
                f"{folder} is used by two processes at once, by this one and {other}: the locks of "
                "its file system do not lock; run one of them alone, or choose another folder"
            )

    def free(self) -> None:
        """Empty the file, unless it is another's by now."""
        with suppress(OSError):
            if os.pread(self.file.fileno(), len(self.mark) + 1, 0) == self.mark:
                self.file.truncate(0)


# The locks that this process holds.
_HELD: list[_Held] = []


def _check_held(path: Path) -> None:
    """Raise if the path is below a folder that this process has locked, and has lost."""
    for held in tuple(_HELD):
        if path.is_relative_to(held.path.parent):
            held.check()


@contextmanager
def hold_lock(
    path: Path, busy: Exception | None = None, wait: float = 0.0, remove: bool = False
) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path`` inside; a killed process holds none.

    Inside, ``write_aside`` raises ``FolderLost`` if the folder of the lock is gone, or if another
    process has taken the lock as well; systems without ``flock`` do not let it go.

    Args:
        busy: raised if another process holds the lock for ``wait`` seconds; without it, wait for
            as long as that takes.
        remove: delete the file at the end; only with ``busy``.
    """
    with explain_write_errors(path):
        make_folder(path.parent)
    hold = _hold_flock if has_flock() else _hold_filelock
    with hold(path, busy, wait, remove):
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock on a file at this moment."""
    if not path.exists():
        return False
    if not has_flock():
        try:
            with _hold_filelock(path, _Busy(), 0.0, False):
                return False
        except _Busy:
            return True
    import fcntl

    try:
        # Reading is enough for a shared lock, and the file can be another user's.
        file = open_file(path, JSON_BYTES)
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# The file systems whose locks were tried.
_TRIED: set[int] = set()


def check_lock(path: Path) -> None:
    """Raise if another process can take the lock that this one holds; each disk is tried once.

    Some file systems accept every lock and keep none. Warn if locks hold on this machine alone.
    """
    device = path.stat().st_dev
    if device in _TRIED or not has_flock():
        return
    if options := _mount_options(device) & LOCAL_LOCKS:
        warnings.warn(
            f"locks in {path.parent} hold on this machine alone (it is mounted with "
            f"{', '.join(sorted(options))}): do not train in it from two machines at once",
            stacklevel=2,
        )
    command = [sys.executable, "-I", "-S", "-c", CANARY, str(path)]
    with suppress(subprocess.TimeoutExpired):
        found = subprocess.run(command, capture_output=True, timeout=CANARY_SECONDS, check=False)
        if found.returncode == 0:
            raise OSError(
                f"locks in {path.parent} do not lock: a second process could take {path.name} and "
                "train the same run; choose a folder on another file system"
            )
    _TRIED.add(device)


def _mount_options(device: int) -> set[str]:
    """Return the options with which the file system of this device is mounted over a network."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError, ValueError):
        for line in read_text(MOUNTS, JSON_BYTES).splitlines():
            mount, _, system = line.partition(" - ")
            kind, _, options = system.split(" ")
            if mount.split(" ")[2] == number and kind.startswith("nfs"):
                return {*mount.split(" ")[5].split(","), *options.split(",")}
    return set()


class _Busy(Exception):
    """Another process holds the lock."""


def has_flock() -> bool:
    """Return whether this system has ``flock``, as Linux and macOS do and Windows does not."""
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


@contextmanager
def _hold_flock(path: Path, busy: Exception | None, wait: float, remove: bool) -> Iterator[None]:
    with explain_write_errors(path):
        file = open_to_append(path)
    with file:
        _take_flock(file, path, busy, wait)
        # The previous holder can have removed the file after it was opened here.
        if remove and busy is not None and not _is_at(file, path):
            raise busy
        held = _Held(path, file, _write_mark(file))
        _HELD.append(held)
        try:
            yield
        finally:
            _HELD.remove(held)
            held.free()
            if remove:
                path.unlink(missing_ok=True)


def _write_mark(file: IO[bytes]) -> bytes:
    """Write who holds the lock into its file, and return that; nothing if the disk is full."""
    mark = f"process {os.getpid()} of {platform.node()} ({secrets.token_hex(8)})\n".encode()
    try:
        file.truncate(0)
        file.write(mark)
    except OSError:
        return b""
    return mark


def _take_flock(file: IO[bytes], path: Path, busy: Exception | None, wait: float) -> None:
    import fcntl

    begin = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            return
        except BlockingIOError:
            if busy is not None and time.monotonic() - begin >= wait:
                raise busy from None
        except OSError as error:
            raise OSError(
                f"{path} cannot be locked: {error.strerror or error}; choose a folder on a file "
                "system with locks (flock)"
            ) from error
        time.sleep(RETRY_EVERY)


@contextmanager
def _hold_filelock(path: Path, busy: Exception | None, wait: float, remove: bool) -> Iterator[None]:
    """Hold the lock of a package that torch depends on and that Windows has, too."""
    from filelock import FileLock, Timeout

    lock, taken = FileLock(path, timeout=-1 if busy is None else wait), True
    with explain_write_errors(path):
        try:
            lock.acquire(poll_interval=RETRY_EVERY)
        except Timeout:
            taken = False
    if busy is not None and not taken:
        raise busy
    try:
        yield
    finally:
        lock.release()
        if remove:
            with suppress(OSError):  # gone already, or the next holder has it open
                path.unlink()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
