"""One batch of every training domain for each step, made on the device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..algorithms.forward import Batch
from ..networks.base import Preprocessing
from ..randomness import Draws


class Sampler(nn.Module):
    """Draws examples of one domain with replacement, on the device and by a count of steps.

    Nothing about the method enters, so all methods see the same batches; and a batch begins with
    the examples of every smaller one.

    Args:
        examples: the indices to draw from.
        labels: of these examples; given, every class of the domain is equally likely.
        name: what the draws depend on.
    """

    examples: Tensor
    first: Tensor
    counts: Tensor

    def __init__(
        self,
        examples: Tensor,
        labels: Tensor | None,
        name: Sequence[str | int],
        device: torch.device,
    ) -> None:
        super().__init__()
        if labels is None:
            counts = torch.tensor([len(examples)])
        else:
            order = labels.argsort(stable=True)
            examples = examples[order]
            counts = torch.bincount(labels)
            counts = counts[counts > 0]
        first = counts.cumsum(0) - counts
        for key, value in (("examples", examples), ("first", first), ("counts", counts)):
            self.register_buffer(key, value.to(device), persistent=False)
        self.draws = Draws("batches", *name, device=device)

    def forward(self, n: int) -> Tensor:
        """Return the indices of this step's n examples, and go on to the next step."""
        classes, places = (self.draws.bits(2 * n) & (2**62 - 1)).view(n, 2).T
        kind = classes % len(self.counts)
        return self.examples[self.first[kind] + places % self.counts[kind]]


class BatchSource(nn.Module, ABC):
    """Where the batches of one training domain come from."""

    def fetch(self, step: int) -> None:
        """Bring what this step needs from the host to the device; nothing where all is there."""

    def fuse(self) -> None:
        """Have what is computed of a batch compiled; nothing where it is little."""

    @abstractmethod
    def forward(self) -> Batch:
        """Return the images of the next step, in 0 … 1, and their labels; never asks the host."""


class InMemory(BatchSource):
    """Images as they are, all on the device."""

    images: Tensor
    labels: Tensor

    def __init__(self, images: Tensor, labels: Tensor, sampler: Sampler, size: int) -> None:
        super().__init__()
        device = sampler.examples.device
        self.register_buffer("images", images.to(device), persistent=False)
        self.register_buffer("labels", labels.to(device), persistent=False)
        self.sampler = sampler
        self.size = size
        self._draw = _drawn

    def fuse(self) -> None:
        self._draw = torch.compile(_drawn)

    def forward(self) -> Batch:
        # As long as a batch: the size of a tensor may change and leave what is compiled valid.
        rows = self.labels.new_empty(self.size)
        if self._draw is not _drawn:  # compiled
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        return self._draw(self.images, self.labels, self.sampler, rows)


def _drawn(images: Tensor, labels: Tensor, sampler: Sampler, rows: Tensor) -> Batch:
    """Return the next batch, of as many examples as ``rows``."""
    indices = sampler(len(rows))
    return scaled(images[indices]), labels[indices]


class Batches(nn.Module):
    """Batches of all training domains, normalised as the network expects it."""

    def __init__(self, sources: Sequence[BatchSource], normalise: "Normalise") -> None:
        super().__init__()
        self.sources = nn.ModuleList(sources)
        self.normalise = normalise

    def fetch(self, step: int) -> None:
        """Bring what this step needs to the device."""
        for source in self.sources:
            source.fetch(step)  # type: ignore[operator]

    def fuse(self) -> None:
        """Have what is computed of the images compiled."""
        for source in self.sources:
            source.fuse()  # type: ignore[operator]

    def forward(self) -> list[Batch]:
        drawn = [source() for source in self.sources]
        return [(self.normalise(images), labels) for images, labels in drawn]


class Normalise(nn.Module):
    """Images in 0 … 1 to what a network expects; ``channels_last`` is how they lie in memory."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, preprocessing: Preprocessing | None, channels_last: bool, device: torch.device
    ) -> None:
        super().__init__()
        self.changes = preprocessing is not None
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        mean, std = preprocessing or Preprocessing((0.0,) * 3, (1.0,) * 3)
        for name, values in (("mean", mean), ("std", std)):
            row = torch.tensor(values, device=device)[:, None, None]
            self.register_buffer(name, row, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.changes:
            images = (images - self.mean) / self.std
        return images.contiguous(memory_format=self._layout)


def scaled(images: Tensor) -> Tensor:
    """Return uint8 images in 0 … 1; vectors are left as they are."""
    return images if images.is_floating_point() else images.float() / 255
