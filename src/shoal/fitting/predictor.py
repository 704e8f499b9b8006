"""A fitted model: class names and probabilities for files, rows or arrays."""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._version import __version__
from ..algorithms.base import Algorithm
from ..datasets.encoding import Encoding
from ..datasets.tables import read_table
from ..runs import model as models
from ..training.batches import Normalise, scaled
from ..training.evaluation import TOGETHER
from ..training.pillow import exact_evaluation
from .frozen_features import in_threads
from .inputs import columns_of, described, files_in, has_columns, is_picture, is_row, picture_of

# Images that are classified together: on a CPU more would not stay in its caches.
BATCH = {"cpu": 4, "cuda": 256}
IMAGE = [3, 224, 224]


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image or row.

    ``error`` says why there is no label, as where it could not be read. ``probabilities`` are of
    all classes, by name. ``unseen`` are the columns of a row whose category was never seen in
    training, and counts as none.
    """

    source: str
    label: str | None
    probability: float | None
    probabilities: Mapping[str, float]
    error: str | None = None
    unseen: tuple[str, ...] = ()


class Probabilities(nn.Module):
    """From inputs as they come, uint8 images or vectors, to the probabilities of the classes."""

    def __init__(self, algorithm: Algorithm, channels_last: bool) -> None:
        super().__init__()
        self.algorithm = algorithm
        preprocessing = getattr(algorithm.model, "preprocessing", None)
        self.normalise = Normalise(preprocessing, channels_last, algorithm.device)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.algorithm.predict(self.normalise(scaled(inputs)))
        return logits.float().softmax(-1)


class Predictor:
    """A model that was loaded; ``card`` says what it is, ``classes`` what it can say."""

    def __init__(self, model: models.Model) -> None:
        self.card = model.card
        self.classes = model.classes
        self.device = model.algorithm.device
        self._images = len(self.card["shape"]) == 3
        if self._images:
            model.algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module = Probabilities(model.algorithm, self._images).eval()
        # Some methods look at a batch as a whole: as many as when they were measured.
        alone = BATCH[self.device.type] if self._images else 4096
        self._size = TOGETHER if model.algorithm.predicts_batchwise else alone
        columns = self.card.get("inputs", {}).get("columns")
        self._encoding = Encoding.from_json(columns) if columns else None

    @property
    def takes_rows(self) -> bool:
        """Whether it is a model of a table, and no one of images."""
        return self._encoding is not None

    def predict(self, sources: Any) -> list[Prediction]:
        """Return what the model says of each image or row, in order.

        Args:
            sources: files, or folders of them, images of Pillow, or uint8 arrays ``[H, W, 3]``; or
                for a model of tables files, CSV or Parquet, or folders of them, data frames,
                mappings from columns to values, or rows: mappings from columns to one value each.
                One or several of these. An image or row that cannot be read gets an ``error``, and
                the others are classified all the same; so does a folder without any. Files
                in a folder that are no images by their suffix are passed over.
        """
        return list(self.predictions(sources))

    def predictions(self, sources: Any) -> Iterator[Prediction]:
        """Yield what ``predict`` returns, as soon as it is known."""
        if self._encoding is not None:
            yield from self._rows(self._encoding, sources)
        else:
            yield from self._pictures(sources)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return ``[n, C]`` for uint8 images ``[n, 3, 224, 224]`` or float32 vectors ``[n, d]``."""
        return torch.cat(list(in_threads(self._run, inputs.split(self._size), self.device)))

    def _run(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.module(inputs.to(self.device))
        return found.cpu()

    def _each(self, sources: Any) -> Iterator[Any]:
        """Yield the sources one by one, with files for a folder; raise on what is none.

        A folder without any is itself yielded, to be named where it is read.
        """
        if self._takes(sources):
            sources = [sources]
        elif has_columns(sources) or not isinstance(sources, Iterable):
            raise self._refusal(described(sources))
        for one in sources:
            if not self._takes(one):
                whole = described(sources)
                array = hasattr(sources, "dtype")
                raise self._refusal(whole if array else f"{whole} of {described(one)}")
            if isinstance(one, (str, Path)) and Path(one).is_dir():
                yield from files_in(Path(one), self.takes_rows)[0] or [Path(one)]
            else:
                yield one

    def _takes(self, source: Any) -> bool:
        held = has_columns if self.takes_rows else is_picture
        return isinstance(source, (str, Path)) or held(source)

    def _refusal(self, came: str) -> ValueError:
        if self.takes_rows:
            taken = "CSV or Parquet files, folders, data frames, or dicts of columns or of one row"
        else:
            taken = "image files, folders, PIL images, or uint8 arrays [H, W, 3]"
        kind = "uint8" if self._images else "float32"
        shape = ", ".join(map(str, self.card["shape"]))
        return ValueError(
            f"predict of this model takes {taken}, one or several, got {came}; inputs as the "
            f"network sees them, a tensor {kind} [n, {shape}], go to probabilities()"
        )

    def _pictures(self, sources: Any) -> Iterator[Prediction]:
        if list(self.card["shape"]) != IMAGE:
            raise ValueError(
                f"the model takes inputs of shape {self.card['shape']}; files can only be given to "
                f"models of {IMAGE}, and tensors to probabilities()"
            )
        batches = _batches(self._each(sources), self._size)
        for found in in_threads(self._classified, batches, self.device):
            yield from found

    def _classified(self, sources: Sequence[tuple[str, Any]]) -> list[Prediction]:
        read = [_read(name, one) for name, one in sources]
        good = [image for image in read if isinstance(image, Tensor)]
        rows = iter(self._run(torch.stack(good)) if good else ())
        return [
            self._prediction(name, next(rows))
            if isinstance(image, Tensor)
            else Prediction(name, None, None, {}, image)
            for (name, _), image in zip(sources, read, strict=True)
        ]

    def _rows(self, encoding: Encoding, sources: Any) -> Iterator[Prediction]:
        for alone, run in groupby(self._each(sources), is_row):
            if alone:
                yield from self._single_rows(encoding, run)
            else:
                for one in run:
                    yield from self._table(encoding, one)

    def _table(self, encoding: Encoding, source: Any) -> Iterator[Prediction]:
        file = isinstance(source, (str, Path))
        where, unread = str(source) if file else "the table", dict[int, str]()
        try:
            if file and Path(source).is_dir():
                next(os.scandir(source), None)  # where it may not be opened, that is the reason
                raise ValueError(f"there are no tables in {where}")
            table = read_table(Path(source), unread) if file else columns_of(source)
            lacking = encoding.lacks(table, where)
        except (ValueError, OSError) as error:
            lacking = str(error)
        if lacking:
            yield Prediction(where, None, None, {}, lacking)
        else:
            found = encoding.readable(table, where, unread)
            yield from self._encoded(*found, encoding.unseen(table), f"{where}: ")

    def _single_rows(self, encoding: Encoding, rows: Iterable[Any]) -> Iterator[Prediction]:
        good, wrong, unseen = [], dict[int, str](), dict[int, tuple[str, ...]]()
        for number, row in enumerate(rows):
            try:
                columns = columns_of(row)
                good.append(encoding(columns, "it"))
                unseen[number] = encoding.unseen(columns).get(0, ())
            except ValueError as error:
                wrong[number] = f"row {number + 1}: {error}"
        yield from self._encoded(torch.cat(good) if good else torch.empty(0), wrong, unseen, "")

    def _encoded(
        self,
        vectors: Tensor,
        wrong: Mapping[int, str],
        unseen: Mapping[int, tuple[str, ...]],
        where: str,
    ) -> Iterator[Prediction]:
        found = iter(self.probabilities(vectors) if len(vectors) else ())
        for row in range(len(vectors) + len(wrong)):
            source = f"{where}row {row + 1}"
            if row in wrong:
                yield Prediction(source, None, None, {}, wrong[row])
            else:
                yield replace(self._prediction(source, next(found)), unseen=unseen.get(row, ()))

    def _prediction(self, source: str, row: Tensor) -> Prediction:
        if not row.isfinite().all():
            why = "the model has no probabilities for it; its values are too far from any known"
            return Prediction(source, None, None, {}, f"{source}: {why}")
        values = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(values, key=values.__getitem__)
        return Prediction(source, label, values[label], values)


def _batches(sources: Iterable[Any], size: int) -> Iterator[list[tuple[str, Any]]]:
    """Yield the sources with their names: a file's own, and the number of what has none."""
    left = (
        (str(one) if isinstance(one, (str, Path)) else f"image {number}", one)
        for number, one in enumerate(sources, 1)
    )
    while batch := list(islice(left, size)):
        yield batch


def _read(name: str, source: Any) -> Tensor | str:
    """Return the image as the model was measured on, or why it cannot be read."""
    held = is_picture(source)
    try:
        return picture_of(source) if held else exact_evaluation(Path(source))
    except FileNotFoundError:
        return f"there is no file {name}"
    except IsADirectoryError:
        return f"there are no images in {name}"
    except (ValueError, OSError) as error:
        return f"{name}: {error}" if held else str(error)


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    method: type[Algorithm] | None = None,
) -> Predictor:
    """Return the model that ``shoal fit`` or ``shoal train`` wrote to a folder.

    Args:
        device: where it predicts; by default a GPU where there is one.
        method: the class of your own method, which a file cannot name.
    """
    folder = Path(path)
    folder = folder.parent if folder.name == models.MODEL else folder
    _check_version(folder / models.CARD)
    return Predictor(models.load(folder, device_of(device), method))


