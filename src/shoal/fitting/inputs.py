"""Inputs as users have them: arrays, tensors, data frames, images in memory, file names."""

import datetime
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..datasets import Domain, DomainDataset
from ..datasets.encoding import Array, Column, Encoding, Values, infer_encoding
from ..datasets.folders import is_litter, may_be_image
from ..datasets.images import planes
from ..datasets.reading import AS_STORED, Reading
from ..datasets.tables import is_table
from ..files import walk
from ..networks.registry import BY_SIZE
from ..training.pillow import SIZE

# Values of columns of dates and times.
TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
# How the types of columns of pandas, polars and pyarrow begin that mean categories.
CATEGORICAL = ("category", "Categorical", "Enum", "dictionary")
# Channels of grey, coloured and partly transparent images.
CHANNELS = (1, 3, 4)


# The domain of all examples, if none are given.
ONE_DOMAIN = "all"


@dataclass(frozen=True)
class Examples:
    """Examples as a data set, with its classes and domains as the user gave them.

    ``rows`` are the places of each domain's examples in what the user gave.
    """

    dataset: DomainDataset
    classes: Array
    domains: Array
    rows: tuple[Array, ...]


def examples_of_dataset(dataset: DomainDataset) -> Examples:
    """Return the examples of a data set, which come domain by domain."""
    ends = np.cumsum([len(domain) for domain in dataset.domains])
    rows = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    return Examples(dataset, np.array(dataset.classes), np.array(dataset.names), rows)


def examples_of(inputs: Tensor, y: Any, domains: Any) -> Examples:
    """Return inputs, labels and domains as a data set; without domains it has one."""
    if y is None:
        raise ValueError(
            "DomainClassifier requires y to be passed, but the target y is None: call "
            "fit(X, y, domains), with the class and the domain of every example"
        )
    n = len(inputs)
    classes, labels = _number("y", y, n)
    if classes.dtype.kind == "f" and (classes != np.round(classes)).any():
        raise ValueError(
            f"Unknown label type: continuous. y must be classes, got {len(classes)} different "
            "numbers with fractions; cut them into classes first, or use a regressor"
        )
    names, places = _number("domains", [ONE_DOMAIN] * n if domains is None else domains, n)
    if len(classes) < 2:
        raise ValueError(f"y must have two classes or more, got one class: {classes.tolist()}")
    numbers = torch.from_numpy(labels.astype(np.int64))
    rows = tuple(np.flatnonzero(places == place) for place in range(len(names)))
    found = tuple(
        Domain(str(name), numbers[chosen], inputs[chosen])
        for name, chosen in zip(names, map(torch.from_numpy, rows), strict=True)
    )
    dataset = DomainDataset("arrays", tuple(map(str, classes)), found)
    return Examples(dataset, classes, names, rows)


def _number(what: str, given: Any, n: int) -> tuple[Array, Array]:
    """Return the distinct values, sorted, and the index of each example's value among them."""
    values = values_of(what, given, n)
    try:
        found, places = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"{what} must be all numbers or all strings ({error})") from error
    return found, places


def values_of(what: str, given: Any, n: int) -> Array:
    """Return one value for each of n examples, ``[n]``; raise if any is missing."""
    if given is None:
        raise ValueError(f"{what} must be [n] with n = {n}, got None")
    values = as_array(given)
    _check_real(what, values)
    if values.shape == (n, 1):
        warnings.warn(
            f"A column-vector {what} was passed when a 1d array was expected; pass {what}.ravel()",
            conversion_warning(),
            stacklevel=4,
        )
        values = values[:, 0]
    if values.shape != (n,):
        raise ValueError(f"{what} must be [n] with n = {n}, got {list(values.shape)}")
    missing = [k for k, one in enumerate(values.tolist()) if _is_missing(one)]
    if missing:
        raise ValueError(
            f"{what} must have no missing values, got {len(missing)} of {n}, the first at index "
            f"{missing[0]}"
        )
    if values.dtype == object and all(isinstance(one, Number) for one in values):
        values = np.array(values.tolist())  # whole numbers or truth values, as pandas stores them
    return values


def as_array(given: Any) -> Array:
    """Return what was given as an array; a tensor may be on a GPU, in bfloat16, or in a graph."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.dtype == torch.bfloat16 else given  # NumPy has no such type
    found: Array = np.asarray(given)
    return found


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA cannot be compared
        return True


def conversion_warning() -> type[Warning]:
    """Return scikit-learn's category of warnings about shapes, if it is installed."""
    try:
        from sklearn.exceptions import DataConversionWarning
    except ModuleNotFoundError:
        return UserWarning
    return cast(type[Warning], DataConversionWarning)


