"""How a large network's passes are cut: into micro-batches, and over several processes.

Both leave a method as it is: it has the whole batch, and its network returns the features of all
of it. Only large networks are cut; of a small one every process runs all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..distributed import processes, run_shared
from ..micro_batches import in_micro_batches
from ..networks.backbones import Features


@dataclass(frozen=True)
class Runner:
    """Runs a network on a batch: each process a part of it, ``size`` images at a time."""

    size: int | None

    def __call__(self, network: nn.Module, inputs: Tensor) -> Tensor:
        return run_shared(self._run, network, inputs)

    def _run(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        if self.size is None:
            return network(inputs)
        features: Tensor = in_micro_batches(network, inputs, self.size)
        return features


def share(algorithm: Algorithm) -> None:
    """Have the method's network run as its ``micro_batch`` and the number of processes say."""
    plain = algorithm.micro_batch is None and processes() == 1
    for part in algorithm.modules():
        if isinstance(part, Features):
            part.runner = None if plain else Runner(algorithm.micro_batch)


def smaller(algorithm: Algorithm, images: int) -> int:
    """Halve the method's micro-batches and return their size; raise where that is no help."""
    features = [part for part in algorithm.modules() if isinstance(part, Features)]
    now = algorithm.micro_batch or images
    if now == 1 or not features:
        raise torch.OutOfMemoryError(
            "memory ran out"
            + (" with one image at a time" if features else "")
            + "; choose a smaller batch_size or network, or another device"
        )
    if not all(part.frozen_statistics for part in features):
        raise torch.OutOfMemoryError(
            "memory ran out, and micro-batches would have other batch-norm statistics than the "
            "whole batch; choose a smaller batch_size, or leave the statistics frozen"
        )
    algorithm.micro_batch = (now + 1) // 2
    share(algorithm)
    return algorithm.micro_batch
