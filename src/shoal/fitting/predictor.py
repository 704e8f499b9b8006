"""Predictor: a trained model that gives class names and probabilities for files, rows or arrays."""

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._version import __version__
from ..algorithms.base import Algorithm
from ..datasets.encoding import Encoding
from ..datasets.tables import read_table
from ..results.records import CARD, MODEL
from ..runs import model as models
from ..training.batches import Normalise, scaled
from ..training.evaluation import TOGETHER, VECTORS
from ..training.pillow import exact_evaluation
from .inputs import columns_of, describe, files_in, has_columns, is_picture, is_row, picture_of

# Images in a batch, by device: on a CPU, larger batches do not fit the caches.
BATCH = {"cpu": 4, "cuda": 256}
IMAGE = [3, 224, 224]

Item = TypeVar("Item")
Output = TypeVar("Output")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image or row.

    Args:
        source: the file, and the number of the row.
        label, probability: of the most probable class; None if there is an ``error``.
        probabilities: of all classes, by name.
        error: why there is no label, for example because the file cannot be read.
        unseen: columns whose category did not occur in training, and is therefore ignored.
    """

    source: str
    label: str | None = None
    probability: float | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    unseen: tuple[str, ...] = ()


class Probabilities(nn.Module):
    """Module from raw inputs, uint8 images or vectors, to the probabilities of the classes."""

    def __init__(self, algorithm: Algorithm, channels_last: bool) -> None:
        super().__init__()
        self.algorithm = algorithm
        preprocessing = getattr(algorithm.model, "preprocessing", None)
        self.normalise = Normalise(preprocessing, channels_last, algorithm.device)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.algorithm.predict(self.normalise(scaled(inputs)))
        return logits.float().softmax(-1)


class Predictor:
    """A loaded model; ``card`` describes it, ``classes`` are the names it predicts."""

    def __init__(self, model: models.Model) -> None:
        self.card = model.card
        self.classes = model.classes
        self.device = model.algorithm.device
        self._images = len(self.card["shape"]) == 3
        if self._images:
            model.algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module = Probabilities(model.algorithm, self._images).eval()
        # Methods that predict batchwise get batches of the size they were measured with.
        alone = BATCH[self.device.type] if self._images else VECTORS
        self._size = TOGETHER if model.algorithm.predicts_batchwise else alone
        columns = self.card.get("inputs", {}).get("columns")
        self._encoding = Encoding.from_json(columns) if columns else None

    @property
    def takes_rows(self) -> bool:
        """Whether this model takes rows of a table rather than images."""
        return self._encoding is not None

    def predict(self, sources: Any) -> list[Prediction]:
        """Return the prediction for each image or row, in order.

        An image or row that cannot be read gets an ``error``, and the others are still classified.
        So does a folder without images or tables; its files with other suffixes are skipped.

        Args:
            sources: one or several of these. For a model of images: image files, folders, PIL
                images, uint8 arrays ``[H, W, 3]``. For a model of a table: CSV or Parquet files,
                folders, data frames, mappings from columns to lists of values, or single rows:
                mappings from columns to one value each.
        """
        return list(self.predictions(sources))

    def predictions(self, sources: Any) -> Iterator[Prediction]:
        """Yield the predictions of ``predict`` one by one, as soon as each is known."""
        if self._encoding is not None:
            yield from self._predict_rows(self._encoding, sources)
        else:
            yield from self._predict_images(sources)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return ``[n, C]`` for uint8 images ``[n, 3, 224, 224]`` or float32 vectors ``[n, d]``."""
        return torch.cat(list(in_threads(self._run, inputs.split(self._size), self.device)))

    def _run(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.module(inputs.to(self.device))
        return found.cpu()

    def _each(self, sources: Any) -> Iterator[Any]:
        """Yield the sources one by one, and the files of a folder; raise if one is no source.

        A folder without suitable files is itself yielded: reading it reports the reason.
        """
        if self._takes(sources):
            sources = [sources]
        elif has_columns(sources) or not isinstance(sources, Iterable):
            raise self._refusal(describe(sources))
        for one in sources:
            if not self._takes(one):
                whole = describe(sources)
                array = hasattr(sources, "dtype")
                raise self._refusal(whole if array else f"{whole} of {describe(one)}")
            if isinstance(one, (str, Path)) and Path(one).is_dir():
                yield from files_in(Path(one), self.takes_rows)[0] or [Path(one)]
            else:
                yield one

    def _takes(self, source: Any) -> bool:
        is_in_memory = has_columns if self.takes_rows else is_picture
        return isinstance(source, (str, Path)) or is_in_memory(source)

    def _refusal(self, came: str) -> ValueError:
        if self.takes_rows:
            taken = "CSV or Parquet files, folders, data frames, or dicts of columns or of one row"
        else:
            taken = "image files, folders, PIL images, or uint8 arrays [H, W, 3]"
        kind = "uint8" if self._images else "float32"
        shape = ", ".join(map(str, self.card["shape"]))
        return ValueError(
            f"predict() of this model takes one or several {taken}, got {came}; for a {kind} "
            f"tensor [n, {shape}], as the network takes it, call probabilities()"
        )

    def _predict_images(self, sources: Any) -> Iterator[Prediction]:
        if list(self.card["shape"]) != IMAGE:
            raise ValueError(
                f"the model takes inputs of shape {self.card['shape']}, but predict() reads files "
                f"as {IMAGE}; pass tensors to probabilities() instead"
            )
        batches = _batches(self._each(sources), self._size)
        for found in in_threads(self._classify, batches, self.device):
            yield from found

    def _classify(self, sources: Sequence[tuple[str, Any]]) -> list[Prediction]:
        read = [_read(name, one) for name, one in sources]
        good = [image for image in read if isinstance(image, Tensor)]
        rows = iter(self._run(torch.stack(good)) if good else ())
        return [
            self._prediction(name, next(rows))
            if isinstance(image, Tensor)
            else Prediction(source=name, error=image)
            for (name, _), image in zip(sources, read, strict=True)
        ]

    def _predict_rows(self, encoding: Encoding, sources: Any) -> Iterator[Prediction]:
        for single, group in groupby(self._each(sources), is_row):
            if single:
                yield from self._predict_single_rows(encoding, group)
            else:
                for one in group:
                    yield from self._predict_table(encoding, one)

    def _predict_table(self, encoding: Encoding, source: Any) -> Iterator[Prediction]:
        file = isinstance(source, (str, Path))
        where, unread = str(source) if file else "the table", dict[int, str]()
        try:
            if file and Path(source).is_dir():
                next(os.scandir(source), None)  # raises the better reason if it cannot be opened
                raise ValueError(f"there are no tables in {where}")
            table = read_table(Path(source), unread) if file else columns_of(source)
            lacking = encoding.lacks(table, where)
        except (ValueError, OSError) as error:
            lacking = str(error)
        if lacking:
            yield Prediction(source=where, error=lacking)
        else:
            vectors, wrong = encoding.encode_readable(table, where, unread)
            unseen = encoding.unseen(table)
            yield from self._predict_vectors(vectors, wrong, unseen, f"{where}: ")

    def _predict_single_rows(self, encoding: Encoding, rows: Iterable[Any]) -> Iterator[Prediction]:
        good, wrong, unseen = [], dict[int, str](), dict[int, tuple[str, ...]]()
        for number, row in enumerate(rows):
            try:
                columns = columns_of(row)
                good.append(encoding(columns, "it"))
                unseen[number] = encoding.unseen(columns).get(0, ())
            except ValueError as error:
                wrong[number] = f"row {number + 1}: {error}"
        vectors = torch.cat(good) if good else torch.empty(0)
        yield from self._predict_vectors(vectors, wrong, unseen, "")

    def _predict_vectors(
        self,
        vectors: Tensor,
        wrong: Mapping[int, str],
        unseen: Mapping[int, tuple[str, ...]],
        where: str,
    ) -> Iterator[Prediction]:
        """Yield the predictions of a table's rows, in order.

        Args:
            vectors: the rows that could be encoded.
            wrong: why the others could not, by the number of the row.
            where: text before the number of a row.
        """
        found = iter(self.probabilities(vectors) if len(vectors) else ())
        for row in range(len(vectors) + len(wrong)):
            source = f"{where}row {row + 1}"
            if row in wrong:
                yield Prediction(source=source, error=wrong[row])
            else:
                yield replace(self._prediction(source, next(found)), unseen=unseen.get(row, ()))

    def _prediction(self, source: str, row: Tensor) -> Prediction:
        if not row.isfinite().all():
            why = "the probabilities are not finite; its values are far from all seen in training"
            return Prediction(source=source, error=f"{source}: {why}")
        values = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(values, key=values.__getitem__)
        return Prediction(
            source=source, label=label, probability=values[label], probabilities=values
        )


def _batches(sources: Iterable[Any], size: int) -> Iterator[list[tuple[str, Any]]]:
    """Yield the sources in batches with their names: the file's path, or "image 1" in memory."""
    left = (
        (str(one) if isinstance(one, (str, Path)) else f"image {number}", one)
        for number, one in enumerate(sources, 1)
    )
    while batch := list(islice(left, size)):
        yield batch


def _read(name: str, source: Any) -> Tensor | str:
    """Return the image as in evaluation, or the reason why it cannot be read."""
    in_memory = is_picture(source)
    try:
        return picture_of(source) if in_memory else exact_evaluation(Path(source))
    except FileNotFoundError:
        return f"there is no file {name}"
    except IsADirectoryError:
        return f"there are no images in {name}"
    except (ValueError, OSError) as error:
        return f"{name}: {error}" if in_memory else str(error)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run every torch operation inside on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(
    work: Callable[[Item], Output], items: Iterable[Item], device: torch.device
) -> Iterator[Output]:
    """Yield ``work(item)`` for each item, in order; on a CPU, run as many at once as it has cores.

    A few results are computed ahead, so that no core waits for the consumer.
    """
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    left, waiting = iter(items), deque[Future[Output]]()
    with (
        one_thread() if device.type == "cpu" else nullcontext(),
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            for item in islice(left, 2 * workers):
                waiting.append(pool.submit(work, item))
            while waiting:
                output = waiting.popleft().result()
                for item in islice(left, 1):
                    waiting.append(pool.submit(work, item))
                yield output
        finally:
            for future in waiting:
                future.cancel()


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    method: type[Algorithm] | None = None,
) -> Predictor:
    """Return the model that ``shoal fit`` or ``shoal train`` wrote to a folder.

    Args:
        device: where it predicts; by default a GPU if there is one.
        method: the class of your own algorithm, if the model was trained with one.
    """
    folder = Path(path)
    folder = folder.parent if folder.name == MODEL else folder
    _check_version(folder / CARD)
    return Predictor(models.load(folder, device_of(device), method))


def device_of(name: str | torch.device | None) -> torch.device:
    """Return the device of this name; None is a GPU if there is one, else the CPU."""
    has_gpu = torch.cuda.is_available()
    try:
        found = torch.device(name or ("cuda" if has_gpu else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; one of: cpu, cuda, cuda:0 …") from error
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and not has_gpu):
        usable = "cpu or cuda" if has_gpu else "cpu"
        raise ValueError(f"device {name!r} cannot be used here; use {usable}")
    return found


def _check_version(card: Path) -> None:
    if not card.is_file():
        return  # loading it raises a better error
    try:
        found = json.loads(card.read_text("utf-8"))
    except ValueError:
        return
    if not isinstance(found, dict):
        return
    writer = f"shoal {found['shoal']}" if "shoal" in found else "another version of shoal"
    if found.get("schema") != models.SCHEMA:
        raise ValueError(
            f"{card} was written by {writer} (schema {found.get('schema')!r}), but shoal "
            f"{__version__} reads schema {models.SCHEMA}; install the version that wrote it, or "
            "fit the model again"
        )
    if found.get("shoal", __version__) != __version__:
        warnings.warn(
            f"{card} was written by {writer}; it is used, because shoal {__version__} writes "
            "models in the same format",
            stacklevel=3,
        )
