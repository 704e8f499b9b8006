"""What a compiled network does otherwise than torch's layers, to the same result."""

from types import MethodType

import torch
from torch import Tensor, nn


def fuse(network: nn.Module) -> None:
    """Let the group norms of ``network`` leave images as they lie in memory, once compiled.

    Torch's copies images that lie channels-last, which a convolution after it copies back.
    """
    for part in network.modules():
        if type(part) is nn.GroupNorm:
            part.forward = MethodType(_group_norm, part)  # type: ignore[method-assign]


def _group_norm(norm: nn.GroupNorm, inputs: Tensor) -> Tensor:
    """Return what ``nn.GroupNorm`` returns, in the inputs' layout."""
    if not torch.compiler.is_compiling():
        plain: Tensor = nn.GroupNorm.forward(norm, inputs)
        return plain
    precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    grouped = precise.unflatten(1, (norm.num_groups, -1))
    inner = tuple(range(2, grouped.ndim))
    variance, mean = torch.var_mean(grouped, inner, correction=0, keepdim=True)
    found: Tensor = ((grouped - mean) * torch.rsqrt(variance + norm.eps)).flatten(1, 2)
    if norm.weight is not None:
        shape = (-1, *(1,) * (inputs.ndim - 2))
        found = found * norm.weight.view(shape) + norm.bias.view(shape)
    # Autocast on a GPU has it in float32, for whoever comes next to cast.
    cast = inputs.is_cuda and torch.is_autocast_enabled("cuda")
    return found if cast else found.to(inputs.dtype)
