"""Batches: one of every training domain for each step, drawn on the device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..algorithms.forward import Batch
from ..internals import mark_dynamic
from ..networks.base import Preprocessing
from ..randomness import Draws

# A weight with a fraction is rounded to so many parts of the weights of its class or domain.
PARTS = 2**40


class Sampler(nn.Module):
    """Draws examples of one domain with replacement, on the device and by a count of steps.

    The method plays no part, so all methods see the same batches. A batch starts with the examples
    of every smaller one.

    Args:
        examples: the indices to draw from.
        labels: of these examples; if given, all classes of the domain are equally likely.
        name: seeds the draws.
        weights: of these examples, to which their probabilities are proportional, in a class if
            there are ``labels``; None if all are equally likely. Whole numbers give the very draws
            of examples that are repeated so often.
    """

    examples: Tensor
    first: Tensor
    counts: Tensor
    ends: Tensor | None

    def __init__(
        self,
        examples: Tensor,
        labels: Tensor | None,
        name: Sequence[str | int],
        device: torch.device,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        if weights is not None:
            drawn = weights > 0
            examples, weights = examples[drawn], weights[drawn]
            labels = None if labels is None else labels[drawn]
        if labels is None:
            counts = torch.tensor([len(examples)])
        else:
            order = labels.argsort(stable=True)
            examples = examples[order]
            weights = None if weights is None else weights[order]
            counts = torch.bincount(labels)
            counts = counts[counts > 0]
        places = []
        if weights is not None:  # an example has as many places as its weight says
            places = [_last_places(part) for part in weights.split(counts.tolist())]
            counts = torch.stack([part[-1] for part in places])
        first = counts.cumsum(0) - counts
        for key, value in (("examples", examples), ("first", first), ("counts", counts)):
            self.register_buffer(key, value.to(device), persistent=False)
        ends = [part + begin for part, begin in zip(places, first, strict=False)]
        self.register_buffer("ends", torch.cat(ends).to(device) if ends else None, persistent=False)
        self.draws = Draws("batches", *name, device=device)

    def forward(self, n: int) -> Tensor:
        """Return the indices of this step's n examples, and advance to the next step."""
        classes, places = (self.draws.bits(2 * n) & (2**62 - 1)).view(n, 2).T
        kind = classes % len(self.counts)
        place = self.first[kind] + places % self.counts[kind]
        if self.ends is not None:
            place = torch.searchsorted(self.ends, place, right=True)
        return self.examples[place]


def _last_places(weights: Tensor) -> Tensor:
    """Return where each example's places end, int64 ``[n]``; their numbers are the weights."""
    ends = weights.double().cumsum(0)
    if bool((weights == weights.round()).all()) and float(ends[-1]) < PARTS:
        return ends.long()
    return (ends / ends[-1] * PARTS).round().long()


class BatchSource(nn.Module, ABC):
    """The batches of one training domain."""

    def fetch(self, step: int) -> None:
        """Copy the data of this step from the host to the device, if they are not there."""

    def fuse(self) -> None:
        """Compile the computation of a batch, if there is much of it."""

    @abstractmethod
    def forward(self) -> Batch:
        """Return the images of the next step, in 0 … 1, and their labels, without a sync."""


class InMemory(BatchSource):
    """Images without augmentation, all on the device."""

    images: Tensor
    labels: Tensor

    def __init__(self, images: Tensor, labels: Tensor, sampler: Sampler, size: int) -> None:
        super().__init__()
        device = sampler.examples.device
        self.register_buffer("images", images.to(device), persistent=False)
        self.register_buffer("labels", labels.to(device), persistent=False)
        self.sampler = sampler
        self.size = size
        self._draw = _draw_batch

    def fuse(self) -> None:
        self._draw = torch.compile(_draw_batch)

    def forward(self) -> Batch:
        # A tensor as long as a batch, because its size can change without another compilation.
        rows = self.labels.new_empty(self.size)
        if self._draw is not _draw_batch:  # compiled
            mark_dynamic(rows)
        return self._draw(self.images, self.labels, self.sampler, rows)


def _draw_batch(images: Tensor, labels: Tensor, sampler: Sampler, rows: Tensor) -> Batch:
    """Return the next batch, with as many examples as ``rows``."""
    indices = sampler(len(rows))
    return scaled(images[indices]), labels[indices]


class Batches(nn.Module):
    """Batches of all training domains, normalised for the network."""

    def __init__(self, sources: Sequence[BatchSource], normalise: "Normalise") -> None:
        super().__init__()
        self.sources = nn.ModuleList(sources)
        self.normalise = normalise

    def fetch(self, step: int) -> None:
        """Copy the data of this step to the device."""
        for source in self.sources:
            source.fetch(step)  # type: ignore[operator]

    def fuse(self) -> None:
        """Compile the computation of batches."""
        for source in self.sources:
            source.fuse()  # type: ignore[operator]

    def forward(self) -> list[Batch]:
        drawn = [source() for source in self.sources]
        return [(self.normalise(images), labels) for images, labels in drawn]


class Normalise(nn.Module):
    """Turns images in 0 … 1 into the inputs of a network; ``channels_last`` in memory."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, preprocessing: Preprocessing | None, channels_last: bool, device: torch.device
    ) -> None:
        super().__init__()
        self.changes = preprocessing is not None
        # Not the layout itself, which pickle cannot store below protocol 4.
        self.channels_last = channels_last
        mean, std = preprocessing or Preprocessing((0.0,) * 3, (1.0,) * 3)
        for name, values in (("mean", mean), ("std", std)):
            row = torch.tensor(values, device=device)[:, None, None]
            self.register_buffer(name, row, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.changes:
            images = (images - self.mean) / self.std
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)


def scaled(images: Tensor) -> Tensor:
    """Return uint8 images in 0 … 1, and floating-point inputs unchanged."""
    return images if images.is_floating_point() else images.float() / 255
