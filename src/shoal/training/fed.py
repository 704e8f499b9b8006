"""Training images that do not lie on the device: made ready on the host a few steps ahead."""

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..algorithms.forward import Batch
from .batches import Source, scaled
from .sampling import Sampler

AHEAD = 2
Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """Calls ``make(step)`` in a thread for the steps that come next."""

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1, "batches")
        self._waiting: dict[int, Future[Made]] = {}

    def __call__(self, step: int) -> Made:
        """Return what was made for this step, and have the next ones made."""
        if step not in self._waiting:  # the first, or after a leap
            for future in self._waiting.values():
                future.cancel()
            self._waiting = {}
        for following in range(step, step + 1 + AHEAD):
            if following not in self._waiting:
                self._waiting[following] = self._pool.submit(self._make, following)
        return self._waiting.pop(step).result()


class Fed(Source):
    """Batches that the host makes: what it makes is copied into buffers that stay where they are.

    ``sampler`` has the count of the steps that were fetched, as if it drew on the device, so that
    a run can go on with its images in another place.
    """

    def __init__(self, labels: Tensor, sampler: Sampler, size: int, device: torch.device) -> None:
        super().__init__()
        self.all_labels = labels
        self.sampler = sampler
        self.size = size
        # The thread's own, which is ahead; in a tuple, so that it is no part of the state.
        self._own = (deepcopy(sampler),)
        self._ahead = Ahead(self._make)
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
        """Return what the device needs of these examples, on the host."""

    @abstractmethod
    def finish(self, *parts: Tensor) -> Tensor:
        """Return the images in 0 … 1 of what ``read`` returned, on the device."""

    def fetch(self, step: int) -> None:
        made = self._ahead(step)
        if not self._buffers_made:
            for k, tensor in enumerate(made):
                buffer = torch.empty_like(tensor, device=self._device)
                self.register_buffer(f"part_{k}", buffer, persistent=False)
            self._buffers_made = True
        for k, tensor in enumerate(made):
            self.get_buffer(f"part_{k}").copy_(tensor, non_blocking=True)
        # A copy may still be reading when this returns.
        self._held = [*self._held[-AHEAD:], made]
        self.sampler.draws.count.fill_(step + 1)

    def forward(self) -> Batch:
        labels, *parts = (self.get_buffer(f"part_{k}") for k in range(len(self._held[-1])))
        return self.finish(*parts), labels


class FedWhole(Fed):
    """Images of one size as they are, mapped into memory."""

    def __init__(
        self, images: Tensor, labels: Tensor, sampler: Sampler, size: int, device: torch.device
    ) -> None:
        super().__init__(labels, sampler, size, device)
        self._images = images

    def read(self, indices: Tensor, step: int) -> tuple[Tensor, ...]:
        return (self._images[indices],)

    def finish(self, *parts: Tensor) -> Tensor:
        return scaled(parts[0])
