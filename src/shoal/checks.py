"""Checks of tensors: shapes and dtypes always, values only if reading them forces no sync."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from .transforms import batched

# The dtypes that torch allows for indices.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

_READ_VALUES = ContextVar("read values", default=True)


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Check no values inside the block, for a caller with its own check for NaN."""
    token = _READ_VALUES.set(False)
    try:
        yield
    finally:
        _READ_VALUES.reset(token)


def values_visible(*tensors: Tensor) -> bool:
    """Return whether values can be read without waiting for a device.

    Never inside a compiled step, and never on a GPU, because reading is a synchronisation (and an
    error inside a captured step); nor if ``torch.func.vmap`` maps over the tensor. Half-precision
    values are left to the loss scaler.
    """
    if torch.compiler.is_compiling() or not _READ_VALUES.get():
        return False
    return all(
        t.device.type == "cpu" and t.dtype != torch.float16 and not batched(t) for t in tensors
    )


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` is a real floating-point tensor without NaN."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} must be floating point, got {tensor.dtype}; convert with .float() first"
        )
    if values_visible(tensor) and torch.isnan(tensor.detach()).any():
        count = int(torch.isnan(tensor.detach()).sum())
        raise ValueError(
            f"{name} holds {count} NaN of {tensor.numel()} values; "
            "a gradient statistic of them is meaningless: find the operation that produced them"
        )


def check_count(name: str, number: int, least: int) -> None:
    """Raise unless ``number`` is an integer of any package, and not below ``least``."""
    if not isinstance(number, (int, torch.SymInt)):
        try:
            operator.index(number)
        except TypeError:
            raise TypeError(f"{name} must be an int, got {type(number).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be {least} or more, got {number}")


def check_features(features: Tensor) -> None:
    """Raise unless ``features`` is ``[n, p]``."""
    check_floating("features", features)
    check_vectors(features)


def check_vectors(features: Tensor) -> None:
    """Raise unless ``features`` has the shape ``[n, p]``, whatever its values."""
    if features.ndim != 2:
        raise ValueError(
            f"features must be [n, p], one vector per example, got shape {list(features.shape)}"
        )


def check_logits(logits: Tensor, n: int) -> None:
    """Raise unless ``logits`` is ``[n, C]`` or ``[n]``."""
    check_floating("logits", logits)
    if logits.ndim not in (1, 2) or len(logits) != n:
        raise ValueError(
            f"logits must be [n, C] (or [n] for a binary loss) with n = {n}, "
            f"got shape {list(logits.shape)}"
        )


def check_one_each(labels: Tensor, n: int) -> None:
    """Raise unless ``labels`` has one entry for each of n examples, for any loss."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor, got {type(labels).__name__}")
    if labels.ndim == 0 or len(labels) != n:
        raise ValueError(
            f"labels must have one entry per example (n = {n}), got shape {list(labels.shape)}"
        )
    if labels.is_floating_point():
        check_floating("labels", labels)


def check_labels(logits: Tensor, labels: Tensor) -> None:
    """Raise unless ``labels`` fits the built-in loss on ``logits``: cross-entropy or binary."""
    n = len(logits)
    check_one_each(labels, n)
    if logits.ndim == 1 or logits.shape[1] == 1:
        _check_binary(labels, n)
    else:
        _check_classes(labels, n, logits.shape[1])


def _check_binary(labels: Tensor, n: int) -> None:
    if labels.numel() != n:
        raise ValueError(
            f"labels of a binary loss must be [n] or [n, 1] with n = {n}, "
            f"got shape {list(labels.shape)}"
        )
    if values_visible(labels) and not ((labels == 0) | (labels == 1)).all():
        raise ValueError(
            "labels of a binary loss (one logit per example) must be 0 or 1, "
            f"got values from {labels.min().item()} to {labels.max().item()}"
        )


def _check_classes(labels: Tensor, n: int, classes: int) -> None:
    if labels.is_floating_point():
        if list(labels.shape) != [n, classes]:
            raise ValueError(
                f"floating-point labels are soft targets and must be [n, C] = [{n}, {classes}], "
                f"got shape {list(labels.shape)}; class indices must be integers"
            )
        return
    if labels.ndim != 1 or labels.dtype not in INTEGERS:
        raise ValueError(
            f"labels must be integer class indices [n] with n = {n} or soft targets [n, C], "
            f"got {labels.dtype} of shape {list(labels.shape)}"
        )
    if values_visible(labels):
        check_range("labels", labels, classes, f"the logits have {classes} classes")


def check_range(name: str, indices: Tensor, size: int, why: str) -> None:
    """Raise unless every index is in 0 … size − 1; reads values."""
    if indices.numel() == 0:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} must be in 0 … {size - 1} ({why}), got {wrong}")


def check_domains(domains: Tensor, n: int, num_domains: int | None) -> None:
    """Raise unless ``domains`` is an integer vector with one domain id per example."""
    if not isinstance(domains, Tensor):
        raise TypeError(f"domains must be a tensor, got {type(domains).__name__}")
    if domains.dtype not in INTEGERS:
        raise TypeError(f"domains must be integer ids, got {domains.dtype}; convert with .long()")
    if domains.ndim != 1 or len(domains) != n:
        raise ValueError(
            f"domains must be a vector [n] with one id per example (n = {n}), "
            f"got shape {list(domains.shape)}"
        )
    if num_domains is None:
        if n == 0:
            raise ValueError("num_domains must be given for an empty batch")
    else:
        check_count("num_domains", num_domains, 1)
    if not values_visible(domains) or n == 0:
        return
    if num_domains is None:
        if int(domains.min()) < 0:
            raise ValueError(f"domains must be 0 or more, got {int(domains.min())}")
    else:
        check_range("domains", domains, num_domains, f"num_domains is {num_domains}")


def check_sizes(sizes: Sequence[int], n: int) -> None:
    """Raise unless ``sizes`` has one domain or more, none empty, and adds up to n examples."""
    if len(sizes) == 0 or min(sizes) < 1 or sum(sizes) != n:
        raise ValueError(
            f"sizes must be 1 or more for each domain and add up to the {n} examples, "
            f"got {list(sizes)}"
        )
