"""Precision: float32 statistics, exact products, and the digits that matrix products keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PRECISE = (torch.float32, torch.float64)


def precise(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in the precision of statistics: float64 stays, the rest is float32."""
    if not tensor.is_floating_point() or tensor.dtype in PRECISE:
        return tensor
    return tensor.float()


def dense(gradient: Tensor) -> Tensor:
    """Return a dense gradient: that of an embedding can be sparse (``sparse=True``)."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def products(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b of many matrices ``[m, i, k], [m, k, j]`` in the precision of statistics.

    Products of bf16 numbers are exact in float32, so only their sum rounds.
    """
    if a.dtype in PRECISE:
        return torch.bmm(a, b)
    if a.device.type != "cuda":
        return torch.bmm(a.float(), b.float())
    found: Tensor = torch.bmm(a, b, out_dtype=torch.float32)
    return found


def rounding(like: Tensor) -> str | None:
    """Return what products of such weights round their factors to; None if they do not."""
    if like.dtype not in PRECISE or torch.is_autocast_enabled(like.device.type):
        return "half"
    if like.dtype == torch.float64:
        return None
    if like.device.type == "cpu":  # "high" does not change CPU products
        return "half" if _matmul_precision() == "medium" else None
    return "tf32" if _matmul_precision() != "highest" or _cudnn_rounds() else None


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the newer attributes, which the call rejects
        backends: Any = torch.backends
        set_to = {backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision}
        return "medium" if "bf16" in set_to else "high" if "tf32" in set_to else "highest"


def _cudnn_rounds() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # convolutions and recurrent networks have different settings
        cudnn: Any = torch.backends.cudnn
        return bool(cudnn.conv.fp32_precision == "tf32")


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable reduced-precision float32 products inside the block."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the newer attributes, which the call rejects
        matmul: Any = torch.backends.cuda.matmul
        newer = matmul.fp32_precision
        matmul.fp32_precision = "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = newer
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
