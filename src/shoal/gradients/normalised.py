"""Individual gradients of a frozen batch norm's weight and bias, pulled back by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from .formed import Formed, Pull
from .frozen_norm import norm_gradients
from .precision import precise
from .sources import Grads


@dataclass(frozen=True)
class OfFrozenNorm(Formed):
    """g_i of weight and bias of a batch norm with frozen statistics, with tensors (z, r).

    With x̂ = (z − μ)/σ these are Σ_t r x̂ and Σ_t r for each channel.
    """

    module: nn.modules.batchnorm._BatchNorm
    shared: int = 0
    keeps = True
    takes_bf16 = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return 2 * self.module.num_features

    def _statistics(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and σ² in the precision of statistics, ``[channels]``."""
        dtype = torch.promote_types(z.dtype, torch.float32)
        module: Any = self.module
        return module.running_mean.to(dtype), module.running_var.to(dtype)

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (precise(t).reshape(*t.shape[:2], -1) for t in tensors)
        mean, var = self._statistics(z)
        weight = ((z - mean[:, None]) * r).sum(2) * (var + self.module.eps).rsqrt()
        return torch.cat([weight, r.sum(2)], 1)

    def values(self, tensors: Sequence[Tensor]) -> Tensor:
        # The gradients of a batch norm over one image, whose channels are those of all examples.
        z, r = (t.detach().reshape(1, -1, prod(t.shape[2:])) for t in tensors)
        n = len(tensors[0])
        mean, var = (t.repeat(n) for t in self._statistics(z))
        wanted = (False, True, True)
        found = norm_gradients(r, z, torch.ones_like(mean), mean, var, self.module.eps, *wanted)
        return torch.cat([one.view(n, -1) for one in found if one is not None], 1)

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        z, r = (t.detach() for t in tensors)
        want_z, want_r = (t.requires_grad for t in tensors)
        mean, var = self._statistics(z)

        def pull(c: Tensor) -> Grads:
            shape = (*z.shape[:2], *[1] * (z.ndim - 2))
            weight, bias = c.chunk(2, 1)
            weight = weight * (var + self.module.eps).rsqrt()
            shift = (bias - weight * mean).view(shape)
            weight = weight.view(shape)
            # Written in the precision of z and r, in one pass.
            d_z = torch.mul(weight, r, out=torch.empty_like(r)) if want_z else None
            d_r = torch.addcmul(shift, weight, z, out=torch.empty_like(z)) if want_r else None
            return d_z, d_r

        return self.values(tensors) if g is None else g, pull
