"""Augmented training images: cropped from the cache, or exactly from the original files."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from ..algorithms.forward import Batch
from ..datasets.decoded import Ragged
from ..randomness import Draws
from .augmentation import augment, draw_parameters, gather
from .batches import Source, scaled
from .exact import exact_training
from .fed import Fed
from .sampling import Sampler

Name = Sequence[str | int]


def _view(images: Ragged, indices: Tensor, largest: tuple[int, int], draws: Draws) -> Tensor:
    """Return a view of these images, in 0 … 1."""
    frames = images.frames[indices]
    pixels = gather(images, indices, *largest)
    return augment(pixels, frames, draw_parameters(frames, draws))


class ResidentCrops(Source):
    """Images of several sizes, all on the device.

    ``largest`` height and width are those of all domains, so that one compiled view serves them.
    """

    labels: Tensor

    def __init__(
        self,
        images: Ragged,
        labels: Tensor,
        sampler: Sampler,
        name: Name,
        size: int,
        largest: tuple[int, int],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.register_buffer("labels", labels.to(device), persistent=False)
        self._images = images.to(device)
        self._largest = largest
        self.sampler = sampler
        self.draws = Draws("augmentation", *name, device=device)
        self.size = size
        self._view = _view

    def fuse(self) -> None:
        self._view = torch.compile(_view)

    def forward(self) -> Batch:
        indices = self.sampler(self.size)
        return self._view(self._images, indices, self._largest, self.draws), self.labels[indices]


class FedCrops(Fed):
    """Images of several sizes, mapped into memory."""

    def __init__(
        self,
        images: Ragged,
        labels: Tensor,
        sampler: Sampler,
        name: Name,
        size: int,
        largest: tuple[int, int],
        device: torch.device,
    ) -> None:
        super().__init__(labels, sampler, size, device)
        self._images = images
        self._largest = largest
        self.draws = Draws("augmentation", *name, device=device)
        self._augment = augment

    def fuse(self) -> None:
        self._augment = torch.compile(augment)

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        images = self._images.padded(indices, *self._largest)
        return images, self._images.frames[indices]

    def finish(self, *parts: Tensor) -> Tensor:
        images, frames = parts
        return self._augment(images, frames, draw_parameters(frames, self.draws))


class FedExact(Fed):
    """The original files, each decoded and augmented by Pillow as DomainBed does it."""

    def __init__(
        self,
        paths: Sequence[Path],
        frames: Tensor,
        labels: Tensor,
        sampler: Sampler,
        name: Name,
        size: int,
        device: torch.device,
    ) -> None:
        super().__init__(labels, sampler, size, device)
        self._paths, self._frames = paths, frames
        self.draws = Draws("augmentation", *name)
        ahead = deepcopy(self.draws)
        draw_parameters(frames[:1], ahead)
        self._each = int(ahead.count)  # draws that a step takes
        self._thread_draws = (ahead,)  # as ``_own``
        self._pool = ThreadPoolExecutor(os.cpu_count())

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        (draws,) = self._thread_draws
        draws.count.fill_(step * self._each)
        parameters = draw_parameters(self._frames[indices], draws)
        chosen = ((self._paths[i], parameters.of(k)) for k, i in enumerate(indices.tolist()))
        return (torch.stack(list(self._pool.map(lambda one: exact_training(*one), chosen))),)

    def finish(self, *parts: Tensor) -> Tensor:
        return scaled(parts[0])

    def fetch(self, step: int) -> None:
        super().fetch(step)
        self.draws.count.fill_((step + 1) * self._each)
