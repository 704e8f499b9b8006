"""Inputs as users have them: arrays, tensors, data frames, images in memory, file names."""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import Domain, DomainDataset
from ..datasets.encoding import Array, Column, Encoding, Values, infer_encoding
from ..datasets.folders import is_litter, may_be_image
from ..datasets.images import planes
from ..datasets.reading import AS_STORED, Reading
from ..datasets.tables import is_table
from ..networks.registry import BY_SIZE
from ..training.pillow import SIZE

# Channels of grey, coloured and partly transparent images.
CHANNELS = (1, 3, 4)


def dataset_of(inputs: Tensor, y: Any, domains: Any) -> tuple[DomainDataset, Array, Array]:
    """Return examples as a data set, with its classes and domains as the user gave them."""
    if y is None or domains is None:
        lacking = "y" if y is None else "domains"
        raise ValueError(
            f"fit needs {lacking}: call fit(X, y, domains), with the domain of every example; in "
            'cross-validation pass params={"domains": domains}'
        )
    classes, labels = _number("y", y, len(inputs))
    if classes.dtype.kind == "f" and (classes != np.round(classes)).any():
        raise ValueError(
            f"Unknown label type: continuous. y must be classes, got {len(classes)} different "
            "numbers with fractions; cut them into classes first, or use a regressor"
        )
    names, places = _number("domains", domains, len(inputs))
    if len(classes) < 2:
        raise ValueError(f"y must have two classes or more, got {classes.tolist()}")
    numbers = torch.from_numpy(labels.astype(np.int64))
    found = []
    for place, name in enumerate(names):
        chosen = torch.from_numpy(np.flatnonzero(places == place))
        found.append(Domain(str(name), numbers[chosen], inputs[chosen]))
    return DomainDataset("arrays", tuple(map(str, classes)), tuple(found)), classes, names


def _number(what: str, given: Any, n: int) -> tuple[Array, Array]:
    """Return the distinct values, sorted, and the index of each example's value among them."""
    values = np.asarray(given)
    _check_real(what, values)
    if values.shape != (n,):
        raise ValueError(f"{what} must be [n] with n = {n}, got {list(values.shape)}")
    missing = [k for k, one in enumerate(values.tolist()) if one is None or one != one]
    if missing:
        raise ValueError(
            f"{what} must have no missing values, got {len(missing)} of {n}, the first at index "
            f"{missing[0]}"
        )
    try:
        found, places = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"{what} must be all numbers or all strings ({error})") from error
    return found, places


def inputs_of(X: Any) -> Tensor:
    """Return vectors as float32 ``[n, d]``, or images as uint8 ``[n, C, H, W]``."""
    if hasattr(X, "toarray"):
        raise ValueError("X is sparse, expected a dense array; pass X.toarray()")
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    _check_real("X", array)
    if array.ndim == 4 and array.dtype == np.uint8:
        if array.shape[3] in CHANNELS and array.shape[1] not in CHANNELS:
            raise ValueError(
                f"X must be images [n, C, H, W], but {list(array.shape)} looks like channels last; "
                "pass np.moveaxis(X, 3, 1)"
            )
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
            f"X must be numeric ({error}); pass a data frame with named columns, whose strings "
            "become categories, or encode strings first, for example with a OneHotEncoder"
        ) from error
    if np.isinf(vectors).any():
        row, column = np.argwhere(np.isinf(vectors))[0].tolist()
        raise ValueError(
            f"X must hold finite numbers, or NaN for a missing one, got {array[row, column]} in "
            f"row {row}, column {column}"
        )
    return torch.from_numpy(vectors)


def _check_real(what: str, values: Any) -> None:
    """Raise if numbers are complex: their imaginary parts would be lost."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "c":
        raise ValueError(
            f"{what} must hold real numbers, got {values.dtype}; pass real and imaginary parts, or "
            "magnitudes, as columns of their own"
        )


def check_size(shape: tuple[int, ...]) -> None:
    """Raise if there is no default network for images of this shape ``(C, H, W)``."""
    _, height, width = shape
    if height != width or height not in BY_SIZE:
        sizes = ", ".join(f"{size} × {size}" for size in BY_SIZE)
        raise ValueError(
            f"X has images of {height} × {width}, but there are default networks only for {sizes}; "
            "resize the images, or name a network that takes any size: "
            'network="mnist-cnn" for small images or "resnet18" for large ones'
        )


def files_of(X: Any) -> list[Path] | None:
    """Return the files that X names, or a data set's files in order; None if X has no files."""
    if isinstance(X, DomainDataset):
        if X.in_memory:
            return None
        return [path for domain in X.domains for path in domain.files]
    if isinstance(X, (list, tuple, np.ndarray)) and len(X) and isinstance(X[0], (str, Path)):
        return [Path(one) for one in X]
    return None