def device_of(asked: str | torch.device | None) -> torch.device:
    """Return the device that was asked for, or a GPU where there is one."""
    there = torch.cuda.is_available()
    try:
        found = torch.device(asked or ("cuda" if there else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"unknown device {asked!r}; one of: cpu, cuda, cuda:0 …") from error
    if found.type not in ("cpu", "cuda") or (found.type == "cuda" and not there):
        usable = "cpu or cuda" if there else "cpu"
        raise ValueError(f"device {asked!r} cannot be used; {usable} can")
    return found


def _check_version(card: Path) -> None:
    if not card.is_file():
        return  # there is a better word for it where it is read
    try:
        found = json.loads(card.read_text("utf-8"))
    except ValueError:
        return
    if not isinstance(found, dict):
        return
    writer = f"shoal {found['shoal']}" if "shoal" in found else "another version of shoal"
    if found.get("schema") != models.SCHEMA:
        raise ValueError(
            f"{card} was written by {writer} (schema {found.get('schema')!r}), and this is shoal "
            f"{__version__}, which reads schema {models.SCHEMA}; install the version that wrote "
            "it, or fit the model again"
        )
    if found.get("shoal", __version__) != __version__:
        warnings.warn(
            f"{card} was written by {writer}, and this is shoal {__version__}; both write models "
            "alike, so it is used",
            stacklevel=3,
        )
