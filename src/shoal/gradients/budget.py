"""How many examples can be run at once within a number of bytes."""

import weakref
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .job import Job
from .passes import first_pass, second_pass, wanted_of

# The share of the bytes that tensors may take; kernels want some for themselves.
SHARE = 0.9
# What identifies a measurement beside the model.
Key = tuple[Any, ...]
_measured: WeakKeyDictionary[nn.Module, dict[Key, tuple[int, int]]] = WeakKeyDictionary()


def chunk_within(job: Job, memory: int) -> int | None:
    """Return how many examples fit into ``memory`` bytes at a time; None if all do at once.

    Measured on one and on two examples the first time that a model is asked for.
    """
    n = len(job.examples)
    if n < 2:
        return None
    shapes = tuple((t.shape[1:], t.dtype) for t in job.examples.tensors)
    key = (
        *job.weights,
        *shapes,
        job.groups.num_domains,
        torch.is_autocast_enabled(job.device.type),
    )
    known = _measured.setdefault(job.model, {})
    if key not in known:
        one, two = _peak(job.first(1)), _peak(job.first(2))
        each = max(two - one, 1)
        known[key] = max(one - each, 0), each
    fixed, each = known[key]
    fitting = int((SHARE * memory - fixed) // each)
    if fitting < 1:
        least = ceil((fixed + each) / SHARE)
        raise ValueError(
            f"memory={memory:,} bytes is too little for {type(job.model).__name__}: the statistics "
            f"of {job.groups.num_domains} domains take {fixed:,} and each example {each:,}; "
            f"give at least {least:,} bytes, or choose fewer parameters"
        )
    if fitting >= n:
        return None
    return ceil(n / ceil(n / fitting))  # chunks of about one size


def _peak(job: Job) -> int:
    """Return the most bytes that are alive at once in both passes over a job's examples."""
    wanted = wanted_of(job)
    living = Living()
    with torch.enable_grad(), living:
        losses, total, kept = first_pass(job)
        with torch.no_grad():
            second_pass(job, kept, wanted, losses, total.m2, total.mean)
    return living.peak


class Living(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside the block and are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self.now, self.peak = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or storage.nbytes() == 0:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
