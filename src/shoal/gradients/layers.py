"""Layers: one rule per layer type for its individual gradients, and frozen batch norm by hand.

A rule takes the module, the name of one of its weights, the layer's input z and the gradient r in
its output. It returns the gradient of every example, summed over positions (tokens, pixels) before
anything is squared. Letters: n examples, t positions, o outputs, i inputs, g groups, k taps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .double_backward import norm_gradients
from .materialised import (
    VJP,
    AutogradGradients,
    MaterialisedGradients,
    gram_is_cheaper,
    gram_norms,
)
from .precision import precise
from .sources import Grads

LayerRule = Callable[[Any, str, Tensor, Tensor], Tensor]
RULES: dict[type[nn.Module], LayerRule] = {}


def rule(*types: type[nn.Module]) -> Callable[[LayerRule], LayerRule]:
    """Register a rule for these exact types; a subclass can do anything in its forward."""

    def register(function: LayerRule) -> LayerRule:
        for layer in types:
            RULES[layer] = function
        return function

    return register


@rule(nn.Linear)
def linear(module: nn.Linear, weight: str, z: Tensor, r: Tensor) -> Tensor:
    r = r.reshape(len(r), -1, r.shape[-1])
    if weight == "bias":
        return r.sum(1)
    return torch.bmm(r.mT, z.reshape(len(z), -1, z.shape[-1]))


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(
    module: nn.Conv1d | nn.Conv2d | nn.Conv3d, weight: str, z: Tensor, r: Tensor
) -> Tensor:
    if weight == "bias":
        return r.flatten(2).sum(-1)
    # Windows as strided views, one spatial axis after the other: [n, i, *positions, *taps].
    padding = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    windows = F.pad(z, padding, mode=mode)
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
    ):
        windows = windows.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    n, groups = len(z), module.groups
    taps = windows.reshape(n, groups, z.shape[1] // groups, r[0, 0].numel(), -1)
    r = r.reshape(n, groups, r.shape[1] // groups, -1)
    return torch.einsum("ngot,ngitk->ngoik", r, taps)


@rule(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, weight: str, z: Tensor, r: Tensor) -> Tensor:
    if weight == "weight":
        r = r * F.layer_norm(z, module.normalized_shape, None, None, module.eps)
    return r.reshape(len(r), -1, *module.normalized_shape).sum(1)


@rule(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, weight: str, z: Tensor, r: Tensor) -> Tensor:
    if weight == "weight":
        r = r * F.group_norm(z, module.num_groups, None, None, module.eps)
    return _over_positions(r)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(module: nn.BatchNorm2d, weight: str, z: Tensor, r: Tensor) -> Tensor:
    if weight == "weight":
        r = r * _with_running_statistics(module, z)
    return _over_positions(r)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(module: nn.InstanceNorm2d, weight: str, z: Tensor, r: Tensor) -> Tensor:
    if weight == "weight":
        if module.track_running_stats and not module.training:
            r = r * _with_running_statistics(module, z)
        else:
            r = r * F.group_norm(z, z.shape[1], None, None, module.eps)
    return _over_positions(r)


def _with_running_statistics(module: nn.BatchNorm2d | nn.InstanceNorm2d, z: Tensor) -> Tensor:
    mean, var = module.running_mean, module.running_var
    return F.batch_norm(z, mean, var, None, None, False, 0.0, module.eps)


def _over_positions(r: Tensor) -> Tensor:
    """Return r summed over positions, ``[n, channels, ...] -> [n, channels]``."""
    return r.reshape(*r.shape[:2], -1).sum(-1)


@rule(nn.Embedding)
def embedding(module: nn.Embedding, weight: str, z: Tensor, r: Tensor) -> Tensor:
    n = len(z)
    tokens, r = z.reshape(n, -1), r.reshape(n, -1, r.shape[-1])
    if module.padding_idx is not None:
        r = r * (tokens != module.padding_idx)[..., None]
    rows = r.new_zeros(n, *module.weight.shape)
    return rows.scatter_add(1, tokens[..., None].expand_as(r), r)


@dataclass(frozen=True)
class RuleGradients(AutogradGradients):
    """g_i of a weight that is used once, by the rule of its layer, from tensors (z, r)."""

    @classmethod
    def of(cls, module: Any, weight: str) -> "RuleGradients":
        function = RULES[type(module)]
        return cls(
            getattr(module, weight).numel(),
            lambda z, r: function(module, weight, z, r).flatten(1),
        )


@dataclass(frozen=True)
class SequenceGradients(RuleGradients):
    """g_i = Σ_t r_it ⊗ z_it of a linear layer on sequences."""

    def norms_of(self, tensors: Sequence[Tensor]) -> Tensor:
        z, r = (t.reshape(len(t), -1, t.shape[-1]) for t in tensors)
        if not gram_is_cheaper(z.shape[1], self.size, z.shape[2] + r.shape[2]):
            return super().norms_of(tensors)
        return gram_norms(r, z)


@dataclass(frozen=True)
class EmbeddingGradients(RuleGradients):
    """g_i of an embedding: r_it is added to the row of token t, unless that is the padding."""

    padding: int | None = None

    @classmethod
    def of(cls, module: Any, weight: str) -> "EmbeddingGradients":
        plain = RuleGradients.of(module, weight)
        return cls(plain.size, plain.function, padding=module.padding_idx)

    def width(self, tensors: Sequence[Tensor]) -> int:
        return max(self.size, tensors[0][0].numel() ** 2)

    def norms_of(self, tensors: Sequence[Tensor]) -> Tensor:
        tokens, r = tensors[0].reshape(len(tensors[0]), -1), tensors[1]
        r = r.reshape(*tokens.shape, -1)
        same = tokens[:, :, None] == tokens[:, None]
        if self.padding is not None:
            same &= (tokens != self.padding)[:, None]
        return (torch.bmm(r, r.mT) * same).sum((1, 2)).clamp_(min=0)


@dataclass(frozen=True)
class FrozenNormGradients(MaterialisedGradients):
    """g_i of weight and bias of a batch norm with frozen statistics, from tensors (z, r).

    With x̂ = (z − μ)/σ they are Σ_t r x̂ and Σ_t r for each channel.
    """

    module: nn.modules.batchnorm._BatchNorm
    shared: int = 0
    caches = True
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
        # The gradients of a batch norm over one image that has the channels of all examples.
        z, r = (t.detach().reshape(1, -1, prod(t.shape[2:])) for t in tensors)
        n = len(tensors[0])
        mean, var = (t.expand(n, -1).reshape(-1) for t in self._statistics(z))
        # Any weights will do: only the gradient in z has them, and a GPU's kernel wants some.
        wanted = (False, True, True)
        found = norm_gradients(r, z, var, mean, var, self.module.eps, wanted=wanted)
        return torch.cat([one.view(n, -1) for one in found if one is not None], 1)

    def forward_and_vjp(self, tensors: Sequence[Tensor], g: Tensor | None) -> tuple[Tensor, VJP]:
        z, r = (t.detach() for t in tensors)
        want_z, want_r = (t.requires_grad for t in tensors)
        mean, var = self._statistics(z)

        def vjp(c: Tensor) -> Grads:
            shape = (*z.shape[:2], *[1] * (z.ndim - 2))
            weight, bias = c.chunk(2, 1)
            weight = weight * (var + self.module.eps).rsqrt()
            shift = (bias - weight * mean).view(shape)
            weight = weight.view(shape)
            # Written in the precision of z and r, in one pass.
            d_z = torch.mul(weight, r, out=torch.empty_like(r)) if want_z else None
            d_r = torch.addcmul(shift, weight, z, out=torch.empty_like(z)) if want_r else None
            return d_z, d_r

        return self.values(tensors) if g is None else g, vjp
