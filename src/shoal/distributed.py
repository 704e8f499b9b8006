"""Collectives with gradients, for statistics of a batch that is spread over processes.

Every rank computes the same penalty from the whole batch, and DistributedDataParallel averages
the ranks' gradients. A rank holds only its own examples' part of the gradient, so the parts add
up to the whole gradient and the average is 1/W of it: each backward here multiplies by W.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes that share the batch; 1 without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def gather_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor's rows of all ranks, in rank order; ranks may differ in length."""
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
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(parts, tensor.detach().contiguous())
    return parts


def largest_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest ``value`` of all ranks."""
    if world_size() == 1:
        return value
    return int(torch.cat(all_ranks(torch.tensor([value], device=device))).max())


def _device(tensor: Tensor) -> torch.device:
    """Return where the process group can reach: NCCL carries nothing that is on the host."""
    if tensor.device.type == "cpu" and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return tensor.device


def _sizes(n: int, device: torch.device) -> list[int]:
    return [int(size) for size in torch.cat(all_ranks(torch.tensor([n], device=device))).tolist()]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int]) -> Tensor:
        ctx.start, ctx.length = sum(sizes[: dist.get_rank()]), len(tensor)
        # all_gather wants equal shapes: pad to the longest rank.
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]), device=_device(tensor))
        padded[: len(tensor)] = tensor
        parts = [part[:size] for part, size in zip(all_ranks(padded), sizes, strict=True)]
        return torch.cat(parts).to(tensor.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[ctx.start : ctx.start + ctx.length] * world_size(), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world_size()
