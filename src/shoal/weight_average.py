"""WeightAverage: the running mean of a model's weights, for any training loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .internals import foreach


@contextmanager
def use_weights(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Give the weights other values inside, in place: captured and compiled code follows."""
    with torch.no_grad():
        before = [weight.detach().clone() for weight in weights]
        foreach("copy_", list(weights), list(values))
    try:
        yield
    finally:
        with torch.no_grad():
            foreach("copy_", list(weights), before)


def fold(mean: Sequence[Tensor], count: int, more: Sequence[Tensor], added: int) -> None:
    """Make ``mean`` of ``count`` weights the mean of these and of ``added`` with mean ``more``."""
    if count:
        foreach("lerp_", list(mean), list(more), added / (count + added))
    else:  # whatever was there, also what is not a number
        foreach("copy_", list(mean), list(more))


class StoredWeights(nn.Module):
    """Tensors like some weights, zero at first, in buffers and in the weights' memory layout."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        for number, weight in enumerate(weights):
            self.register_buffer(f"w{number}", torch.zeros_like(weight, requires_grad=False))

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.buffers())


class WeightAverage(nn.Module):
    """The plain mean of a model's weights over updates (SMA, Arpit et al., 2022).

    Averaging along a run is the cheapest gain on domains that were never seen. Training is not
    touched: call ``update`` after each optimiser step, and use the mean where the model is
    evaluated or saved. The mean and the count are in ``state_dict()``::

        average = shoal.WeightAverage(model, start=100)
        for inputs, labels in batches:
            ...
            optimiser.step()
            average.update()
        with average.applied():
            evaluate(model)

    Buffers are not averaged: batch norm that follows the data needs its statistics estimated again
    for the mean, as ``torch.optim.swa_utils.update_bn`` does.

    Args:
        start: updates before the mean begins; until then it is the latest weights.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> average = shoal.WeightAverage(model)
        >>> for value in (1.0, 2.0, 6.0):
        ...     _ = model.weight.data.fill_(value)  # an optimiser's step
        ...     average.update()
        >>> with average.applied():
        ...     model.weight.item()
        3.0
        >>> model.weight.item()
        6.0
    """

    updates: Tensor

    def __init__(self, model: nn.Module, start: int = 0) -> None:
        super().__init__()
        if start < 0:
            raise ValueError(f"start must be 0 or more, got {start}")
        self.start = start
        self._model = (model,)  # in a tuple: its weights are not weights of this module
        self.mean = StoredWeights(self._weights)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def _weights(self) -> list[Tensor]:
        return [weight for weight in self._model[0].parameters() if weight.requires_grad]

    @torch.no_grad()
    def update(self) -> None:
        """Take the model's weights into the mean."""
        counted = max(0, int(self.updates) - self.start)
        fold(self.mean.tensors, counted, [weight.detach() for weight in self._weights], 1)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the mean of its weights inside; before the first update, nothing."""
        values = self.mean.tensors if int(self.updates) else self._weights
        with use_weights(self._weights, values):
            yield
