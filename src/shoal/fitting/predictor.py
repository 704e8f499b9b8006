"""Predictor: a trained model that gives class names and probabilities for files, rows or arrays."""

import math
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from .._version import __version__
from ..algorithms.base import Algorithm
from ..datasets.appearance import Appearance
from ..datasets.domain_columns import texts_of
from ..datasets.encoding import Array, Encoding
from ..datasets.reading import Reading
from ..datasets.tables import read_blocks
from ..documents import damage_named, read_object
from ..files import DEEPEST
from ..monitoring.place import Observed, PlaceReport, report_place
from ..monitoring.reference import ENTRY as REFERENCE
from ..monitoring.reference import FILE as REFERENCE_FILE
from ..monitoring.reference import Reference
from ..networks.inference import for_inference
from ..notebook import html_table
from ..randomness import stream
from ..results.records import CARD, MODEL
from ..runs import model as models
from ..runs.machine import one_thread, usable_devices
from ..tensor_files import read_safetensors
from ..training.batches import Normalise, scaled
from ..training.evaluation import TOGETHER, VECTORS
from ..training.pillow import exact_evaluation
from .adaptation import (
    BATCH_NORM,
    PRIOR,
    T3A,
    correct_shares,
    linear_head,
    predicts_by_network,
    shuffled_batches,
    t3a,
    with_statistics_of,
)
from .adaptation_record import ENTRY as ADAPTATION
from .adaptation_record import AdaptationRecord
from .inputs import (
    columns_by_position,
    columns_of,
    describe,
    files_in,
    frame_maker,
    has_columns,
    is_picture,
    is_row,
    is_unnamed,
    picture_of,
    warn_of_unlike,
    warn_of_unusual,
)
from .temperature import scaled as at_temperature

# Images in a batch, by device: on a CPU, larger batches do not fit the caches.
BATCH = {"cpu": 4, "cuda": 256, "mps": 32}
IMAGE = [3, 224, 224]
# Fewer inputs are not adapted to without a warning.
FEWEST = 30
FIT_AGAIN = "run the 'shoal fit' command again, which builds it from its runs"
# The source of a prediction for a table in memory; a number of the row follows.
TABLE = "the table"

