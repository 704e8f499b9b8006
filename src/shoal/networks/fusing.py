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
    if inputs.ndim == 2 or not torch.compiler.is_compiling():
        plain: Tensor = nn.GroupNorm.forward(norm, inputs)
        return plain
    precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    groups, inner = norm.num_groups, tuple(range(2, inputs.ndim))
    # Channel by channel first, which reads memory in order where channels lie last; then the
    # channels of a group: its variance is the mean of theirs and the variance of their means.
    # Two sums each, because the compiler makes one slow pass of ``var_mean``.
    means = precise.mean(inner, keepdim=True)
    variances = (precise - means).square().mean(inner)
    means = means.flatten(1)
    variances, means = variances.unflatten(1, (groups, -1)), means.unflatten(1, (groups, -1))
    between, mean = torch.var_mean(means, 2, correction=0, keepdim=True)
    scale = torch.rsqrt(variances.mean(2, keepdim=True) + between + norm.eps).expand_as(means)
    shift = -mean * scale
    if norm.weight is not None:
        weight = norm.weight.view(groups, -1)
        scale, shift = scale * weight, shift * weight + norm.bias.view(groups, -1)
    shape = (*inputs.shape[:2], *(1,) * len(inner))
    found: Tensor = precise * scale.reshape(shape) + shift.reshape(shape)
    # Autocast on a GPU has it in float32, for whoever comes next to cast.
    cast = inputs.is_cuda and torch.is_autocast_enabled("cuda")
    return found if cast else found.to(inputs.dtype)
