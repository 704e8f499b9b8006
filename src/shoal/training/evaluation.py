"""Evaluation: predictions, accuracy and calibration of a method on splits of a data set."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..catalogue import StepKind
from ..results.records import Record
from ..scalars import widest

# Images in a batch: DomainBed's number for a method that predicts a batch as a whole; otherwise
# enough to fill a GPU, and few enough for the caches of a CPU.
TOGETHER = 64
ALONE = {"cuda": (1024, 256), "mps": (256, 32), "cpu": (128, 32)}  # small images, and large ones
VECTORS = 4096
BINS = 15

# The names of a domain and of a split.
SplitKey = tuple[str, str]


@dataclass(frozen=True)
class EvaluationSet:
    """Examples of one domain: all its images (uint8) or vectors, the indices to use, their labels.

    ``indices`` are on the device of the images, ``labels`` on the host.
    """

    images: Tensor
    indices: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Outcome:
    """The prediction of a method for each example, and its probability."""

    labels: Tensor
    predictions: Tensor
    confidences: Tensor

    @staticmethod
    def of_logits(labels: Tensor, logits: Tensor) -> "Outcome":
        """Return the outcome of logits ``[n, C]``."""
        confidences, predictions = _probabilities(logits).max(-1)
        return Outcome(labels, predictions, confidences)

    @property
    def right(self) -> Tensor:
        return self.predictions == self.labels

    @property
    def accuracy(self) -> float:
        return float(self.right.double().mean())

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (Guo et al., 2017) over 15 bins of equal width."""
        bins = (self.confidences * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(
            0, bins, self.confidences.double() - self.right.double()
        )
        return float(gaps.abs().sum() / len(self.labels))

    def confusion(self, classes: int) -> Tensor:
        """Return how often label i was predicted as class j, ``[C, C]``."""
        pairs = self.labels * classes + self.predictions
        return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


Images = Callable[[Tensor], Tensor]
# Returns the probability of each prediction, and the prediction.
Classify = Callable[[Tensor], tuple[Tensor, Tensor]]


class CapturedCall:
    """Call to replay a function of one tensor, captured in a CUDA graph, on other values.

    It follows changes of weights in place.
    """

    def __init__(self, function: Classify, inputs: Tensor) -> None:
        self._inputs = inputs.clone()
        warming = torch.cuda.Stream(inputs.device)
        warming.wait_stream(torch.cuda.current_stream(inputs.device))
        with torch.cuda.stream(warming):
            for _ in range(2):
                function(self._inputs)
        torch.cuda.current_stream(inputs.device).wait_stream(warming)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._found = function(self._inputs)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        self._inputs.copy_(inputs)
        self._graph.replay()
        first, second = self._found
        return first.clone(), second.clone()  # the next call writes over them


class Evaluation:
    """Call for the outcome of a method on each part of the data; the mode of the method stays.

    Args:
        prepare: turns uint8 images on the device into the network's inputs.
        precision: returns the context in which the network runs.
        kind: how a batch goes from images to predictions, as in ``Step``: "compiled", as a CUDA
            "graph", or "eager". The first two are for one batch size.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        parts: Mapping[SplitKey, EvaluationSet],
        prepare: Images,
        precision: Callable[[], AbstractContextManager[object]],
        kind: StepKind = "eager",
    ) -> None:
        self.parts = parts
        self.algorithm, self.prepare, self._precision = algorithm, prepare, precision
        self._device = algorithm.device
        self._kind: StepKind = "eager" if algorithm.predicts_batchwise else kind
        self._classify: Classify = partial(_classify, algorithm, prepare)

    def __call__(self) -> dict[SplitKey, Outcome]:
        with eval_mode(self.algorithm):
            found = {
                place: [self._classify_batch(images) for images in self.batches(part)]
                for place, part in self.parts.items()
            }
        # At the end, so that the device is waited for once.
        return {place: _outcome(self.parts[place], batches) for place, batches in found.items()}

    def logits(self, part: EvaluationSet) -> Iterator[Tensor]:
        """Yield the logits of a part's images, batch by batch, without compilation."""
        with eval_mode(self.algorithm):
            for images in self.batches(part):
                with self._precision():
                    yield self.algorithm.predict(self.prepare(images))

    def warm_up(self) -> None:
        """Compile or capture what a call needs."""
        captures = self._device.type == "cuda" and self.algorithm.capture != "eager"
        # With micro-batches, a call holds the network many times and would compile each of them.
        if self.algorithm.micro_batch is not None or (self._kind == "graph" and not captures):
            self._kind = "eager"
        if self._kind == "compiled":
            self._classify = partial(torch.compile(_classify), self.algorithm, self.prepare)
        with eval_mode(self.algorithm):
            for part in list(self.parts.values())[:1]:
                images = next(self.batches(part))
                self._classify_batch(images)
                if self._kind == "graph":
                    with self._precision():
                        self._classify = CapturedCall(self._classify, self._filled(images))

    def _classify_batch(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of each prediction, and the prediction."""
        n = len(images)
        with self._precision():
            confidences, predictions = self._classify(self._filled(images))
        return confidences[:n], predictions[:n]

    def _filled(self, images: Tensor) -> Tensor:
        """Return images of the one batch size, where it must be one; the last ones do not count."""
        n, size = len(images), self.size(images)
        if self._kind == "eager" or n == size:
            return images
        return images[torch.arange(size, device=images.device) % n]

    def batches(self, part: EvaluationSet) -> Iterator[Tensor]:
        """Yield the part's images on the method's device."""
        chunks = part.indices.split(self.size(part.images))
        if part.images.device == self._device:
            for indices in chunks:
                yield part.images[indices]
            return
        with ThreadPoolExecutor(1) as pool:  # reads the next batch while one is classified
            waiting = pool.submit(part.images.__getitem__, chunks[0])
            for following in (*chunks[1:], None):
                images = waiting.result()
                if following is not None:
                    waiting = pool.submit(part.images.__getitem__, following)
                yield images.to(self._device, non_blocking=True)

    def size(self, images: Tensor) -> int:
        """Return how many such images are in a batch."""
        if self.algorithm.predicts_batchwise:
            return TOGETHER
        if images.ndim == 2:
            return VECTORS
        return ALONE[self._device.type][images.ndim == 4 and images.shape[-1] >= 64]


def _classify(algorithm: Algorithm, prepare: Images, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probability of each prediction, and the prediction."""
    logits = algorithm.predict(prepare(images))
    confidences, predictions = _probabilities(logits).max(-1)
    return confidences, predictions


def _probabilities(logits: Tensor) -> Tensor:
    return logits.to(widest(logits.device)).softmax(-1)


@contextmanager
def eval_mode(algorithm: Algorithm) -> Iterator[None]:
    """Put the method into eval mode, without gradients, inside the block."""
    training = algorithm.training
    algorithm.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        algorithm.train(training)


def _outcome(part: EvaluationSet, batches: list[tuple[Tensor, Tensor]]) -> Outcome:
    confidences = torch.cat([confidence for confidence, _ in batches]).cpu()
    predictions = torch.cat([prediction for _, prediction in batches]).cpu()
    return Outcome(part.labels, predictions, confidences)


def record_of(
    step: int,
    terms: Mapping[str, float],
    found: Mapping[SplitKey, Outcome],
    extra: Mapping[str, Any],
) -> Record:
    """Return the record of what was found after update ``step``."""
    accuracy: dict[str, dict[str, float]] = {}
    error: dict[str, dict[str, float]] = {}
    for (domain, split), outcome in found.items():
        accuracy.setdefault(domain, {})[split] = outcome.accuracy
        error.setdefault(domain, {})[split] = outcome.calibration_error
    return Record(step=step, accuracy=accuracy, calibration_error=error, terms=terms, extra=extra)


@dataclass(frozen=True)
class HeadPass:
    """Features ``[n, p]`` of the classifier, its logits ``[n, C]``, and labels ``[n]``."""

    features: Tensor
    logits: Tensor
    labels: Tensor


def classifier_of(evaluate: Evaluation) -> nn.Module:
    """Return the classifier w_ω of the evaluated method."""
    model: Any = evaluate.algorithm.model
    classifier: nn.Module = model.classifier
    return classifier


def head_passes(evaluate: Evaluation) -> dict[SplitKey, HeadPass]:
    """Return the inputs and outputs of the classifier on each part, on the device.

    A hook records them: they are those of the prediction, whatever the method adds to its inputs.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    found = {}
    hook = classifier_of(evaluate).register_forward_hook(
        lambda _, given, logits: seen.append((given[0].float(), logits.float()))
    )
    try:
        for place, part in evaluate.parts.items():
            seen.clear()
            for _ in evaluate.logits(part):
                pass
            found[place] = _head_pass(part, seen)
    finally:
        hook.remove()
    return found


def _head_pass(part: EvaluationSet, seen: list[tuple[Tensor, Tensor]]) -> HeadPass:
    passed = sum(len(logits) for _, logits in seen)
    if passed != len(part):
        raise ValueError(
            "statistics of the head need a method that sends each image through model.classifier "
            f"once, got {passed} passes for {len(part)} images"
        )
    features, logits = (torch.cat(tensors) for tensors in zip(*seen, strict=True))
    return HeadPass(features.flatten(1), logits, part.labels.to(logits.device))
