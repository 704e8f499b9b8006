"""How many examples can be run at once within a number of bytes."""

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .job import Job, outside_autocast
from .passes import first_pass, second_pass, wanted_of
from .variance import rows_at_once

# The share of the bytes that tensors may take. Kernels want some for themselves, and those of a GPU
# more; its allocator leaves gaps, too.
SHARES = {"cpu": 0.9, "cuda": 0.75}
# What identifies a measurement beside the model.
Key = tuple[Any, ...]
_measured: WeakKeyDictionary[nn.Module, dict[Key, tuple["Need", "Need"]]] = WeakKeyDictionary()


def chunk_within(job: Job, memory: int) -> int | None:
    """Return how many examples fit into ``memory`` bytes at a time; None if all do at once.

    Measured on one and on two examples the first time that a model is asked for.
    """
    n = len(job.examples)
    if n < 2:
        return None
    shapes = tuple((t.shape[1:], t.dtype) for t in job.examples.tensors)
    cast = torch.is_autocast_enabled(job.device.type)
    key = (*job.weights, *shapes, job.groups.num_domains, cast)
    known = _measured.setdefault(job.model, {})
    if key not in known:
        known[key] = _need(_at_once, job), _need(_in_two_passes, job)
    at_once, in_chunks = known[key]
    share = SHARES.get(job.device.type, min(SHARES.values()))
    room = share * memory
    if at_once.fitting(room) >= n:
        return None
    fitting = in_chunks.fitting(room)
    if fitting < 1:
        raise ValueError(
            f"memory={memory:,} bytes is too little for {type(job.model).__name__}: the statistics "
            f"of {job.groups.num_domains} domains take {in_chunks.at(1):,} for one example at a "
            f"time; give at least {ceil(in_chunks.at(1) / share):,} bytes, or choose fewer "
            "parameters"
        )
    return ceil(n / ceil(n / fitting))  # chunks of about one size


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes of n examples: the largest of all its moments' fixed + n · each."""

    moments: tuple[tuple[int, int], ...]

    def at(self, n: float) -> float:
        """Return the bytes of n examples."""
        return max(fixed + n * each for fixed, each in self.moments)

    def fitting(self, room: float) -> int:
        """Return how many examples fit into so many bytes."""
        return min(
            int((room - fixed) // each) if each > 0 else sys.maxsize * (fixed + each <= room)
            for fixed, each in self.moments
        )


def _need(step: Callable[[Job], None], job: Job) -> Need:
    traces = []
    for count in (1, 2):
        living = Living()
        with torch.enable_grad(), living:
            step(job.first(count))
        traces.append(living.trace)
    if len(traces[0]) != len(traces[1]):  # one example goes another way: only the peaks are alike
        traces = [[max(trace, default=0)] for trace in traces]
    # The moment that is the peak of few examples need not be that of many.
    return Need(_upper({(2 * one - two, two - one) for one, two in zip(*traces, strict=True)}))


def _upper(lines: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the lines (fixed, each), without those that another is above for all n from 1 on."""
    found: list[tuple[int, int]] = []
    highest = dict(sorted((each, fixed) for fixed, each in lines))  # the last of a slope stays
    for each, fixed in highest.items():
        while found and fixed + each >= sum(found[-1]):
            found.pop()  # less steep, and not higher for one example
        found.append((fixed, each))
    return tuple(found) or ((0, 1),)


def _at_once(job: Job) -> None:
    losses, entries = job.record(None, create_graph=True)
    with outside_autocast(job):
        rows = [rows_at_once(e.source, e.tensors, job.groups, job.form) for e in entries]
        whole = torch.cat(rows, 1)
    del rows
    outputs = [output for output in (losses, whole) if output.requires_grad]
    cotangents = [torch.zeros_like(output) for output in outputs]
    torch.autograd.grad(outputs, wanted_of(job), cotangents, allow_unused=True)


def _in_two_passes(job: Job) -> None:
    losses, total, kept = first_pass(job)
    with torch.no_grad():
        second_pass(job, kept, wanted_of(job), losses, total.m2, total.mean)


class Living(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside the block and are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self.now = 0
        self.trace: list[int] = []  # bytes alive after each tensor that was made

    @property
    def peak(self) -> int:
        return max(self.trace, default=0)

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
        self.trace.append(self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
