"""Memory: how many examples fit into a number of bytes, measured by running a few."""

import math
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..internals import trace_memory
from ..replay import Randomness
from .job import Job
from .sharding import origin_of
from .variance import first_pass, rows_at_once, second_pass

# The share of the bytes that tensors can take. Kernels need some as well, more on a GPU, whose
# allocator also leaves gaps.
SHARES = {"cpu": 0.9, "cuda": 0.75}
StatisticStep = Callable[[Job], object]
_measured: WeakKeyDictionary[nn.Module, dict[Any, list[float]]] = WeakKeyDictionary()


def chunk_within(job: Job, memory: int) -> int | None:
    """Return how many examples fit into ``memory`` bytes at a time; None if all do at once.

    For a new model the number is extrapolated from one and two examples, and then tried.
    """
    n, job = len(job.examples), replace(job, check_layers=False)
    if n < 2:
        return None
    share = SHARES.get(job.device.type, min(SHARES.values()))
    room = share * memory
    if _guess(_at_once, job, room) >= n and _peak(_at_once, job) <= room:
        return None
    fitting = max(_guess(_in_two_passes, job, room), 1)
    while True:
        chunk = ceil(n / ceil(n / fitting))  # chunks of about equal size
        # Many examples can take another path than few, and later chunks run while earlier results
        # are alive.
        peak = _peak(_in_two_passes, replace(job, chunk_size=chunk))
        if peak <= room:
            return chunk
        if chunk == 1:
            raise ValueError(
                f"memory={memory:,} bytes is too little for {type(job.model).__name__}: the "
                f"statistics of {job.groups.num_domains} domains take {peak:,} for one example at "
                f"a time; give at least {ceil(peak / share):,} bytes, or choose fewer parameters"
            )
        fitting = min(chunk - 1, max(int(chunk * room / min(peak, 2 * room)), 1))


def chunk_without_gradient(step: StatisticStep, job: Job, memory: int) -> int:
    """Return how many examples a step without a second pass can run within ``memory`` bytes.

    Extrapolated from one and two examples, and not tried; 1 is the least.
    """
    n, job = len(job.examples), replace(job, check_layers=False)
    share = SHARES.get(job.device.type, min(SHARES.values()))
    fitting = max(_guess(step, job, share * memory), 1)
    return ceil(n / ceil(n / fitting))  # chunks of about equal size


def _guess(step: StatisticStep, job: Job, room: float) -> int:
    """Return how many examples fit into ``room`` bytes, extrapolated from one and two."""
    before, after = (_trace(step, job.first(count)) for count in (1, 2))
    if len(before) != len(after):  # they took different paths: only the peaks compare
        before, after = [max(before)], [max(after)]
    found = len(job.examples)
    # Every moment has its own line: few examples and many can peak at different moments.
    for one, two in zip(before, after, strict=True):
        each = max(two - one, 1)
        found = min(found, int((room - one) // each) + 1)
    return found


def _peak(step: StatisticStep, job: Job) -> float:
    return max(_trace(step, job))


def _trace(step: StatisticStep, job: Job) -> list[float]:
    """Return the bytes alive after each tensor that a step makes; the step has no other effect.

    ∞ is the last if memory ran out, unless with one example, which raises.
    """
    shapes = tuple((t.shape, t.dtype) for t in job.examples.tensors)
    groups, cast = job.groups, torch.is_autocast_enabled(job.device.type)
    # Without the sizes of the domains, which can differ in every batch.
    what = (*job.weights, *shapes, groups.num_domains, groups.equal, job.form, cast)
    known, key = _measured.setdefault(origin_of(job.model), {}), (step, job.chunk_size, what)
    if key not in known:
        fits = True
        with (
            torch.enable_grad(),
            Randomness.now(job.device, job.model).restored(),
            trace_memory() as living,
        ):
            try:
                step(job)
            except torch.OutOfMemoryError:
                if job.chunk_size == 1:
                    raise
                fits = False
        known[key] = living.trace if fits else [*living.trace, math.inf]
    return known[key]


def _at_once(job: Job) -> None:
    losses, entries = job.record(None, create_graph=True)
    with job.outside_autocast():
        rows = [rows_at_once(e.source, e.tensors, job.groups, job.form) for e in entries]
        whole = torch.cat(rows, 1)
    del rows
    outputs = [output for output in (losses, whole) if output.requires_grad]
    cotangents = [torch.zeros_like(output) for output in outputs]
    torch.autograd.grad(outputs, job.differentiable_tensors(), cotangents, allow_unused=True)


def _in_two_passes(job: Job) -> None:
    losses, total, state = first_pass(job)
    with torch.no_grad():
        c = torch.zeros_like(total.m2)  # the cotangent of v, next to that of ½ M2
        second_pass(job, state, job.differentiable_tensors(), losses, c * 2, total.mean)
