"""Individual gradients of a convolution's weight and of a frozen batch norm, pulled back by hand.

A convolution's g_i = Σ_t r_it ⊗ (the taps of z_i at t) is one matrix product per example, and both
its derivatives are one more each; a depthwise convolution, which has no product in it, takes the
three from a convolution with the examples as further groups.
Letters: n examples, g groups, o outputs, i inputs, k taps, t positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sources import Formed, Grads, Pull

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class OfConvolution(Formed):
    """g_i of a convolution's weight, with tensors (z, r); padding must be of zeros."""

    module: Convolution
    shared: int = 0
    keeps = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.module.weight.numel()

    def width(self, tensors: Sequence[Tensor]) -> int:
        z, r = tensors
        if self._depthwise:
            return max(self.size, z[0].numel())
        return max(self.size, z.shape[1] * prod(self.module.kernel_size) * r[0, 0].numel())

    @property
    def _depthwise(self) -> bool:
        return self.module.groups == self.module.in_channels > 1

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        if self._depthwise:
            apart = [t.reshape(1, -1, *t.shape[2:]) for t in (self._padded(z), r)]
            return _depthwise_weight(self.module, *apart).reshape(len(z), -1)
        return (self._by_group(r) @ self._taps(z).mT).flatten(1)

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        z, r = tensors
        if self._depthwise:
            return self._formed_depthwise(z, r, g)
        taps, by_group = self._taps(z), self._by_group(r)

        def pull(c: Tensor) -> Grads:
            c = c.view(len(z), self.module.groups, by_group.shape[2], -1)
            d_r = (c @ taps).view(r.shape) if r.requires_grad else None
            d_z = self._folded(c.mT @ by_group, z) if z.requires_grad else None
            return d_z, d_r

        if g is None:
            g = (by_group.detach() @ taps.detach().mT).flatten(1)
        return g, pull

    def _by_group(self, r: Tensor) -> Tensor:
        """Return r as ``[n, g, o, t]``."""
        groups = self.module.groups
        return r.reshape(len(r), groups, r.shape[1] // groups, -1)

    def _padded(self, z: Tensor) -> Tensor:
        padding = self.module._reversed_padding_repeated_twice
        return F.pad(z, padding) if any(padding) else z

    def _windows(self, padded: Tensor) -> Tensor:
        """Return a view ``[n, g · i, *positions, *taps]``."""
        module = self.module
        steps = zip(module.kernel_size, module.stride, module.dilation, strict=True)
        for axis, (size, stride, dilation) in enumerate(steps, start=2):
            padded = padded.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
        return padded

    def _taps(self, z: Tensor) -> Tensor:
        """Return what each position sees of z, ``[n, g, i · k, t]``; a view where k is 1."""
        axes, groups = z.ndim - 2, self.module.groups
        windows = self._windows(self._padded(z))
        positions, taps = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
        inner = z.shape[1] // groups * prod(self.module.kernel_size)
        if groups == 1 and _channels_last(z):  # and so is the copy
            last = windows.permute(0, *positions, 1, *taps)
            return last.reshape(len(z), 1, -1, inner).mT
        return windows.permute(0, 1, *taps, *positions).reshape(len(z), groups, inner, -1)

    def _folded(self, c: Tensor, z: Tensor) -> Tensor:
        """Return the gradient in z of a cotangent of its taps, ``[n, g, i · k, t]``."""
        module = self.module
        padding = module._reversed_padding_repeated_twice
        strides = all(step == 1 for step in module.stride)
        if prod(module.kernel_size) == 1 and strides and not any(padding):
            return c.reshape(z.shape)
        if z.ndim == 4 and padding[::2] == padding[1::2] and not _channels_last(z):
            how = (module.kernel_size, module.dilation, padding[-2::-2], module.stride)
            folded: Tensor = torch.ops.aten.col2im(c.flatten(1, 2), z.shape[2:], *how)
            return folded
        like = torch.channels_last if _channels_last(z) else torch.contiguous_format
        shape = [
            side + before + after
            for side, before, after in zip(
                reversed(z.shape[2:]), padding[::2], padding[1::2], strict=True
            )
        ]
        padded = torch.empty(
            (*z.shape[:2], *reversed(shape)), dtype=c.dtype, device=c.device, memory_format=like
        ).zero_()
        windows = self._windows(padded)
        c = c.reshape(*z.shape[:2], *module.kernel_size, *windows.shape[2 : z.ndim])
        taps: list[Any] = list(product(*map(range, module.kernel_size)))
        for tap in taps:
            windows[(..., *tap)].add_(c[(slice(None), slice(None), *tap)])
        return F.pad(padded, [-side for side in padding]) if any(padding) else padded

    def _formed_depthwise(self, z: Tensor, r: Tensor, g: Tensor | None) -> tuple[Tensor, Pull]:
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
            g = _depthwise_weight(module, x, r_apart).view(n, -1)
        return g, pull


def _geometry(module: Convolution, n: int) -> tuple[Any, ...]:
    """Return torch's arguments for n padded examples side by side as further groups."""
    none = [0] * len(module.stride)
    groups = n * module.groups
    return list(module.stride), none, list(module.dilation), False, none, groups


def _depthwise_weight(module: Convolution, x: Tensor, r: Tensor) -> Tensor:
    n = r.shape[1] // module.out_channels
    weight = x.new_empty(r.shape[1], 1, *module.kernel_size)
    geometry, mask = _geometry(module, n), [False, True, False]
    found = torch.ops.aten.convolution_backward(r, x, weight, None, *geometry, mask)
    d_weight: Tensor = found[1]
    return d_weight


def _channels_last(z: Tensor) -> bool:
    last = torch.channels_last
    return z.ndim == 4 and z.is_contiguous(memory_format=last) and not z.is_contiguous()


@dataclass(frozen=True)
class OfFrozenNorm(Formed):
    """g_i of weight and bias of a batch norm with frozen statistics, with tensors (z, r).

    With x̂ = (z − μ)/σ these are Σ_t r x̂ and Σ_t r for each channel.
    """

    module: nn.modules.batchnorm._BatchNorm
    shared: int = 0
    keeps = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return 2 * self.module.num_features

    def _statistics(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and 1/σ, each ``[channels, 1]``."""
        module: Any = self.module
        mean, var = (t.to(z.dtype)[:, None] for t in (module.running_mean, module.running_var))
        return mean, (var + module.eps).rsqrt()

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (t.reshape(*t.shape[:2], -1) for t in tensors)
        mean, rsigma = self._statistics(z)
        weight = ((z - mean) * r).sum(2) * rsigma[:, 0]
        return torch.cat([weight, r.sum(2)], 1)

    def values(self, tensors: Sequence[Tensor]) -> Tensor:
        # The gradients of a batch norm over one image, whose channels are those of all examples.
        z, r = (t.detach().reshape(1, -1, t[0, 0].numel()) for t in tensors)
        n, module = len(tensors[0]), self.module
        statistics: Any = (module.running_mean, module.running_var)
        mean, var = (t.to(z.dtype).repeat(n) for t in statistics)
        masks = (None, None, False, module.eps, [False, True, True])
        one = torch.ones_like(mean)
        _, weight, bias = torch.ops.aten.native_batch_norm_backward(r, z, one, mean, var, *masks)
        return torch.cat([weight.view(n, -1), bias.view(n, -1)], 1)

    def formed(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, Pull]:
        z, r = (t.detach() for t in tensors)
        want_z, want_r = (t.requires_grad for t in tensors)
        mean, rsigma = self._statistics(z)

        def pull(c: Tensor) -> Grads:
            shape = (*z.shape[:2], *[1] * (z.ndim - 2))
            weight, bias = (part[..., None] for part in c.chunk(2, 1))
            weight = weight * rsigma
            shift = (bias - weight * mean).view(shape)
            weight = weight.view(shape)
            d_z = weight * r if want_z else None
            d_r = torch.addcmul(shift, weight, z) if want_r else None
            return d_z, d_r

        return self.values(tensors) if g is None else g, pull
