"""Streaming: training images that are prepared on the host, a few steps ahead of the device."""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..algorithms.forward import Batch
from ..datasets.decoded import Ragged
from ..datasets.reading import AS_STORED, Reading
from ..randomness import Draws
from .augmentation import augment, draw_parameters, gather
from .augmentation_kernels import augment_resident, kernels_apply
from .batches import BatchSource, Sampler, scaled
from .pillow import exact_training

AHEAD = 2
Made = TypeVar("Made")


class Prefetcher(Generic[Made]):
    """Calls ``make(step)`` in a thread for the steps that come next."""

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, "batches")
        self._waiting: dict[int, Future[Made]] = {}

    def __call__(self, step: int) -> Made:
        """Return the result for this step, and start on the next ones."""
        if step not in self._waiting:  # the first step, or after a jump
            for future in self._waiting.values():
                future.cancel()
            self._waiting = {}
        for following in range(step, step + 1 + AHEAD):
            if following not in self._waiting:
                self._waiting[following] = self._pool.submit(self._make, following)
        return self._waiting.pop(step).result()


class Streamed(BatchSource):
    """Batches that the host prepares and copies into buffers at fixed addresses.

    ``sampler`` counts the steps that were fetched, as if it drew on the device, so that a run can
    resume with its images in another place.
    """

    def __init__(self, labels: Tensor, sampler: Sampler, size: int, device: torch.device) -> None:
        super().__init__()
        self.all_labels = labels
        self.sampler = sampler
        self.size = size
        # The thread's own copy, which is ahead; in a tuple, to keep it out of the state.
        self._own = (deepcopy(sampler),)
        self._ahead = Prefetcher(self._make)
        self._held: list[tuple[Tensor, ...]] = []
        self._pinned = device.type == "cuda"
        self._device = device
        self._buffers_made = False

    def _make(self, step: int) -> tuple[Tensor, ...]:
        (sampler,) = self._own
        sampler.draws.count.fill_(step)
        indices = sampler(self.size)
        made = (self.all_labels[indices], *self.read(indices, step))
        return tuple(tensor.pin_memory() for tensor in made) if self._pinned else made

    @abstractmethod
    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return the data of these examples for the device, on the host."""

    @abstractmethod
    def finish(self, *parts: Tensor) -> Tensor:
        """Return images in 0 … 1 from the result of ``read``, on the device."""

    def fetch(self, step: int) -> None:
        made = self._ahead(step)
        if not self._buffers_made:
            for k, tensor in enumerate(made):
                buffer = torch.empty_like(tensor, device=self._device)
                self.register_buffer(f"part_{k}", buffer, persistent=False)
            self._buffers_made = True
        for k, tensor in enumerate(made):
            self.get_buffer(f"part_{k}").copy_(tensor, non_blocking=True)
        # A copy can still be reading when this returns.
        self._held = [*self._held[-AHEAD:], made]
        self.sampler.draws.count.fill_(step + 1)

    def forward(self) -> Batch:
        labels, *parts = (self.get_buffer(f"part_{k}") for k in range(len(self._held[-1])))
        return self.finish(*parts), labels


class StreamedImages(Streamed):
    """Images of one size without augmentation, mapped into memory."""

    def __init__(
        self, images: Tensor, labels: Tensor, sampler: Sampler, size: int, device: torch.device
    ) -> None:
        super().__init__(labels, sampler, size, device)
        self._images = images

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        return (self._images[indices],)

    def finish(self, *parts: Tensor) -> Tensor:
        return scaled(parts[0])


Name = Sequence[str | int]


def _view(images: Ragged, indices: Tensor, largest: tuple[int, int], draws: Draws) -> Tensor:
    """Return augmented crops of these images, in 0 … 1."""
    frames = images.frames[indices]
    parameters = draw_parameters(frames, draws)
    if kernels_apply(images):
        return augment_resident(images, indices, largest, parameters)
    return augment(gather(images, indices, *largest), frames, parameters)


class ResidentCrops(BatchSource):
    """Images of several sizes, all on the device.

    ``largest`` is the height and width over all domains, so that one compilation serves them.
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


class StreamedCrops(Streamed):
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


class StreamedOriginals(Streamed):
    """The original files, decoded and augmented by Pillow as in DomainBed."""

    def __init__(
        self,
        paths: Sequence[Path],
        frames: Tensor,
        labels: Tensor,
        sampler: Sampler,
        name: Name,
        size: int,
        device: torch.device,
        reading: Reading = AS_STORED,
    ) -> None:
        super().__init__(labels, sampler, size, device)
        self._paths, self._frames, self._reading = paths, frames, reading
        self.draws = Draws("augmentation", *name)
        ahead = deepcopy(self.draws)
        draw_parameters(frames[:1], ahead)
        self._each = int(ahead.count)  # the draws of a step
        self._thread_draws = (ahead,)  # out of the state, like ``_own``
        self._pool = ThreadPoolExecutor(os.cpu_count())

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        (draws,) = self._thread_draws
        draws.count.fill_(step * self._each)
        parameters = draw_parameters(self._frames[indices], draws)
        chosen = (
            (self._paths[i], parameters.of(k), self._reading)
            for k, i in enumerate(indices.tolist())
        )
        return (torch.stack(list(self._pool.map(lambda one: exact_training(*one), chosen))),)

    def finish(self, *parts: Tensor) -> Tensor:
        return scaled(parts[0])

    def fetch(self, step: int) -> None:
        super().fetch(step)
        self.draws.count.fill_((step + 1) * self._each)
