"""Recording: z and r of every layer in one forward and one backward, by hooks.

They become, for each chosen weight, the source of its individual gradients and its tensors.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .convolutions import ConvolutionGradients, DepthwiseGradients
from .double_backward import twice_differentiable
from .layers import RULES, EmbeddingGradients, FrozenNormGradients, SequenceGradients
from .materialised import AutogradGradients, MaterialisedGradients
from .precision import precise
from .sources import GradientSource, LinearOnVectors

# Always frozen here: check_independent refuses others.
FROZEN_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# For each weight, the (layer, attribute) pairs that own it.
Owners = dict[str, list[tuple[nn.Module, str]]]


@dataclass
class LayerCall:
    """One call of a layer: its input z, and the edge at which its output's gradient r arrives."""

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
    call: LayerCall | None = None


@dataclass
class Recording:
    """The calls of each layer in one forward and one backward of a network."""

    weights: dict[str, Tensor]
    calls: dict[nn.Module, list[LayerCall]] = field(default_factory=dict)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record the calls of ``model``'s layers inside the block, to differentiate them twice."""
        with self.of(model.modules()), twice_differentiable(model):
            yield

    @contextmanager
    def of(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Record the calls of those modules that are layers and own a chosen weight."""
        chosen = {id(p) for p in self.weights.values()}
        handles = [
            module.register_forward_hook(self._hook)
            for module in modules
            if type(module) in RULES and any(id(p) in chosen for p in module._parameters.values())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(output, Tensor) and output.requires_grad:
            # The edge, not the tensor: an in-place ReLU after the layer changes the tensor.
            call = LayerCall(module, args[0], get_gradient_edge(output))
            self.calls.setdefault(module, []).append(call)

    def backward(self, losses: Tensor, create_graph: bool) -> None:
        """Fill in r = ∂ Σ_i ℓ_i / ∂ output for every call."""
        calls = [call for many in self.calls.values() for call in many]
        if not calls:
            return
        found = torch.autograd.grad(
            losses.sum(),
            [call.edge for call in calls],
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
        )
        for call, r in zip(calls, found, strict=True):
            call.r = r

    def entries(self, owners: Owners) -> list[WeightGradients]:
        """Return entries for the weights that recorded layers own; unused weights have none."""
        entries: list[WeightGradients] = []
        for name in self.weights:
            calls = self._calls_of(owners.get(name, []))
            if not calls:
                continue
            call, attribute = calls[0]
            closed_form = _closed_form(call, attribute) if len(calls) == 1 else None
            if closed_form is not None:
                tensors = tensors_of(closed_form, [call])
                entries.append(WeightGradients((name,), closed_form, tensors, call))
            elif len(calls) == 1 and entries and _is_bias_of(entries[-1], call):
                weight = entries.pop()
                joint = _with_bias(weight, call)
                names = (*weight.names, name)
                entries.append(WeightGradients(names, joint, tensors_of(joint, [call])))
            else:
                uses = [(call.module, attribute) for call, attribute in calls]
                size = self.weights[name].numel()
                source = AutogradGradients(size, partial(_sum_over_calls, uses))
                tensors = tensors_of(source, [call for call, _ in calls])
                only = call if len(calls) == 1 else None
                entries.append(WeightGradients((name,), source, tensors, only))
        return entries

    def _calls_of(self, owners: list[tuple[nn.Module, str]]) -> list[tuple[LayerCall, str]]:
        return [
            (call, attribute)
            for module, attribute in owners
            for call in self.calls.get(module, [])
            if call.r is not None
        ]


def tensors_of(source: GradientSource, calls: Sequence[LayerCall]) -> list[Tensor]:
    """Return z and r of each call, in a precision that the source takes."""
    pairs = [(call.z, call.r) for call in calls if call.r is not None]
    if isinstance(source, MaterialisedGradients) and source.takes_bf16:
        # Autocast cast z to the dtype of the layer's output, which r has.
        return [
            t.to(r.dtype) if r.dtype == torch.bfloat16 else precise(t)
            for z, r in pairs
            for t in (z, r)
        ]
    return [precise(t) for pair in pairs for t in pair]


def _closed_form(call: LayerCall, attribute: str) -> GradientSource | None:
    """Return the source of a weight that is used once; None if its layer has no form of its own."""
    module: Any = call.module
    if attribute != "weight":
        return None
    if type(module) is nn.Linear:
        if call.z.ndim == 2:
            return LinearOnVectors(module.out_features, module.in_features, bias=False)
        return SequenceGradients.of(module, attribute)
    if type(module) is nn.Embedding:
        return EmbeddingGradients.of(module, attribute)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.padding_mode == "zeros":
        depthwise = module.groups == module.in_channels > 1
        return DepthwiseGradients(module) if depthwise else ConvolutionGradients(module)
    return None


def _is_bias_of(before: WeightGradients, call: LayerCall) -> bool:
    """Return whether a weight is the bias of the entry before it, with the same z and r."""
    if before.call is not call or len(before.names) > 1:
        return False
    return isinstance(before.source, LinearOnVectors) or isinstance(call.module, FROZEN_NORMS)


def _with_bias(weight: WeightGradients, call: LayerCall) -> GradientSource:
    if isinstance(weight.source, LinearOnVectors):
        return replace(weight.source, bias=True)
    return FrozenNormGradients(call.module)  # type: ignore[arg-type]


def _sum_over_calls(uses: Sequence[tuple[nn.Module, str]], *tensors: Tensor) -> Tensor:
    """Return g_i of one weight, summed over all its calls before anything is squared."""
    total: Tensor | None = None
    for k, (module, attribute) in enumerate(uses):
        z, r = tensors[2 * k], tensors[2 * k + 1]
        g = RULES[type(module)](module, attribute, z, r).flatten(1)
        total = g if total is None else total + g
    if total is None:
        raise RuntimeError("a weight that no layer uses has no individual gradients")
    return total


def owners_of(modules: Iterable[nn.Module], weights: dict[str, Tensor]) -> Owners:
    """Return the (layer, attribute) pairs that own each weight, if all of them have a rule."""
    by_id: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in modules:
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
