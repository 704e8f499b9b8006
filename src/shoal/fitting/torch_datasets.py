"""Torch data sets: map-style ones, read once into inputs, labels and domains."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..datasets.encoding import Array

# What an example of a data set can be.
PARTS = "(input, label) or (input, label, domain)"


def is_torch_dataset(X: Any) -> bool:
    """Return whether this is a data set of torch; raise if its examples have no numbers."""
    if isinstance(X, IterableDataset):
        raise TypeError(
            f"X must be a map-style data set, with a length and numbered examples, got the "
            f"iterable {type(X).__name__}; read its examples into a list first"
        )
    if isinstance(X, DataLoader):
        raise TypeError("X must be a data set, got a DataLoader; pass its .dataset")
    if isinstance(X, (list, tuple)) and any(isinstance(one, Dataset) for one in X):
        raise TypeError(
            "X must be one data set, got several; join them by torch.utils.data.ConcatDataset, and "
            "pass the domain of every example"
        )
    return isinstance(X, Dataset)


def read_dataset(data: Any) -> tuple[Array, list[Any] | None, list[Any] | None]:
    """Return inputs, labels and domains of all examples; None for what they do not have.

    Each example is read once, so a random augmentation in the data set is drawn once.
    """
    items = [data[place] for place in range(len(data))]
    if not items:
        raise ValueError(f"X has no examples, it is a {type(data).__name__} of length 0")
    parts = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in items]
    counts = sorted({len(one) for one in parts})
    if counts[0] < 1 or counts[-1] > 3 or len(counts) > 1:
        raise ValueError(f"every example of X must be {PARTS}, got {counts} parts")
    inputs, *columns = zip(*parts, strict=True)
    if isinstance(inputs[0], Mapping):
        raise ValueError(f"every example of X must be {PARTS}, got a {type(inputs[0]).__name__}")
    labels, domains = (*map(_plain, columns), None, None)[:2]
    return _stack(inputs), labels, domains


def _plain(values: Sequence[Any]) -> list[Any]:
    """Return tensors of one value as numbers, and other values as they are."""
    for one in values:
        if isinstance(one, Tensor) and one.numel() != 1:
            raise ValueError(
                f"the label and domain of an example must be one value each, got {list(one.shape)}"
            )
    return [one.item() if isinstance(one, (Tensor, np.generic)) else one for one in values]


def _stack(inputs: Sequence[Any]) -> Array:
    arrays = [_array(one) for one in inputs]
    shapes = sorted({one.shape for one in arrays})
    if len(shapes) > 1:
        raise ValueError(
            f"all inputs of X must have one shape, got {list(shapes[0])} and {list(shapes[-1])}; "
            "resize them in the data set"
        )
    return np.stack(arrays)


def _array(one: Any) -> Array:
    """Return a vector or an image ``[C, H, W]``; of Pillow's, the bytes."""
    if isinstance(one, Tensor):
        found: Array = one.detach().cpu().numpy()
        return found
    array = np.asarray(one)
    if not hasattr(one, "getbands"):
        return array
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
