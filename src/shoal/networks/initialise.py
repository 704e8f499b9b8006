"""First weights: drawn from a generator, never from the global random state."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)

# Layers whose weights are drawn, and those whose weights begin at one and zero.
DRAWN = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)
RESET = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)


def drawn(build: Callable[[], M], generator: torch.Generator, like: nn.Module | None = None) -> M:
    """Return what ``build`` makes, its weights drawn from ``generator`` as torch draws them.

    The global random state is neither read nor moved. The module comes on the device and in the
    precision of ``like``, and draws the same on every device.
    """
    with torch.device("meta"):
        module = build()
    module.to_empty(device="cpu")
    for part in module.modules():
        weights = {name for name, _ in part.named_parameters(recurse=False)}
        buffers = next(part.buffers(recurse=False), None)
        known = {"weight", "bias"} if isinstance(part, (*DRAWN, *RESET)) else set()
        if weights - known or (buffers is not None and not isinstance(part, RESET)):
            raise TypeError(
                f"the weights or buffers of {type(part).__name__} cannot be drawn from a stream"
            )
        if isinstance(part, DRAWN[:2]):
            bound = 1 / math.sqrt(part.weight[0].numel())
            for weight in (part.weight, part.bias):
                if weight is not None:
                    nn.init.uniform_(weight, -bound, bound, generator=generator)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, generator=generator)
        elif isinstance(part, RESET):
            part.reset_parameters()
    if like is not None:
        weight = next(like.parameters())
        module.to(weight.device, weight.dtype)
    return module


def lent(build: Callable[[], M], generator: torch.Generator) -> M:
    """Return what ``build`` makes on the CPU, with weights that it draws in its own way.

    For networks of other packages, which draw from the global random state: it is lent to them,
    seeded by one number of ``generator``, and then put back as it was.
    """
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    # Only the CPU's generator: torch.manual_seed would seed those of the GPUs, too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(int(seed))
        return build()
