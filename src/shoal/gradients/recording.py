"""The uses of a network's layers in one forward and one backward, as sources of gradients.

For each chosen weight: the source of its individual gradients and the tensors they are made of.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .convolutions import ConvolutionGradients, DepthwiseGradients
from .double_backward import twice_differentiable
from .layers import RULES, FrozenNormGradients
from .materialised import AutogradGradients, MaterialisedGradients
from .precision import precise
from .sources import GradientSource, LinearOnVectors

# Frozen, because check_independent lets no other pass.
FROZEN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


# For each weight, the (layer, attribute) pairs that own it.
Owners = dict[str, list[tuple[nn.Module, str]]]


@dataclass
class LayerCall:
    """One call of a layer: its input z and the place where the gradient r of its output arrives."""

    module: nn.Module
    z: Tensor
    edge: GradientEdge
    r: Tensor | None = None


@dataclass
class WeightGradients:
    """Consecutive weights ``names`` and the source of their individual gradients."""

    names: tuple[str, ...]
    source: GradientSource
    tensors: list[Tensor]
    use: LayerCall | None = None


@dataclass
class Recording:
    """What a forward and a backward of a network left behind: the uses of each layer."""

    weights: dict[str, Tensor]
    uses: dict[nn.Module, list[LayerCall]] = field(default_factory=dict)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record what happens in ``model`` inside the block."""
        chosen = {id(p) for p in self.weights.values()}
        handles = [
            module.register_forward_hook(self._hook)
            for module in model.modules()
            if type(module) in RULES
            and any(id(p) in chosen for p in module.parameters(recurse=False))
        ]
        try:
            with twice_differentiable(model):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(output, Tensor) and output.requires_grad:
            # The edge, not the tensor: an in-place ReLU after the layer changes the tensor.
            use = LayerCall(module, args[0], get_gradient_edge(output))
            self.uses.setdefault(module, []).append(use)

    def backward(self, losses: Tensor, create_graph: bool) -> None:
        """Fill in r = ∂ Σ_i ℓ_i / ∂ output for every use."""
        uses = [use for many in self.uses.values() for use in many]
        if not uses:
            return
        found = torch.autograd.grad(
            losses.sum(),
            [use.edge for use in uses],
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
        )
        for use, r in zip(uses, found, strict=True):
            use.r = r

    def entries(self, owners: Owners) -> list[WeightGradients]:
        """Return entries for the weights that recorded layers own; unused weights have none."""
        entries: list[WeightGradients] = []
        for name in self.weights:
            uses = self._uses(owners.get(name, []))
            if not uses:
                continue
            use, attribute = uses[0]
            alone = _closed_form(use, attribute) if len(uses) == 1 else None
            if alone is not None:
                entries.append(WeightGradients((name,), alone, _tensors(alone, [use]), use))
            elif len(uses) == 1 and entries and _joins(entries[-1], use):
                # The bias of the weight before it, with the same z and r.
                weight = entries.pop()
                joined = _with_bias(weight, use)
                entries.append(
                    WeightGradients((*weight.names, name), joined, _tensors(joined, [use]))
                )
            else:
                calls = [(use.module, attribute) for use, attribute in uses]
                size = self.weights[name].numel()
                source = AutogradGradients(size, partial(_sum_of_uses, calls))
                tensors = _tensors(source, [use for use, _ in uses])
                entries.append(
                    WeightGradients((name,), source, tensors, use if len(uses) == 1 else None)
                )
        return entries

    def _uses(self, owners: list[tuple[nn.Module, str]]) -> list[tuple[LayerCall, str]]:
        return [
            (use, attribute)
            for module, attribute in owners
            for use in self.uses.get(module, [])
            if use.r is not None
        ]


def _tensors(source: GradientSource, uses: Sequence[LayerCall]) -> list[Tensor]:
    """Return z and r of each use, in a precision that the source takes."""
    pairs = [(use.z, use.r) for use in uses if use.r is not None]
    if isinstance(source, MaterialisedGradients) and source.takes_bf16:
        # Autocast made z what the layer has returned.
        return [
            t.to(r.dtype) if r.dtype == torch.bfloat16 else precise(t)
            for z, r in pairs
            for t in (z, r)
        ]
    return [precise(t) for pair in pairs for t in pair]


def _closed_form(use: LayerCall, attribute: str) -> GradientSource | None:
    """Return the source of a weight that is used once, where there is one without autograd."""
    module: Any = use.module
    if attribute != "weight":
        return None
    if type(module) is nn.Linear and use.z.ndim == 2:
        return LinearOnVectors(module.out_features, module.in_features, bias=False)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.padding_mode == "zeros":
        depthwise = module.groups == module.in_channels > 1
        return DepthwiseGradients(module) if depthwise else ConvolutionGradients(module)
    return None


def _joins(before: WeightGradients, use: LayerCall) -> bool:
    """Return whether a bias goes with the weight before it."""
    if before.use is not use or len(before.names) > 1:
        return False
    return isinstance(before.source, LinearOnVectors) or isinstance(use.module, FROZEN)


def _with_bias(weight: WeightGradients, use: LayerCall) -> GradientSource:
    if isinstance(weight.source, LinearOnVectors):
        return replace(weight.source, bias=True)
    return FrozenNormGradients(use.module)  # type: ignore[arg-type]


def _sum_of_uses(calls: Sequence[tuple[nn.Module, str]], *tensors: Tensor) -> Tensor:
    """Return g_i of one weight, summed over all its uses before anything is squared."""
    total: Tensor | None = None
    for k, (module, attribute) in enumerate(calls):
        z, r = tensors[2 * k], tensors[2 * k + 1]
        g = RULES[type(module)](module, attribute, z, r).flatten(1)
        total = g if total is None else total + g
    if total is None:
        raise RuntimeError("a weight without a use has no individual gradients")
    return total


def owners_of(model: nn.Module, weights: dict[str, Tensor]) -> Owners:
    """Return for each weight the (layer, attribute) pairs that own it, if all have a rule."""
    by_id: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                by_id.setdefault(id(parameter), []).append((module, attribute))
    return {
        name: by_id[id(p)]
        for name, p in weights.items()
        if id(p) in by_id
        and all(
            type(module) in RULES and attribute in ("weight", "bias")
            for module, attribute in by_id[id(p)]
        )
    }
