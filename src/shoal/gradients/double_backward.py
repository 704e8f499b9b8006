"""A forward that can be differentiated twice, whatever the fused kernels can."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ..distributed import unshared
from .fast_kernels import OrdinaryConvolutions

FRAGILE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@contextmanager
def twice_differentiable(model: nn.Module, vmapped: bool = False) -> Iterator[None]:
    """Choose, inside the block, kernels whose second derivative exists and is right."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has none
        stack.enter_context(unshared())
        if vmapped or any(_fragile(module) for module in model.modules()):
            stack.enter_context(Elementary())
        if not vmapped and any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules()):
            stack.enter_context(OrdinaryConvolutions())
        yield


def _fragile(module: nn.Module) -> bool:
    return (
        isinstance(module, FRAGILE)
        or "weight_norm" in str(module._forward_pre_hooks).lower()
        or (type(module).__name__ == "_WeightNorm")
    )


class Elementary(TorchFunctionMode):
    """Spell out the operations whose second derivative is wrong in torch 2.13.

    Layer and instance norm under ``vmap(grad)``, by up to twice their size; instance norm of a
    single example in its first derivative already; the fused kernel of ``weight_norm`` always.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **kwargs)
        if func in (F.instance_norm, torch.instance_norm):
            return _instance_norm(*args, **kwargs)
        if func is torch._weight_norm:
            return _weight_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = list(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    out = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    shape = (1, -1, *[1] * (input.ndim - 2))
    axes = list(range(2, input.ndim))
    if use_input_stats or running_mean is None or running_var is None:
        mean = input.mean(axes, keepdim=True)
        var = (input - mean).square().mean(axes, keepdim=True)
    else:
        mean, var = running_mean.reshape(shape), running_var.reshape(shape)
    out = (input - mean) * (var + eps).rsqrt()
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim] if dim != -1 else None
    norm = v.square().sum(axes, keepdim=True).sqrt() if axes is not None else v.norm()
    return v * (g / norm)