def rows_of(X: Any) -> Any:
    """Return the inputs of a data set in memory, domain by domain; return any other X unchanged."""
    if not isinstance(X, DomainDataset):
        return X
    return torch.cat([torch.as_tensor(domain.images) for domain in X.domains])


def labels_of(dataset: DomainDataset) -> Array:
    """Return the class name of every example, in the data set's order."""
    labels = torch.cat([one.labels for one in dataset.domains])
    return np.array([dataset.classes[label] for label in labels.tolist()])


def files_in(folder: Path, rows: bool) -> tuple[list[Path], int]:
    """Return a folder's image files, or tables if ``rows``, and the number of its other files.

    The suffix decides, so some of the images may be of a format that cannot be read here. Broken
    links, devices and folders that cannot be opened are returned too: reading them reports why.
    Hidden files are neither returned nor counted, as in ``shoal fit``.
    """
    found, others, seen = list[Path](), 0, {os.path.realpath(folder)}

    def is_new(path: Path) -> bool:
        """Return whether no link has led to this folder yet."""
        place = os.path.realpath(path)
        known = place in seen
        seen.add(place)
        return not known

    def keep(error: OSError) -> None:
        found.append(Path(error.filename))

    for place, folders, files in os.walk(folder, onerror=keep, followlinks=True):
        here = Path(place)
        folders[:] = [one for one in sorted(folders) if not is_litter(one) and is_new(here / one)]
        there = [here / name for name in files if not is_litter(name)]
        wanted = [path for path in there if (is_table(path) if rows else may_be_image(path))]
        found += wanted
        others += len(there) - len(wanted)
    return sorted(found), others


def is_picture(source: Any) -> bool:
    """Return whether this is a PIL image or a uint8 array ``[H, W, 3]``."""
    if isinstance(source, np.ndarray):
        return source.dtype == np.uint8 and source.ndim == 3 and source.shape[2] == 3
    return hasattr(source, "getbands")


def picture_of(source: Any, reading: Reading = AS_STORED) -> Tensor:
    """Return a PIL image or an array as files are read: uint8 ``[3, 224, 224]``."""
    from PIL import Image

    image = Image.fromarray(source) if isinstance(source, np.ndarray) else source
    found = reading.render(image)
    if found is None:
        raise ValueError(
            f"more than 8 bits a channel (Pillow mode {image.mode!r}); convert the image to 8 bits"
        )
    return planes(found.resize(SIZE, Image.Resampling.BILINEAR))


def has_columns(source: Any) -> bool:
    """Return whether this is a mapping from columns, or a pandas, polars or pyarrow table."""
    return isinstance(source, Mapping) or (
        hasattr(source, "columns") and (hasattr(source, "to_dict") or hasattr(source, "to_pydict"))
    )


def is_row(source: Any) -> bool:
    """Return whether this is a mapping with one value per column."""
    return isinstance(source, Mapping) and not any(map(_is_column, source.values()))


def columns_of(source: Any) -> dict[str, Values]:
    """Return the columns of a row, a mapping or a data frame: numbers as arrays, others as lists.

    Raise if two have the same name, or they are not equally long.
    """
    names = [str(name) for name in _names(source)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"a table must have one column of each name, got several {twice[0]!r}")
    table = {str(name): _values(source[name]) for name in _names(source)}
    if len({len(values) for values in table.values()}) > 1:
        counts = ", ".join(f"{len(values)} in {name!r}" for name, values in table.items())
        raise ValueError(f"the columns of a table must be equally long, got {counts}")
    return table


