"""What a user holds in memory, as data sets and tensors: arrays, tensors, lists, names of files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import Domain, DomainDataset

Array = np.ndarray[Any, Any]


def dataset_of(X: Any, y: Any, domains: Any) -> tuple[DomainDataset, Array, Array]:
    """Return arrays as a data set, and its classes and domains as they came."""
    if y is None or domains is None:
        lacking = "y" if y is None else "domains"
        raise ValueError(
            f"fit needs {lacking}: fit(X, y, domains), with the domain of every example; in "
            'cross-validation params={"domains": domains}'
        )
    inputs = inputs_of(X)
    classes, labels = _numbered("y", y, len(inputs))
    names, places = _numbered("domains", domains, len(inputs))
    if len(classes) < 2:
        raise ValueError(f"y must have two classes or more, got {classes.tolist()}")
    numbers = torch.from_numpy(labels.astype(np.int64))
    found = []
    for place, name in enumerate(names):
        chosen = torch.from_numpy(np.flatnonzero(places == place))
        found.append(Domain(str(name), numbers[chosen], inputs[chosen]))
    return DomainDataset("arrays", tuple(map(str, classes)), tuple(found)), classes, names


def _numbered(what: str, given: Any, n: int) -> tuple[Array, Array]:
    """Return the different values, sorted, and which of them each one is."""
    values = np.asarray(given)
    if values.shape != (n,):
        raise ValueError(f"{what} must be [n] with n = {n}, got {list(values.shape)}")
    missing = [k for k, one in enumerate(values.tolist()) if one is None or one != one]
    if missing:
        raise ValueError(f"{what} lacks {len(missing)} of {n} values, the first at {missing[0]}")
    try:
        found, places = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"{what} must be all numbers or all texts ({error})") from error
    return found, places


def inputs_of(X: Any) -> Tensor:
    """Return vectors as float32 ``[n, d]``, or images as uint8 ``[n, C, H, W]``."""
    if hasattr(X, "toarray"):
        raise ValueError("X is sparse, expected a dense array; give X.toarray()")
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    if array.ndim == 4 and array.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(array))
    if array.ndim != 2:
        raise ValueError(
            f"X must be vectors [n, d] or images, uint8 [n, C, H, W], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    try:
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"X must hold numbers ({error}); encode texts first, as with a OneHotEncoder in a "
            "pipeline"
        ) from error
    if np.isinf(vectors).any():
        row, column = np.argwhere(np.isinf(vectors))[0].tolist()
        raise ValueError(
            f"X must hold finite numbers, or NaN where one is missing, got {array[row, column]} in "
            f"row {row}, column {column}"
        )
    return torch.from_numpy(vectors)


def files_of(X: Any) -> list[Path] | None:
    """Return the files that X names, or those of a data set in its order; None without files."""
    if isinstance(X, DomainDataset):
        files = [one for domain in X.domains for one in domain.images]
        return None if isinstance(files[0], Tensor) else [Path(str(one)) for one in files]
    if isinstance(X, (list, tuple, np.ndarray)) and len(X) and isinstance(X[0], (str, Path)):
        return [Path(one) for one in X]
    return None


def rows_of(X: Any) -> Any:
    """Return the inputs of a data set in memory, domain by domain; anything else as it is."""
    if not isinstance(X, DomainDataset):
        return X
    return torch.cat([torch.as_tensor(domain.images) for domain in X.domains])


def labels_of(dataset: DomainDataset) -> Array:
    """Return the class of every example, by name, in the data set's order."""
    labels = torch.cat([one.labels for one in dataset.domains])
    return np.array([dataset.classes[label] for label in labels.tolist()])
