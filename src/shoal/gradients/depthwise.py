"""Individual gradients of a depthwise convolution's weight, pulled back by hand.

It has no matrix product in it: g_i and both its derivatives come from a convolution with the
examples as further groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolved import Convolution
from .formed import Formed, Pull
from .sources import Grads


@dataclass(frozen=True)
class OfDepthwise(Formed):
    """g_i of a depthwise convolution's weight, with tensors (z, r); padding must be of zeros."""

    module: Convolution
    shared: int = 0
    keeps = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.module.weight.numel()

    def width(self, tensors: Sequence[Tensor]) -> int:
        return max(self.size, tensors[0][0].numel())

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        apart = [t.reshape(1, -1, *t.shape[2:]) for t in (self._padded(z), r)]
        return _weight(self.module, *apart).reshape(len(z), -1)

    def _padded(self, z: Tensor) -> Tensor:
        padding = self.module._reversed_padding_repeated_twice
        return F.pad(z, padding) if any(padding) else z

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        z, r = tensors
        module = self.module
        padded = self._padded(z.detach())
        n, channels = len(z), padded.shape[1]
        x, r_apart = (t.detach().reshape(1, -1, *t.shape[2:]) for t in (padded, r))

        def pull(c: Tensor) -> Grads:
            weight = c.view(-1, 1, *module.kernel_size)
            d_r = d_z = None
            if r.requires_grad:
                d_r = torch.ops.aten.convolution(x, weight, None, *_geometry(module, n))
                d_r = d_r.view(r.shape)
            if z.requires_grad:
                d_z, _, _ = torch.ops.aten.convolution_backward(
                    r_apart, x, weight, None, *_geometry(module, n), [True, False, False]
                )
                padding = module._reversed_padding_repeated_twice
                d_z = F.pad(d_z.view(n, channels, *x.shape[2:]), [-side for side in padding])
            return d_z, d_r

        if g is None:
            g = _weight(module, x, r_apart).view(n, -1)
        return g, pull


def _geometry(module: Convolution, n: int) -> tuple[Any, ...]:
    """Return torch's arguments for n padded examples side by side as further groups."""
    none = [0] * len(module.stride)
    groups = n * module.groups
    return list(module.stride), none, list(module.dilation), False, none, groups


def _weight(module: Convolution, x: Tensor, r: Tensor) -> Tensor:
    n = r.shape[1] // module.out_channels
    weight = x.new_empty(r.shape[1], 1, *module.kernel_size)
    geometry, mask = _geometry(module, n), [False, True, False]
    found = torch.ops.aten.convolution_backward(r, x, weight, None, *geometry, mask)
    d_weight: Tensor = found[1]
    return d_weight
