"""Convolutions: individual gradients of dense and depthwise weights, with derivatives by hand.

g_i = Σ_t r_it ⊗ (the taps of z_i at t) is one matrix product per example, and each of its two
derivatives is one more.
Letters: n examples, g groups, o outputs, i inputs, k taps, t positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as pairs
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .materialised import VJP, MaterialisedGradients, gram_is_cheaper, gram_norms
from .precision import precise, products
from .sources import Grads

ConvolutionLayer = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class ConvolutionGradients(MaterialisedGradients):
    """g_i of a convolution's weight, from tensors (z, r); padding must be zeros.

    With z and r in bf16 the products are bf16 too, and g_i is float32.
    """

    module: ConvolutionLayer
    shared: int = 0
    caches = True
    takes_bf16 = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.module.weight.numel()

    def width(self, tensors: Sequence[Tensor]) -> int:
        z, r = tensors
        return max(self.size, z.shape[1] * prod(self.module.kernel_size) * prod(r.shape[2:]))

    def cotangent_dtype(self, tensors: Sequence[Tensor], g: Tensor) -> torch.dtype:
        return tensors[1].dtype

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (precise(t) for t in tensors)
        return torch.bmm(self._by_group(r), self._taps(z).mT).reshape(len(z), -1)

    def values(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (t.detach() for t in tensors)
        return products(self._by_group(r), self._taps(z).mT).view(len(z), -1)

    def norms_of(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        outputs, inputs = (
            self.module.weight.shape[0] // self.module.groups,
            self.size // len(self.module.weight),
        )
        if not gram_is_cheaper(prod(r.shape[2:]), outputs * inputs, outputs + inputs):
            return super().norms_of(tensors)
        by_group = gram_norms(precise(self._by_group(r)).mT, precise(self._taps(z)).mT)
        return by_group.view(len(z), -1).sum(1)

    def forward_and_vjp(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, VJP]:
        z, r = (t.detach() for t in tensors)
        want_z, want_r = (t.requires_grad for t in tensors)
        taps, by_group = self._taps(z), self._by_group(r)

        def vjp(c: Tensor) -> Grads:
            c = c.view(len(by_group), by_group.shape[1], -1)
            d_r = _product(c, taps, self._last(r)).view(r.shape) if want_r else None
            alone = prod(self.module.kernel_size) == 1 and self._last(z)
            d_z = self._fold(_product(c.mT, by_group, alone), z) if want_z else None
            return d_z, d_r

        if g is None:
            g = products(by_group, taps.mT).view(len(z), -1)
        return g, vjp

    def _last(self, t: Tensor) -> bool:
        return self.module.groups == 1 and _channels_last(t)

    @property
    def _pointwise(self) -> bool:
        """Whether every position of z is seen once, by the same position of the output."""
        module = self.module
        padded = any(module._reversed_padding_repeated_twice)
        return prod(module.kernel_size) == prod(module.stride) == 1 and not padded

    def _by_group(self, r: Tensor) -> Tensor:
        """Return r as ``[n · g, o, t]``."""
        groups = self.module.groups
        return r.reshape(len(r) * groups, r.shape[1] // groups, -1)

    def _pad(self, z: Tensor) -> Tensor:
        padding = self.module._reversed_padding_repeated_twice
        return F.pad(z, padding) if any(padding) else z

    def _windows(self, padded: Tensor) -> Tensor:
        """Return a view ``[n, g · i, *positions, *taps]``."""
        module = self.module
        steps = zip(module.kernel_size, module.stride, module.dilation, strict=True)
        for axis, (size, stride, dilation) in enumerate(steps, start=2):
            padded = padded.unfold(axis, dilation * (size - 1) + 1, stride)
            padded = padded if dilation == 1 else padded[..., ::dilation]
        return padded

    def _taps(self, z: Tensor) -> Tensor:
        """Return the inputs that each position sees, ``[n · g, i · k, t]``; a view if k is 1."""
        axes, groups = z.ndim - 2, self.module.groups
        inner = z.shape[1] // groups * prod(self.module.kernel_size)
        if self._pointwise:
            return z.reshape(len(z) * groups, inner, -1)
        windows = self._windows(self._pad(z))
        positions, taps = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
        if self._last(z):  # the copy has its channels last too
            last = windows.permute(0, *positions, 1, *taps)
            return last.reshape(len(z), -1, inner).mT
        return windows.permute(0, 1, *taps, *positions).reshape(len(z) * groups, inner, -1)

    def _fold(self, c: Tensor, z: Tensor) -> Tensor:
        """Return the gradient in z of a cotangent of its taps, ``[n · g, i · k, t]``."""
        module = self.module
        if self._pointwise:
            return c.reshape(z.shape)
        padding = module._reversed_padding_repeated_twice
        if z.ndim == 4 and padding[::2] == padding[1::2] and not _channels_last(z):
            columns = c.reshape(len(z), -1, c.shape[2])
            folded: Tensor = torch.ops.aten.col2im(
                columns,
                z.shape[2:],
                module.kernel_size,
                module.dilation,
                padding[-2::-2],
                module.stride,
            )
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
        taps: list[Any] = list(pairs(*map(range, module.kernel_size)))
        for tap in taps:
            windows[(..., *tap)].add_(c[(slice(None), slice(None), *tap)])
        return F.pad(padded, [-side for side in padding]) if any(padding) else padded


def _channels_last(z: Tensor) -> bool:
    last = torch.channels_last
    return z.ndim == 4 and z.is_contiguous(memory_format=last) and not z.is_contiguous()


def _product(a: Tensor, b: Tensor, last: bool) -> Tensor:
    """Return a @ b, stored as its transpose if the channels go last."""
    return torch.bmm(b.mT, a.mT).mT if last else torch.bmm(a, b)


@dataclass(frozen=True)
class DepthwiseGradients(MaterialisedGradients):
    """g_i of a depthwise convolution's weight, from tensors (z, r); padding must be zeros."""

    module: ConvolutionLayer
    shared: int = 0
    caches = True
    takes_bf16 = True

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.module.weight.numel()

    def width(self, tensors: Sequence[Tensor]) -> int:
        return max(self.size, tensors[0][0].numel())

    def individual(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = tensors
        return self._weight(self._pad(_side_by_side(z)), _side_by_side(r)).reshape(len(z), -1)

    def forward_and_vjp(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, VJP]:
        z, r = tensors
        x = self._pad(_side_by_side(z.detach()))
        r_wide = _side_by_side(r.detach())

        def vjp(c: Tensor) -> Grads:
            weight = c.view(-1, 1, *self.module.kernel_size)
            geometry = self._geometry(x)
            d_r = d_z = None
            if r.requires_grad:
                d_r = _as_batch(torch.ops.aten.convolution(x, weight, None, *geometry), r)
            if z.requires_grad:
                mask = [True, False, False]
                d_x = torch.ops.aten.convolution_backward(r_wide, x, weight, None, *geometry, mask)[
                    0
                ]
                crop = [-side for side in self._uneven_padding]
                d_z = _as_batch(F.pad(d_x, crop) if crop else d_x, z)
            return d_z, d_r

        if g is None:
            g = self._weight(x, r_wide).view(len(z), -1)
        return g, vjp

    @property
    def _uneven_padding(self) -> list[int]:
        """The padding to add first, because torch's convolution pads both sides alike."""
        both: list[int] = self.module._reversed_padding_repeated_twice
        return [] if both[::2] == both[1::2] else both

    def _pad(self, images: Tensor) -> Tensor:
        return F.pad(images, self._uneven_padding) if self._uneven_padding else images

    def _geometry(self, x: Tensor) -> tuple[Any, ...]:
        """Return torch's arguments for examples side by side, each as more groups."""
        module, none = self.module, [0] * len(self.module.stride)
        both = module._reversed_padding_repeated_twice
        padding = none if self._uneven_padding else both[::-2]
        return list(module.stride), padding, list(module.dilation), False, none, x.shape[1]

    def _weight(self, x: Tensor, r: Tensor) -> Tensor:
        weight = x.new_empty(r.shape[1], 1, *self.module.kernel_size)
        mask = [False, True, False]
        found: Tensor = torch.ops.aten.convolution_backward(
            r, x, weight, None, *self._geometry(x), mask
        )[1]
        return found


def _side_by_side(t: Tensor) -> Tensor:
    """Return n images as one image with the channels of all, in the precision of statistics."""
    dtype = torch.promote_types(t.dtype, torch.float32)
    return t.to(dtype, memory_format=torch.contiguous_format).reshape(1, -1, *t.shape[2:])


def _as_batch(image: Tensor, like: Tensor) -> Tensor:
    """Return n images again, in the precision and memory format of ``like``."""
    return torch.empty_like(like).copy_(image.view(like.shape))
