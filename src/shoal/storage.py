"""Files that are never half written: made aside, synced and moved into place."""

import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch


def write_aside(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Give ``path`` the bytes that ``write`` produces, all of them or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it, or another one")
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
            error.filename = str(path)  # a full disk does not say which file it was
        raise


def remove_asides(folder: Path) -> None:
    """Delete what killed processes left half written; nobody may be writing to the folder."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.\d+\.[0-9a-f]{8}", path.name):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    # The name of a file need not be UTF-8; so it is still JSON, and the same when read again.
    write_aside(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the JSON of a file; a damaged file is named."""
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); move it away to have it made again"
        ) from error


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Write tensors and plain values, to be read by ``load_tensors``."""
    write_aside(path, lambda file: torch.save(value, file))


def load_tensors(path: Path) -> dict[str, Any]:
    """Return what ``save_tensors`` wrote; nothing is unpickled, and a damaged file is named."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a checkpoint of shoal's; delete it to start again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, a dict was expected")
    return value
