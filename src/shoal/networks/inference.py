"""Inference: a copy of a network that predicts faster on a CPU, with nearly equal outputs."""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

Module = TypeVar("Module", bound=nn.Module)
# Outputs of the copy differ from those of the network by less, or the network itself is used.
RTOL, ATOL = 1e-3, 1e-4


class OneDnnConv2d(nn.Module):
    """A convolution by oneDNN, which torch leaves to slower code for 1 × 1 on one thread."""

    def __init__(self, layer: nn.Conv2d, padding: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.padding = layer, padding

    def forward(self, inputs: Tensor) -> Tensor:
        one = self.layer
        return torch.mkldnn_convolution(
            inputs, one.weight, one.bias, self.padding, one.stride, one.dilation, one.groups
        )


def for_inference(network: Module, run: Callable[[Module], Tensor]) -> Module:
    """Return a copy for the CPU with batch norms folded into the convolutions before them.

    Activations after these work in place, because fresh memory for them takes as long as the
    arithmetic. Return the network itself if there is nothing to fold, or the outputs of the
    copy differ.

    Args:
        network: in evaluation mode.
        run: returns outputs of a network for an example of what it will get.
    """
    copy = deepcopy(network)
    with torch.no_grad():
        wanted, pairs = run(network), _pairs(copy, run)
        if not pairs or not torch.backends.mkldnn.is_available():
            return network
        names = {module: name for name, module in copy.named_modules()}
        for layer, norm, activation in pairs:
            _replace(copy, names[norm], nn.Identity())
            _replace(copy, names[layer], _fast(fuse_conv_bn_eval(layer, norm)))
            if activation is not None:
                activation.inplace = True
        close = torch.allclose(run(copy), wanted, rtol=RTOL, atol=ATOL)
    return copy if close else network


def _fast(layer: nn.Conv2d) -> nn.Module:
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        return layer
    return OneDnnConv2d(layer, layer.padding) if layer.weight.dtype == torch.float32 else layer


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, module)


Pair = tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU | nn.ReLU6 | None]


def _pairs(network: Module, run: Callable[[Module], Tensor]) -> list[Pair]:
    """Return each convolution whose output goes to a batch norm, and the activation after that.

    Only layers that are used once.
    """
    made: dict[int, tuple[nn.Module, Tensor]] = {}  # by output, which is kept, so that ids are its
    after: dict[nn.Module, nn.Module] = {}
    used: dict[nn.Module, int] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if before := made.get(id(inputs[0])):
            after[before[0]] = module
        made[id(output)] = module, output
        used[module] = used.get(module, 0) + 1

    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.ReLU6)
    hooks = [
        module.register_forward_hook(note)
        for module in network.modules()
        if isinstance(module, kinds)
    ]
    run(network)
    for hook in hooks:
        hook.remove()
    found: list[Pair] = []
    for layer, norm in after.items():
        if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            last = after.get(norm)
            if used[layer] == used[norm] == 1 and norm.running_mean is not None:
                found.append((layer, norm, last if isinstance(last, nn.ReLU | nn.ReLU6) else None))
    return found