def inputs_of(X: Any) -> Tensor:
    """Return vectors as float32 ``[n, d]``, or images as uint8 or float32 ``[n, C, H, W]``."""
    if hasattr(X, "toarray"):
        raise ValueError("X is sparse, expected a dense array; pass X.toarray()")
    if hasattr(X, "collect_schema") and hasattr(X, "collect"):  # polars.LazyFrame
        raise TypeError("X is not read yet, expected a data frame; pass X.collect()")
    array = as_array(X)
    _check_real("X", array)
    if array.ndim == 4 and (array.dtype == np.uint8 or array.dtype.kind == "f"):
        if array.shape[3] in CHANNELS and array.shape[1] not in CHANNELS:
            raise ValueError(
                f"X must be images [n, C, H, W], but {list(array.shape)} looks like channels last; "
                "pass np.moveaxis(X, 3, 1)"
            )
        if array.dtype != np.uint8 and not np.isfinite(array).all():
            raise ValueError("X must hold finite numbers, got NaN or infinity in an image")
        dtype = np.uint8 if array.dtype == np.uint8 else np.float32
        return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
    if array.ndim != 2:
        one = "; Reshape your data by X[None] if it is one example" if array.ndim == 1 else ""
        raise ValueError(
            "X must be vectors [n, d] or images, uint8 or float [n, C, H, W], got "
            f"{array.dtype} of shape {list(array.shape)}{one}"
        )
    for axis, what in enumerate(("sample", "feature")):
        if array.shape[axis] == 0:  # in scikit-learn's words
            raise ValueError(
                f"X has 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required."
            )
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported: X must be real numbers, got complex ones")
    if array.dtype == object:  # with pandas' NA, for example
        missing = [[_is_missing(value) for value in row] for row in array.tolist()]
        array = np.where(missing, np.nan, array)
    try:
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"X must be numeric ({error}); pass a data frame with named columns, whose strings "
            "become categories, or encode strings first, for example with a OneHotEncoder"
        ) from error
    if np.isinf(vectors).any():
        row, column = np.argwhere(np.isinf(vectors))[0].tolist()
        raise ValueError(
            f"X must hold finite numbers, or NaN for a missing one, got {array[row, column]} in "
            f"row {row}, column {column}"
        )
    return torch.from_numpy(np.require(vectors, requirements=["C", "W"]))


def wrong_shape(shape: Sequence[int], expected: Sequence[int]) -> str:
    """Return the message about an X of another shape than ``[n, *expected]`` in training."""
    counts = ""
    if len(shape) == 2 and len(expected) == 1:  # in scikit-learn's words
        counts = (
            f"X has {shape[1]} features, but DomainClassifier is expecting {expected[0]} features "
            "as input; "
        )
    return f"{counts}X must be [n, {', '.join(map(str, expected))}] as in fit, got {list(shape)}"


def _check_real(what: str, values: Any) -> None:
    """Raise if numbers are complex: their imaginary parts would be lost."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {what} must hold real numbers, got {values.dtype}; pass "
            "real and imaginary parts, or magnitudes, as columns of their own"
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

    for place, folders, files in walk(folder, keep, follow_links=True):
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
        (hasattr(source, "to_dict") or hasattr(source, "to_pydict")) and hasattr(source, "columns")
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
    array = as_array(X)
    _check_real("X", array)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise ValueError(wrong_shape(array.shape, [len(names)]))
    return {name: array[:, k] for k, name in enumerate(names)}


def frame_encoding(table: Mapping[str, Values], X: Any) -> Encoding:
    """Return the encoding of the columns of a data frame ``X``; warn of those that are ignored.

    A column that its library calls categorical is one of categories, even of numbers.
    """
    for name, values in table.items():
        if isinstance(values, list) and any(isinstance(value, TIMES) for value in values):
            raise ValueError(
                f"column {name!r} of X holds dates or times, which are neither numbers nor "
                "categories; replace it by numbers, such as the month or the days since some day, "
                "or leave it out"
            )
    try:
        found = infer_encoding(table, categories=[n for n in table if _is_categorical(X[n])])
    except ValueError as error:
        raise ValueError(f"X: {error}") from error
    if found.left_out:
        warnings.warn(
            "ignored columns, because they are constant or differ in most rows: "
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
    warn_of_unusual("row", [(f"row {row + 1}", words) for row, words in unusual.items()], 5)


def warn_of_unusual(
    kind: str, unusual: Sequence[tuple[str, Sequence[str]]], stacklevel: int = 3
) -> None:
    """Warn of inputs that are unlike all in training, if there are any.

    Args:
        kind: of the inputs, "row" or "image".
        unusual: the name of each, and a few words about it.
    """
    if unusual:
        count = f"1 {kind} is" if len(unusual) == 1 else f"{len(unusual):,} {kind}s are"
        first, words = unusual[0]
        warnings.warn(
            f"{count} unlike all in training, such as {first}: {'; '.join(words)}",
            stacklevel=stacklevel,
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


def _is_categorical(column: Any) -> bool:
    kind = getattr(column, "dtype", None) or getattr(column, "type", "")
    return str(kind).startswith(CATEGORICAL)


def _values(given: Any) -> Values:
    column = given if _is_column(given) else np.array([given])
    if _is_categorical(column):  # to_numpy would turn whole numbers with gaps into fractions
        return column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    array = column.to_numpy() if hasattr(column, "to_numpy") else column
    _check_real("a column", array)
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iuf":
        return array
    if isinstance(column, np.ndarray) and column.dtype.kind in "mM":
        return list(column)  # tolist would turn nanoseconds into numbers
    for way in ("tolist", "to_pylist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def describe(source: Any) -> str:
    """Return a source's type, and an array's dtype and shape, for an error message."""
    name = type(source).__name__
    return f"{name} {source.dtype} {list(source.shape)}" if hasattr(source, "dtype") else name
