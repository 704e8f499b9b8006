"""Tensor files: checkpoints and weights, written whole or not at all, read without running code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import TENSOR_BYTES, UnfitFile, open_file, read_bytes
from .storage import write_aside


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


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of such a file, on the host."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found: dict[str, Tensor] = load(read_bytes(path, TENSOR_BYTES))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or not a safetensors file ({error})") from error
    return found
