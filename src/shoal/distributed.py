"""Collectives with gradients, for a batch that is spread over processes; shared passes.

Every rank computes the same penalty from the whole batch, and DistributedDataParallel averages
the ranks' gradients. A rank holds only its own examples' part of the gradient, so the parts add
up to the whole gradient and the average is 1/W of it: each backward here multiplies by W.

``run_shared`` is the other way to use several processes: all have the whole batch, and each runs
the network on a part of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_ALONE = ContextVar("alone", default=False)
_UNSHARED = ContextVar("unshared", default=False)

Run = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def processes() -> int:
    """Return the number of processes in the group; 1 without a group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if processes() > 1 else 0


def world_size() -> int:
    """Return the number of processes that share the batch; 1 without a process group."""
    world = processes()
    return 1 if world == 1 or _ALONE.get() else world


@contextmanager
def alone() -> Iterator[None]:
    """Treat this process as the only one inside the block: it has the whole batch."""
    with _true(_ALONE):
        yield


@contextmanager
def without_sharing() -> Iterator[None]:
    """Share no passes inside the block: this process needs each example's gradient."""
    with _true(_UNSHARED):
        yield


@contextmanager
def _true(variable: ContextVar[bool]) -> Iterator[None]:
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


def run_shared(run: Run, network: nn.Module, inputs: Tensor) -> Tensor:
    """Return ``run(network, inputs)``, with each rank running a part of the examples.

    All ranks must pass the same inputs and use the result alike. The gradient in the network's
    weights is then that of the whole batch on every rank, identical to the last bit.
    """
    n, world = len(inputs), processes()
    if world == 1 or n < world or _UNSHARED.get():  # not every network can run 0 examples
        return run(network, inputs)
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    averaged = _Averaged.apply(*trained.values()) if trained else ()  # type: ignore[no-untyped-call]
    weights = dict(zip(trained, averaged, strict=True))

    def with_weights(inputs: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(network, weights, (inputs,))
        return outputs

    if inputs.requires_grad:  # they come from a trained network whose passes are not shared
        (inputs,) = _Averaged.apply(inputs)  # type: ignore[no-untyped-call]
    ends = [n * k // world for k in range(world + 1)]
    mine = run(with_weights, inputs[ends[rank()] : ends[rank() + 1]])
    sizes = [stop - start for start, stop in pairwise(ends)]
    outputs: Tensor = _Gather.apply(mine, sizes)  # type: ignore[no-untyped-call]
    return outputs


class _Averaged(torch.autograd.Function):
    """The tensors unchanged; their gradients are averaged over ranks in one message."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return average_over_ranks(grads)


def average_over_ranks(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the mean of each tensor over all ranks, in one message for every dtype."""
    found = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [k for k, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[k].flatten() for k in alike])
        if processes() > 1:
            dist.all_reduce(flat)
            flat /= processes()
        parts = flat.split([tensors[k].numel() for k in alike])
        for k, part in zip(alike, parts, strict=True):
            found[k] = part.view(tensors[k].shape)
    return tuple(found)


def gather_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor's rows of all ranks, in rank order; ranks can differ in length."""
    if world_size() == 1:
        return tensors
    sizes = _sizes(len(tensors[0]), _device(tensors[0]))
    return tuple(_Gather.apply(t, sizes) for t in tensors)  # type: ignore[no-untyped-call]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of ``tensor`` over all ranks."""
    if world_size() == 1:
        return tensor
    summed: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return summed


def all_ranks(tensor: Tensor) -> list[Tensor]:
    """Return the equally shaped ``tensor`` of every rank, without gradients."""
    parts = [torch.empty_like(tensor) for _ in range(processes())]
    dist.all_gather(parts, tensor.detach().contiguous())
    return parts


@contextmanager
def first_rank_first() -> Iterator[None]:
    """Run the block on the first rank before the others, so that they find what it builds."""
    if rank() > 0:
        dist.barrier()
    yield
    if rank() == 0 and processes() > 1:
        dist.barrier()


def copy_from_first_rank(tensors: Iterable[Tensor]) -> None:
    """Copy the first rank's values into these tensors of every rank."""
    if processes() > 1:
        for tensor in tensors:
            values = tensor.detach().to(_device(tensor), copy=True).contiguous()
            dist.broadcast(values, 0)
            with torch.no_grad():
                tensor.copy_(values)


def largest_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest ``value`` of all ranks."""
    if world_size() == 1:
        return value
    return int(torch.cat(all_ranks(torch.tensor([value], device=device))).max())


def _device(tensor: Tensor) -> torch.device:
    """Return a device that the process group can send from: NCCL cannot send from the host."""
    if tensor.device.type == "cpu" and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return tensor.device


def _sizes(n: int, device: torch.device) -> list[int]:
    return [int(size) for size in torch.cat(all_ranks(torch.tensor([n], device=device))).tolist()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int]) -> Tensor:
        ctx.start, ctx.length, ctx.world = sum(sizes[: dist.get_rank()]), len(tensor), processes()
        # all_gather needs equal shapes: pad to the longest rank.
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]), device=_device(tensor))
        padded[: len(tensor)] = tensor
        parts = [part[:size] for part, size in zip(all_ranks(padded), sizes, strict=True)]
        return torch.cat(parts).to(tensor.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[ctx.start : ctx.start + ctx.length] * ctx.world, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        ctx.world = processes()
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        whole: Tensor = grad * ctx.world
        return whole