Item = TypeVar("Item")
Output = TypeVar("Output")
# From raw inputs to one row for each.
RowMaker = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image or row.

    Args:
        source: the file, and the number of the row.
        label, probability: of the most probable class; None if there is an ``error``.
        probabilities: of all classes, by name.
        error: why there is no label, for example because the file cannot be read.
        unseen: columns whose category did not occur in training, and is therefore ignored.
        unusual: a few words about each number that is far from all in training, and each value
            that is missing and never was there; of an image, its contrast, sharpness and amount of
            colour are such numbers. The probability means little then.
        features, energy: what ``monitor`` looks at: the inputs of the network's head, or the
            columns of a table, and −log Σ exp(logits).
    """

    source: str
    label: str | None = None
    probability: float | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    unseen: tuple[str, ...] = ()
    unusual: tuple[str, ...] = ()
    features: Array | None = field(default=None, repr=False, compare=False)
    energy: float | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        ranked = sorted(self.probabilities.items(), key=lambda one: -one[1])
        rows: list[tuple[object, ...]] = [(name, f"{100 * p:.1f} %") for name, p in ranked]
        rows += [("error", self.error)] * (self.error is not None)
        rows += [("not seen in training", name) for name in self.unseen]
        rows += [("unusual", words) for words in self.unusual]
        return html_table(rows, title=self.source)


class EncodedRows(NamedTuple):
    """Rows of a table: predictions without labels, and the vectors of those without an error."""

    rows: list[Prediction]
    vectors: Tensor


class Probabilities(nn.Module):
    """Module from raw inputs, uint8 images or vectors, to the probabilities of the classes.

    Args:
        temperature: logits are divided by it.
    """

    def __init__(self, algorithm: Algorithm, channels_last: bool, temperature: float = 1.0) -> None:
        super().__init__()
        self.algorithm, self.temperature = algorithm, temperature
        preprocessing = getattr(algorithm.model, "preprocessing", None)
        self.normalise = Normalise(preprocessing, channels_last, algorithm.device)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.logits(inputs).float() / self.temperature).softmax(-1)

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits, without the temperature."""
        return self.algorithm.predict(self.normalise(scaled(inputs)))

    def observed(self, inputs: Tensor) -> Tensor:
        """Return the probabilities, the energy −log Σ exp(logits) and the features of each input.

        The features of vectors are the vectors. A method that predicts with more than its network
        has none.
        """
        vectors = inputs.ndim == 2
        if vectors or not predicts_by_network(self.algorithm):
            logits, features = self.logits(inputs), inputs if vectors else None
        else:
            features = self.features(inputs)
            logits = self.algorithm.model.classifier(features)  # type: ignore[operator]
        logits = logits.float()
        rows = [(logits / self.temperature).softmax(-1), -logits.logsumexp(-1, keepdim=True)]
        return torch.cat(rows if features is None else [*rows, features.flatten(1).float()], 1)

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head of the network gets."""
        found: Tensor = self.algorithm.model.features(self.normalise(scaled(inputs)))  # type: ignore[operator]
        return found


class Predictor:
    """A trained model that predicts: ``shoal.load`` returns one.

    ``card`` is what the model's file says about it, ``classes`` are the names it predicts,
    ``folder`` is where it was loaded from and ``device`` where it predicts.
    """

    def __init__(self, model: models.Model, folder: Path | None = None) -> None:
        self.card = model.card
        self.folder = folder
        self.classes = model.classes
        self.device = model.algorithm.device
        self._images = len(self.card["shape"]) == 3
        if self._images:
            model.algorithm.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        temperature = temperature_of(self.card)
        self.module = Probabilities(model.algorithm, self._images, temperature).eval()
        # Methods that predict batchwise get batches of the size they were measured with.
        alone = BATCH[self.device.type] if self._images else VECTORS
        self._size = TOGETHER if model.algorithm.predicts_batchwise else alone
        self._fast: Probabilities | None = None
        self.encoding = Encoding.from_card(self.card.get("inputs", {}), self.card["shape"])
        self.reading = Reading.from_json(self.card.get("inputs", {}))
        seen = self.card.get("inputs", {}).get("appearance")
        self._appearance = None if seen is None else Appearance.from_json(seen)

    def _repr_html_(self) -> str:
        card = self.card
        columns = "" if self.encoding is None else ", ".join(c.name for c in self.encoding.columns)
        rows = [
            ("method", card.get("algorithm", "")),
            ("classes", ", ".join(map(str, self.classes))),
            ("columns", columns),
            ("images", " × ".join(map(str, card["shape"])) if self._images else ""),
            ("trained on", ", ".join(card.get("training_domains", ()))),
            ("verdict", " ".join(card.get("estimate", {}).get("sentences", ())[:2])),
            ("folder", "" if self.folder is None else self.folder),
        ]
        return html_table([row for row in rows if row[1]], title="A trained model")

    @property
    def takes_rows(self) -> bool:
        """Whether this model takes rows of a table rather than images."""
        return self.encoding is not None

    @overload
    def predict(self, sources: Any, *, adapt: bool = False) -> list[Prediction]: ...

    @overload
    def predict(
        self, sources: Any, *, as_frame: Literal[False], adapt: bool = False
    ) -> list[Prediction]: ...

    @overload
    def predict(self, sources: Any, *, as_frame: Literal[True], adapt: bool = False) -> Any: ...

    def predict(self, sources: Any, *, as_frame: bool = False, adapt: bool = False) -> Any:
        """Return the prediction for each image or row, in order.

        An image or row that cannot be read gets an ``error``, and the others are still classified.
        So does a folder without images or tables; its files with other suffixes are skipped.

        Args:
            sources: one or several of these. For a model of images: image files, folders, PIL
                images, uint8 arrays ``[H, W, 3]``. For a model of a table: CSV or Parquet files,
                folders, data frames, mappings from columns to lists of values, or single rows:
                mappings from columns to one value each. Columns are matched by name.
            as_frame: for one data frame of pandas, polars or pyarrow; return another one, with the
                columns of ``shoal predict --csv`` and a row for each of its rows.
            adapt: adapt the model to all these inputs first, as ``adapted`` does.
        """
        make_frame = frame_maker(sources) if as_frame else None
        found = self.adapted(sources) if adapt else list(self.predictions(sources))
        return found if make_frame is None else make_frame(self._as_columns(found))

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of ``classes``, ``[n, C]``; raise if an input cannot be read.

        Args:
            X: one or several sources of ``predict``; or vectors ``[n, d]``, if the model was fitted
                to vectors without names.
        """
        if self.encoding is None or not (has_columns(X) or hasattr(X, "dtype")):
            found = self.predict(X)
            for one in found:
                if one.error is not None:
                    raise ValueError(one.error)
            kind = "image" if self._images else "row"
            warn_of_unusual(kind, [(one.source, one.unusual) for one in found if one.unusual])
            rows = [[one.probabilities[name] for name in self.classes] for one in found]
            return np.array(rows, dtype=np.float32).reshape(len(rows), len(self.classes))
        if has_columns(X):
            table = columns_of(X)
        elif is_unnamed(self.encoding):
            table = columns_by_position(X, [column.name for column in self.encoding.columns])
        else:
            raise self._refusal(describe(X))
        vectors = self.encoding(table, "X")
        warn_of_unlike(self.encoding, table)
        probabilities: Array = self.probabilities(vectors).numpy()
        if not np.isfinite(probabilities).all():
            raise ValueError("the probabilities are not finite; X is far from all in training")
        return probabilities

    def monitor(self, sources: Any, labels: Sequence[Any] | None = None) -> PlaceReport:
        """Return what to expect of this model on data from one place that it has never seen.

        What is known of other places was measured by ``shoal fit``, on domains that it left out.
        Raise if an input cannot be read.

        Args:
            sources: as in ``predict``.
            labels: the true class of every input, if they are known: names, or numbers that are
                classes of a table. Then the expectation is compared with the accuracy.
        """
        found = list(self.observations(sources))
        for one in found:
            if one.error is not None:
                raise ValueError(one.error)
        texts = None
        if labels is not None:
            texts = texts_of({"label": list(labels)}, "label", Path("labels"))
        return self.report_on(found, texts)

    @cached_property
    def reference(self) -> Reference:
        """What is known of places, from the domains that were left out; raise if it is nothing."""
        if REFERENCE not in self.card:
            raise ValueError(
                "this model knows nothing of domains that were left out, so there is nothing to "
                "expect at a new one; 'shoal fit' writes models that do. If this is one of an "
                "earlier version, run the same command again: no finished run is repeated"
            )
        path = None if self.folder is None else self.folder / REFERENCE_FILE
        arrays = None
        if path is not None and path.exists():
            with damage_named(path, FIT_AGAIN):
                arrays = {name: one.numpy() for name, one in read_safetensors(path).items()}
        found = Reference.from_json(self.card[REFERENCE], arrays)
        if found.shares.keys() != set(self.classes):
            raise ValueError(
                f"the entry {REFERENCE!r} of the model's card has shares of other classes than the "
                f"model's: it is damaged, or another's; {FIT_AGAIN}"
            )
        return found

    def observations(self, sources: Any) -> Iterator[Prediction]:
        """Yield the predictions of ``predict`` with features and energy, for ``report_on``."""
        classes = len(self.classes)
        for one, row in self._rows(sources, self._quick().observed):
            if row is None:
                yield one
                continue
            found = self._labelled(one, row[:classes])
            features = row[classes + 1 :].numpy()
            yield replace(
                found,
                features=features if len(features) else None,
                energy=float(row[classes]) if self._images else None,
            )

    def report_on(
        self, found: Sequence[Prediction], labels: Sequence[str] | None = None
    ) -> PlaceReport:
        """Return the report of ``monitor`` on observations, none of which has an error."""
        reference = self.reference
        rows = [[one.probabilities[name] for name in self.classes] for one in found]
        p = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.classes))
        # The reference was made without the temperature.
        logs = np.log(np.maximum(p, np.finfo(np.float32).tiny)) * self.module.temperature
        logs -= np.logaddexp.reduce(logs, axis=1, keepdims=True)
        features = [one.features for one in found if one.features is not None]
        energies = [one.energy for one in found if one.energy is not None]
        columns = () if self.encoding is None else self.encoding.columns
        seen = Observed(
            log_probabilities=logs,
            features=np.stack(features) if features else None,
            columns=[part for column in columns for part in column.parts],
            energy=float(np.mean(energies)) if energies else None,
        )
        return report_place(reference, self.classes, seen, labels, self.module.temperature)

    def predictions(self, sources: Any) -> Iterator[Prediction]:
        """Yield the predictions of ``predict`` one by one, as soon as each is known."""
        for one, row in self._rows(sources, self._quick()):
            yield one if row is None else self._labelled(one, row)

    def adapted(self, sources: Any) -> list[Prediction]:
        """Return the predictions of ``predict`` after adapting the model to these inputs together.

        The adaptation is the one that helped on the domains that ``shoal fit`` left out; raise if
        none did. No labels are used. The inputs should come from one place, a hundred or more; warn
        if there are fewer than ``FEWEST``.
        """
        record = self.adaptation
        if record.offered is None:
            raise ValueError(record.refusal())
        sources = list(self._each(sources))
        module = self.module
        if record.offered == BATCH_NORM:
            module = with_statistics_of(module, self._shuffled(sources))
        make = module.features if record.offered == T3A else module.logits
        rows = [
            (one, row) if row is None or row.isfinite().all() else (_not_finite(one), None)
            for one, row in self._rows(sources, make)
        ]
        outputs = [row for _, row in rows if row is not None]
        if not outputs:
            return [one for one, _ in rows]
        if len(outputs) < FEWEST:
            inputs = "input says" if len(outputs) == 1 else "inputs say"
            warnings.warn(
                f"{len(outputs)} {inputs} little about a place, so adapting can do harm; give it a "
                "hundred or more, or predict without adapting",
                stacklevel=2,
            )
        shares = np.array([record.shares[name] for name in self.classes])
        logs = self.adapted_logs(record.offered, torch.stack(outputs), shares)
        found = iter(torch.from_numpy(at_temperature(logs, record.temperature)))
        return [one if row is None else self._labelled(one, next(found)) for one, row in rows]

    @property
    def adaptation(self) -> AdaptationRecord:
        """What adaptations did on the domains left out; raise if the card has nothing of it."""
        if ADAPTATION not in self.card:
            raise ValueError(
                "no adaptation of this model was tried on domains that were left out; 'shoal fit' "
                "tries them. If this is a model of an earlier version, run the same command again: "
                "no finished run is repeated"
            )
        return AdaptationRecord.from_json(self.card[ADAPTATION], self.classes)

    def adapted_logs(self, name: str, outputs: Tensor, shares: Array) -> Array:
        """Return the adapted log-probabilities, float64 ``[n, C]``, without a temperature.

        Args:
            name: of the adaptation.
            outputs: of the network for all inputs: features for T3A, otherwise logits.
            shares: of the classes in training, ``[C]``.
        """
        if name == T3A:
            head = linear_head(self.module.algorithm)
            if head is None:
                raise ValueError(
                    "T3A needs a linear head on features, which this model does not have; the "
                    "card is not the model's, or is damaged"
                )
            outputs = t3a(outputs, head.weight.cpu(), head.bias.cpu())
        logs: Array = outputs.double().log_softmax(-1).numpy()
        return correct_shares(logs, shares) if name == PRIOR else logs

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return ``[n, C]`` for uint8 images ``[n, 3, 224, 224]`` or float32 vectors ``[n, d]``."""
        return self.outputs(self._quick(), inputs)

    def _quick(self) -> Probabilities:
        """Return ``module``; for images on a CPU, a copy that is prepared for inference once."""
        if self._fast is None:
            self._fast = self.module
            if self.device.type == "cpu" and list(self.card["shape"]) == IMAGE:
                noise = torch.rand(2, *IMAGE, generator=stream("inference")).mul(256).byte()
                self._fast = for_inference(self.module, lambda module: module.observed(noise))
        return self._fast

    def outputs(self, make: RowMaker, inputs: Tensor) -> Tensor:
        """Return what a part of ``module`` gives for inputs as in ``probabilities``."""
        if inputs.is_complex():
            raise ValueError(f"inputs must be real numbers, got {inputs.dtype}")
        run = partial(self._run, make)
        return torch.cat(list(in_threads(run, inputs.split(self._size), self.device)))

    def _run(self, make: RowMaker, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return make(inputs.to(self.device)).cpu()

    def _rows(self, sources: Any, make: RowMaker) -> Iterator[tuple[Prediction, Tensor | None]]:
        """Yield for each input a prediction without its label, and the row that ``make`` gives.

        There is no row if there is an error.
        """
        if self.encoding is not None:
            yield from self._table_rows(self.encoding, sources, make)
        else:
            yield from self._image_rows(sources, make)

    def _shuffled(self, sources: Sequence[Any]) -> Iterator[Tensor]:
        """Yield the images that can be read, in ``shuffled_batches``."""
        for some in shuffled_batches(len(sources)):
            read = [_read("", sources[k], self.reading) for k in some.tolist()]
            good = [image for image in read if isinstance(image, Tensor)]
            if good:
                yield torch.stack(good).to(self.device)

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

    def _image_rows(
        self, sources: Any, make: RowMaker
    ) -> Iterator[tuple[Prediction, Tensor | None]]:
        if list(self.card["shape"]) != IMAGE:
            raise ValueError(
                f"the model takes inputs of shape {self.card['shape']}, but predict() reads files "
                f"as {IMAGE}; pass tensors to probabilities() instead"
            )
        batches = _batches(self._each(sources), self._size)
        for found in in_threads(partial(self._read_and_run, make), batches, self.device):
            yield from found

    def _read_and_run(
        self, make: RowMaker, sources: Sequence[tuple[str, Any]]
    ) -> list[tuple[Prediction, Tensor | None]]:
        read = [_read(name, one, self.reading) for name, one in sources]
        good = [image for image in read if isinstance(image, Tensor)]
        rows: Iterator[Tensor] = iter(())
        unusual: Iterator[tuple[str, ...]] = repeat(())
        if good:
            images = torch.stack(good)
            rows = iter(self._run(make, images))
            if self._appearance is not None:  # cards of older versions have none
                unusual = iter(self._appearance.unusual(images))
        return [
            (Prediction(source=name, unusual=next(unusual)), next(rows))
            if isinstance(image, Tensor)
            else (Prediction(source=name, error=image), None)
            for (name, _), image in zip(sources, read, strict=True)
        ]

    def _table_rows(
        self, encoding: Encoding, sources: Any, make: RowMaker
    ) -> Iterator[tuple[Prediction, Tensor | None]]:
        for single, group in groupby(self._each(sources), is_row):
            if single:
                yield from self._outputs_of([_single_rows(encoding, group)], make)
            else:
                for one in group:
                    yield from self._outputs_of(_rows_of_table(encoding, one), make)

    def _outputs_of(
        self, parts: Iterable[EncodedRows], make: RowMaker
    ) -> Iterator[tuple[Prediction, Tensor | None]]:
        """Yield what ``_rows`` does for the rows of one source, which come in parts.

        The batches are those of all its rows together, wherever a part ends.
        """
        waiting, vectors = deque[Prediction](), torch.empty(0)
        for part in chain(parts, [None]):
            if part is not None:
                waiting.extend(part.rows)
                vectors = torch.cat([vectors, part.vectors]) if len(vectors) else part.vectors
            left = len(vectors) % self._size if part is not None else 0
            ready, vectors = vectors[: len(vectors) - left], vectors[len(vectors) - left :]
            for output in self.outputs(make, ready) if len(ready) else ():
                while waiting[0].error is not None:
                    yield waiting.popleft(), None
                yield waiting.popleft(), output
            while waiting and waiting[0].error is not None:
                yield waiting.popleft(), None

    def _labelled(self, one: Prediction, row: Tensor) -> Prediction:
        """Return a prediction with the label that probabilities ``[C]`` give."""
        if not row.isfinite().all():
            return _not_finite(one)
        values = dict(zip(self.classes, row.tolist(), strict=True))
        label = max(values, key=values.__getitem__)
        return replace(one, label=label, probability=values[label], probabilities=values)

    def _as_columns(self, found: Sequence[Prediction]) -> dict[str, list[Any]]:
        """Return the predictions of one data frame as columns."""
        if found and found[0].source == TABLE:  # no row was read
            raise ValueError(found[0].error)
        names = ("class", "probability", *self.classes, "error", "unusual")
        if twice := [name for name in self.classes if names.count(name) > 1]:
            raise ValueError(
                f"a class is called {twice[0]!r}, as another column of the frame; call "
                "predict_proba() instead"
            )
        columns: dict[str, list[Any]] = {
            "class": [one.label for one in found],
            "probability": [one.probability for one in found],
        }
        for name in self.classes:
            columns[name] = [one.probabilities.get(name) for one in found]
        columns["error"] = [one.error for one in found]
        columns["unusual"] = ["; ".join(one.unusual) for one in found]
        return columns


def _rows_of_table(encoding: Encoding, source: Any) -> Iterator[EncodedRows]:
    """Yield the rows of a file or of a table in memory; those of a file in blocks.

    What cannot be read is a row with an error, after which nothing comes.
    """
    file = isinstance(source, (str, Path))
    where, unread, first = str(source) if file else TABLE, dict[int, str](), 0
    try:
        if file and Path(source).is_dir():
            # Raises the better reason if it cannot be opened.
            deep = f", {DEEPEST} folders deep at most" if any(os.scandir(source)) else ""
            raise ValueError(f"there are no tables in {where}{deep}")
        for table in read_blocks(Path(source), unread) if file else [columns_of(source)]:
            if not first and (refused := encoding.mismatch(table, where)):
                raise ValueError(refused)
            wrong = {row - first: unread.pop(row) for row in list(unread)}
            vectors, reasons = encoding.encode_readable(table, where, wrong, first)
            unseen, unusual = encoding.unseen(table), encoding.unusual(table)
            rows = [
                Prediction(source=f"{where}: row {first + row + 1}", error=reasons[row])
                if row in reasons
                else Prediction(
                    source=f"{where}: row {first + row + 1}",
                    unseen=unseen.get(row, ()),
                    unusual=unusual.get(row, ()),
                )
                for row in range(len(vectors) + len(reasons))
            ]
            yield EncodedRows(rows, vectors)
            first += len(rows)
    except (ValueError, OSError) as error:
        yield EncodedRows([Prediction(source=where, error=str(error))], torch.empty(0))


def _single_rows(encoding: Encoding, given: Iterable[Any]) -> EncodedRows:
    """Return rows that are mappings from columns to one value each."""
    rows, vectors = list[Prediction](), []
    for number, row in enumerate(given, 1):
        source = f"row {number}"
        try:
            columns = columns_of(row)
            vectors.append(encoding(columns, "it"))
            unseen = encoding.unseen(columns).get(0, ())
            unusual = encoding.unusual(columns).get(0, ())
            rows.append(Prediction(source=source, unseen=unseen, unusual=unusual))
        except ValueError as error:
            rows.append(Prediction(source=source, error=f"{source}: {error}"))
    return EncodedRows(rows, torch.cat(vectors) if vectors else torch.empty(0))


def _not_finite(one: Prediction) -> Prediction:
    why = "the probabilities are not finite; its values are far from all seen in training"
    return replace(one, error=f"{one.source}: {why}")


def _batches(sources: Iterable[Any], size: int) -> Iterator[list[tuple[str, Any]]]:
    """Yield the sources in batches with their names: the file's path, or "image 1" in memory."""
    left = (
        (str(one) if isinstance(one, (str, Path)) else f"image {number}", one)
        for number, one in enumerate(sources, 1)
    )
    while batch := list(islice(left, size)):
        yield batch


