"""Tensor files: checkpoints and weights, written whole or not at all, read without running code."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .documents import json_object
from .files import TENSOR_BYTES, UnfitFile, open_file, read_bytes
from .storage import write_aside

# The most bytes of the header of a safetensors file, as in its own library.
HEADER = 100_000_000


def save_tensors(path: Path, value: dict[str, Any]) -> None:
    """Write tensors and plain values, to be read by ``load_tensors``."""
    write_aside(path, lambda file: torch.save(value, file))


def load_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors and values that ``save_tensors`` wrote, without unpickling objects."""
    try:
        with open_file(path, TENSOR_BYTES) as file:
            value = torch.load(file, map_location="cpu", weights_only=True)
    except UnfitFile:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or not a checkpoint of shoal's; delete it to start again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, a dict was expected")
    return value


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, in the format that other tools read."""
    from safetensors.torch import save

    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_aside(path, lambda file: file.write(content))


def read_safetensors(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of such a file, on the host.

    Args:
        sha256: that the file must have.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    check_tensors(path, sha256)
    try:
        found: dict[str, Tensor] = load(read_bytes(path, TENSOR_BYTES))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or not a safetensors file ({error})") from error
    return found


def check_tensors(path: Path, sha256: str | None = None) -> None:
    """Raise unless a file is as long as its tensors are, and has this hash, if one is given.

    A damaged file can be larger than memory, so it is not read as a whole before.
    """
    with open_file(path, TENSOR_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        header = json_object(file.read(length)) if 2 <= length <= min(HEADER, size - 8) else None
        try:
            tensors = [one for name, one in (header or {}).items() if name != "__metadata__"]
            end = max((one["data_offsets"][1] for one in tensors), default=0)
            whole = header is not None and 8 + length + end == size
        except (LookupError, TypeError):
            whole = False
        if not whole:
            raise ValueError(f"{path} is damaged, or not a safetensors file")
        file.seek(0)
        if sha256 is not None and hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError(f"{path} is damaged, or another file than its card describes")
