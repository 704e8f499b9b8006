"""A fitted model: class names and probabilities for files, rows or arrays."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..datasets.encoding import Encoding
from ..datasets.table_files import read_table
from ..protocol import model as models
from ..training.batches import Normalise, scaled
from ..training.evaluation import TOGETHER
from ..training.exact import exact_evaluation
from .threads import in_threads

# Images that are classified together: on a CPU more would not stay in its caches.
BATCH = {"cpu": 4, "cuda": 256}
IMAGE = [3, 224, 224]


@dataclass(frozen=True)
class Prediction:
    """What a model says of one file or row.

    ``error`` says why there is no label: the file could not be read. ``probabilities`` are of all
    classes, by name.
    """

    source: str
    label: str | None
    probability: float | None
    probabilities: Mapping[str, float]
    error: str | None = None


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
        self._size = TOGETHER if model.algorithm.together else alone
        columns = self.card.get("inputs", {}).get("columns")
        self._encoding = Encoding.from_json(columns) if columns else None

    @property
    def takes_rows(self) -> bool:
        """Whether it is a model of a table, and no one of images."""
        return self._encoding is not None

    def predict(self, sources: Any) -> list[Prediction]:
        """Return what the model says of each file or row, in order.

        Args:
            sources: paths of images; or for a model of tables the path of one, CSV or Parquet, or
                a mapping from columns to values, or several of them. A file or row that cannot be
                read gets an ``error``, and the others are classified all the same.
        """
        return list(self.predictions(sources))

    def predictions(self, sources: Any) -> Iterator[Prediction]:
        """Yield what ``predict`` returns, as soon as it is known."""
        if self._encoding is not None:
            yield from self._rows(self._encoding, sources)
        elif isinstance(sources, (str, Path)):
            yield from self._files([sources])
        else:
            yield from self._files(sources)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return ``[n, C]`` for uint8 images ``[n, 3, 224, 224]`` or float32 vectors ``[n, d]``."""
        return torch.cat(list(in_threads(self._run, inputs.split(self._size), self.device)))

    def _run(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.module(inputs.to(self.device))
        return found.cpu()

    def _files(self, paths: Iterable[str | Path]) -> Iterator[Prediction]:
        if list(self.card["shape"]) != IMAGE:
            raise ValueError(
                f"the model takes inputs of shape {self.card['shape']}; files can only be given to "
                f"models of {IMAGE}"
            )
        batches = _batches(paths, self._size)
        for found in in_threads(self._classified, batches, self.device):
            yield from found

    def _classified(self, paths: Sequence[str | Path]) -> list[Prediction]:
        read = [_read(Path(path)) for path in paths]
        good = [image for image in read if isinstance(image, Tensor)]
        rows = iter(self._run(torch.stack(good)) if good else ())
        return [
            self._prediction(str(path), next(rows))
            if isinstance(image, Tensor)
            else Prediction(str(path), None, None, {}, image)
            for path, image in zip(paths, read, strict=True)
        ]

    def _rows(self, encoding: Encoding, source: Any) -> Iterator[Prediction]:
        if isinstance(source, Mapping):
            table, where = source, "the table"
        elif isinstance(source, (str, Path)):
            where = str(source)
            try:
                table = read_table(Path(source))
            except (ValueError, OSError) as error:
                yield Prediction(where, None, None, {}, str(error))
                return
        else:
            for one in source:
                yield from self._rows(encoding, one)
            return
        if lacking := encoding.lacks(table, where):
            yield Prediction(where, None, None, {}, lacking)
            return
        yield from self._encoded_rows(encoding, table, where)

    def _encoded_rows(
        self, encoding: Encoding, table: Mapping[str, Sequence[Any]], where: str
    ) -> Iterator[Prediction]:
        vectors, wrong = encoding.readable(table, where)
        found = iter(self.probabilities(vectors) if len(vectors) else ())
        for row in range(len(vectors) + len(wrong)):
            source = f"{where}: row {row + 1}"
            if row in wrong:
                yield Prediction(source, None, None, {}, wrong[row])
            else:
                yield self._prediction(source, next(found))

    def _prediction(self, source: str, row: Tensor) -> Prediction:
        values = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(values, key=values.__getitem__)
        return Prediction(source, label, values[label], values)


def _batches(paths: Iterable[str | Path], size: int) -> Iterator[list[str | Path]]:
    left = iter(paths)
    while batch := list(islice(left, size)):
        yield batch


def _read(path: Path) -> Tensor | str:
    """Return the image as the model was measured on, or why it cannot be read."""
    try:
        return exact_evaluation(path)
    except FileNotFoundError:
        return f"there is no file {path}"
    except (ValueError, OSError) as error:
        return str(error)