def _read(name: str, source: Any, reading: Reading) -> Tensor | str:
    """Return the image as in evaluation, or the reason why it cannot be read."""
    in_memory = is_picture(source)
    try:
        if in_memory:
            return picture_of(source, reading)
        return exact_evaluation(Path(source), reading)
    except FileNotFoundError:
        return f"there is no file {name}"
    except IsADirectoryError:
        return f"there are no images in {name}"
    except (ValueError, OSError) as error:
        return f"{name}: {error}" if in_memory else str(error)


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
    model = models.load(folder, device_of(device), method)
    with damage_named(folder / CARD, FIT_AGAIN):
        return Predictor(model, folder)


def temperature_of(card: Mapping[str, Any]) -> float:
    """Return the temperature of a model's probabilities; 1 if its card has none."""
    found = card.get("temperature", 1.0)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < math.inf:
        raise ValueError(
            f"the temperature in {CARD} must be a number above 0, got {found!r}; the file was "
            "changed by hand, or is damaged"
        )
    return float(found)


def device_of(name: str | torch.device | None) -> torch.device:
    """Return the device of this name; None is an NVIDIA GPU if there is one, else the CPU."""
    usable = usable_devices()
    try:
        found = torch.device(name or ("cuda" if "cuda" in usable else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}; one of: cpu, cuda, cuda:0, mps …") from error
    if found.type not in usable:
        raise ValueError(f"device {name!r} cannot be used here; use {' or '.join(usable)}")
    return found


def _check_version(card: Path) -> None:
    if not card.is_file():
        return  # loading it raises a better error
    try:
        found = read_object(card)
    except ValueError:
        return
    writer = f"shoal {found['shoal']}" if "shoal" in found else "another version of shoal"
    if found.get("schema") != models.SCHEMA:
        raise ValueError(
            f"{card} was written by {writer} (schema {found.get('schema')!r}), but shoal "
            f"{__version__} reads schema {models.SCHEMA}; install the version that wrote it, or "
            "fit the model again"
        )
    if _numbers(str(found.get("shoal", ""))) > _numbers(__version__):
        warnings.warn(
            f"{card} was written by {writer}; it is used, because shoal {__version__} writes "
            "models in the same format",
            stacklevel=3,
        )


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version, which compare as versions do."""
    return [int(number[:9]) for number in re.findall(r"\d+", version)]
