"""Storage: atomic files, JSON, tensors and file locks; free of torch until a tensor is stored."""

import io
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Seconds between two attempts to take a lock.
RETRY_EVERY = 0.01


def cache_root() -> Path:
    """Return the folder of all caches of decoded images: $SHOAL_CACHE, or ~/.cache/shoal."""
    return Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal"))


def write_aside(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Give ``path`` the bytes that ``write`` produces, all of them or none.

    They are written to a file next to it, synced, and moved into place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it, or another path")
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # the error of a full disk names no file
        raise


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


def read_utf8(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text; save it as {path.suffix[1:].upper()} UTF-8 ({error})"
        ) from error


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; the error for a damaged file names it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); move it away and run the command again"
        ) from error


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Write tensors and plain values, to be read by ``load_tensors``."""
    import torch

    write_aside(path, lambda file: torch.save(value, file))


def write_safetensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write tensors by name, in the format that other tools read."""
    from safetensors.torch import save

    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_aside(path, lambda file: file.write(content))


def read_safetensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors of such a file, on the host."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found: dict[str, Tensor] = load(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or not a safetensors file ({error})") from error
    return found


def load_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors and values that ``save_tensors`` wrote, without unpickling objects."""
    import torch

    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a checkpoint of shoal's; delete it to start again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, a dict was expected")
    return value


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Add to an OSError raised inside which file it concerns, and that a repeat resumes."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{error.filename or path} cannot be written: {error.strerror or error}; make room or "
            "make the folder writable, then run the same command again to resume"
        ) from error


@contextmanager
def hold_lock(
    path: Path, busy: Exception | None = None, wait: float = 0.0, remove: bool = False
) -> Iterator[None]:
    """Hold an exclusive lock on the file ``path`` inside; a killed process holds none.

    Args:
        busy: raised if another process holds the lock for ``wait`` seconds; without it, wait for
            as long as that takes.
        remove: delete the file at the end; only with ``busy``.
    """
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        _take_lock(file, path, busy, wait)
        # The previous holder can have removed the file after it was opened here.
        if remove and busy is not None and not _is_at(file, path):
            raise busy
        try:
            yield
        finally:
            if remove:
                path.unlink()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock on a file at this moment."""
    import fcntl

    try:
        # Reading is enough for a shared lock, and the file can be another user's.
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _take_lock(file: IO[str], path: Path, busy: Exception | None, wait: float) -> None:
    import fcntl  # not on Windows, where everything but locks works

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


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
