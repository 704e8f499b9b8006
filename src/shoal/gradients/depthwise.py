"""Individual gradients of a depthwise convolution's weight, pulled back by hand.

It has no matrix product in it: g_i and both its derivatives come from a convolution with the
examples as further groups, for which channels go first and numbers are in the precision of
statistics. Both are left again for what the network has, in one copy each.
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
    takes_bf16 = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.module.weight.numel()

    def width(self, tensors: Sequence[Tensor]) -> int:
        return max(self.size, tensors[0][0].numel())

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        return self._weight(self._padded(_apart(z)), _apart(r)).reshape(len(z), -1)

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        z, r = tensors
        x, r_apart = self._padded(_apart(z.detach())), _apart(r.detach())

        def pull(c: Tensor) -> Grads:
            weight = c.view(-1, 1, *self.module.kernel_size)
            how, d_r, d_z = self._geometry(x), None, None
            if r.requires_grad:
                d_r = _joined(torch.ops.aten.convolution(x, weight, None, *how), r)
            if z.requires_grad:
                mask = [True, False, False]
                d_x = torch.ops.aten.convolution_backward(r_apart, x, weight, None, *how, mask)[0]
                around = [-side for side in self._around]
                d_z = _joined(F.pad(d_x, around) if around else d_x, z)
            return d_z, d_r

        if g is None:
            g = self._weight(x, r_apart).view(len(z), -1)
        return g, pull

    @property
    def _around(self) -> list[int]:
        """What is put around the images first, because the convolution cannot: uneven padding."""
        both: list[int] = self.module._reversed_padding_repeated_twice
        return [] if both[::2] == both[1::2] else both

    def _padded(self, apart: Tensor) -> Tensor:
        return F.pad(apart, self._around) if self._around else apart

    def _geometry(self, x: Tensor) -> tuple[Any, ...]:
        """Return torch's arguments for examples side by side as further groups."""
        module, none = self.module, [0] * len(self.module.stride)
        both = module._reversed_padding_repeated_twice
        padding = none if self._around else both[::-2]
        return list(module.stride), padding, list(module.dilation), False, none, x.shape[1]

    def _weight(self, x: Tensor, r: Tensor) -> Tensor:
        weight = x.new_empty(r.shape[1], 1, *self.module.kernel_size)
        how, mask = self._geometry(x), [False, True, False]
        found: Tensor = torch.ops.aten.convolution_backward(r, x, weight, None, *how, mask)[1]
        return found


def _apart(t: Tensor) -> Tensor:
    """Return images as one with the channels of all, in the precision of statistics."""
    dtype = torch.promote_types(t.dtype, torch.float32)
    return t.to(dtype, memory_format=torch.contiguous_format).reshape(1, -1, *t.shape[2:])


def _joined(apart: Tensor, like: Tensor) -> Tensor:
    """Return images again, in the precision and the order in memory of others."""
    return torch.empty_like(like).copy_(apart.view(like.shape))