def named_columns(X: Any) -> dict[str, Values] | None:
    """Return the columns of a data frame by name; None if X has no names, like an array.

    Numbers instead of names are those of positions, as scikit-learn sees it.
    """
    if not has_columns(X):
        return None
    names = _names(X)
    texts = sum(isinstance(name, str) for name in names)
    if 0 < texts < len(names):
        kinds = ", ".join(sorted({type(name).__name__ for name in names}))
        raise TypeError(
            f"the names of X's columns must all be strings, got {kinds}; rename them, for example "
            "by X.columns = X.columns.astype(str)"
        )
    return columns_of(X) if texts else None


def columns_by_position(X: Any, names: Sequence[str]) -> dict[str, Values]:
    """Return the columns of an array ``[n, d]`` that are in the order of these names."""
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    _check_real("X", array)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(f"X must be [n, {len(names)}] as in fit, got {list(array.shape)}")
    return {name: array[:, k] for k, name in enumerate(names)}


def frame_encoding(table: Mapping[str, Values]) -> Encoding:
    """Return the encoding of a data frame's columns; warn of those that are ignored."""
    try:
        found = infer_encoding(table)
    except ValueError as error:
        raise ValueError(f"X: {error}") from error
    if found.left_out:
        warnings.warn(
            "ignored columns, because they are constant or differ in nearly every row: "
            f"{', '.join(found.left_out)}",
            stacklevel=3,
        )
    return found


def unnamed_encoding(count: int) -> Encoding:
    """Return the encoding of vectors ``[n, count]``, whose columns scikit-learn names x0, x1 …"""
    return Encoding(tuple(Column(f"x{k}") for k in range(count)), ignored=())


def is_unnamed(encoding: Encoding) -> bool:
    """Return whether this is an encoding of ``unnamed_encoding``."""
    return encoding == unnamed_encoding(len(encoding.columns))


def warn_of_unlike(encoding: Encoding, table: Mapping[str, Values]) -> None:
    """Warn of categories and numbers that are unlike all in training."""
    unseen, unusual = encoding.unseen(table), encoding.unusual(table)
    for column, count in Counter(name for names in unseen.values() for name in names).items():
        what = "1 value" if count == 1 else f"{count:,} values"
        verb = "is" if count == 1 else "are"
        warnings.warn(
            f"{what} of {column!r} did not occur in training and {verb} ignored", stacklevel=4
        )
    if unusual:
        rows = "1 row is" if len(unusual) == 1 else f"{len(unusual):,} rows are"
        first, words = next(iter(unusual.items()))
        warnings.warn(
            f"{rows} unlike all in training, such as row {first + 1}: {'; '.join(words)}",
            stacklevel=4,
        )


def frame_maker(source: Any) -> Callable[[Mapping[str, Sequence[Any]]], Any]:
    """Return a function from columns to a data frame of the source's library.

    It is pandas, whose index is kept, polars or pyarrow; raise if the source is no data frame.
    """
    # A frame exists, so its library is imported already.
    pandas, polars, arrow = map(sys.modules.get, ("pandas", "polars", "pyarrow"))
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return partial(pandas.DataFrame, index=source.index)
    if polars is not None and isinstance(source, polars.DataFrame):
        return partial(polars.DataFrame)
    if arrow is not None and isinstance(source, arrow.Table):
        return partial(arrow.table)
    raise ValueError(
        f"as_frame=True takes one data frame of pandas, polars or pyarrow, got {describe(source)}"
    )


def _names(source: Any) -> list[Any]:
    if isinstance(source, Mapping):
        return list(source)
    return list(source.column_names if hasattr(source, "column_names") else source.columns)


def _is_column(value: Any) -> bool:
    if isinstance(value, str) or getattr(value, "ndim", 1) == 0:
        return False
    return hasattr(value, "__len__")


def _values(given: Any) -> Values:
    column = given if _is_column(given) else np.array([given])
    array = column.to_numpy() if hasattr(column, "to_numpy") else column
    _check_real("a column", array)
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iuf":
        return array
    for way in ("tolist", "to_pylist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def describe(source: Any) -> str:
    """Return a source's type, and an array's dtype and shape, for an error message."""
    name = type(source).__name__
    return f"{name} {source.dtype} {list(source.shape)}" if hasattr(source, "dtype") else name
