"""One forward and one backward of a network, recorded layer by layer.

For each chosen weight: the source of its individual gradients and the tensors they are made of.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from .anywhere import individual_gradients
from .groups import Sorted
from .inputs import Examples, precise
from .layers import RULES
from .losses import Loss, individual_losses
from .sources import Individual, LinearOnVectors, Source

# Σ_i g_i against autograd's gradient, relative to the root of Σ_i g_i²; half precision is coarse.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
COARSE = 5e-2

# Weights whose layers do not tell the truth about them (in-place surgery, functional use),
# found on first use: model -> names asked for -> names that need torch.func.
_untold: WeakKeyDictionary[nn.Module, dict[tuple[str, ...], frozenset[str]]] = WeakKeyDictionary()


@dataclass
class Use:
    """One call of a layer: its input z and the place where the gradient r of its output arrives."""

    module: nn.Module
    z: Tensor
    edge: GradientEdge
    r: Tensor | None = None


@dataclass
class Entry:
    """Consecutive weights ``names`` and the source of their individual gradients."""

    names: tuple[str, ...]
    source: Source
    tensors: list[Tensor]


@dataclass
class Recording:
    """What a forward and a backward left behind: logits, losses [n] and uses of each layer."""

    weights: dict[str, Tensor]
    uses: dict[nn.Module, list[Use]] = field(default_factory=dict)

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
            # Fused attention has no second derivative.
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(output, Tensor) and output.requires_grad:
            # The edge, not the tensor: an in-place ReLU after the layer changes the tensor.
            use = Use(module, args[0], get_gradient_edge(output))
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

    def entries(self, owners: dict[str, list[tuple[nn.Module, str]]]) -> list[Entry]:
        """Return an entry for every weight that a recorded layer owns."""
        return [self._entry(name, owners[name]) for name in self.weights if name in owners]

    def _entry(self, name: str, owners: list[tuple[nn.Module, str]]) -> Entry:
        uses = [
            (use, attribute)
            for module, attribute in owners
            for use in self.uses.get(module, [])
            if use.r is not None
        ]
        tensors = [precise(t) for use, _ in uses for t in (use.z, use.r) if t is not None]
        size = self.weights[name].numel()
        if len(uses) == 1:
            use, attribute = uses[0]
            on_vectors = type(use.module) is nn.Linear and use.z.ndim == 2
            if on_vectors and attribute == "weight":
                return Entry((name,), LinearOnVectors(size), tensors)
        calls = [(use.module, attribute) for use, attribute in uses]
        return Entry((name,), Individual(size, partial(_sum_of_uses, calls)), tensors)


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


def owners_of(
    model: nn.Module, weights: dict[str, Tensor]
) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return for each weight the (layer, attribute) pairs that own it, if all have a rule."""
    by_id: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                by_id.setdefault(id(parameter), []).append((module, attribute))
    return {
        name: by_id[id(p)]
        for name, p in weights.items()
        if id(p) in by_id and all(type(module) in RULES for module, _ in by_id[id(p)])
    }


def record(
    model: nn.Module,
    weights: dict[str, Tensor],
    examples: Examples,
    loss: Loss | None,
    create_graph: bool,
) -> list[Entry]:
    """Return entries that together hold every weight, after one forward and one backward."""
    recording = Recording(weights)
    with torch.enable_grad():
        with recording.on(model):
            logits = examples.run(model)
        losses = individual_losses(precise(logits), examples.labels, loss)
        return finish(recording, model, examples, losses, loss, create_graph)


def finish(
    recording: Recording,
    model: nn.Module,
    examples: Examples,
    losses: Tensor,
    loss: Loss | None,
    create_graph: bool,
) -> list[Entry]:
    """Run the backward of a recorded forward and return its entries."""
    weights = recording.weights
    recording.backward(losses, create_graph)
    owners = owners_of(model, weights)
    entries = [entry for entry in recording.entries(owners) if entry.tensors]
    key = tuple(weights)
    known = _untold.setdefault(model, {})
    if key not in known and not _capturing():
        known[key] = _find_untold(weights, owners, entries, losses)
    untold = known.get(key, frozenset())
    entries = [entry for entry in entries if entry.names[0] not in untold]
    rest = [name for name in weights if name in untold]
    if rest:
        function, tensors, shared = individual_gradients(model, rest, examples, loss)
        size = sum(weights[name].numel() for name in rest)
        entries.append(Entry(tuple(rest), Individual(size, function, shared), tensors))
    return entries


def _find_untold(
    weights: dict[str, Tensor],
    owners: dict[str, list[tuple[nn.Module, str]]],
    entries: list[Entry],
    losses: Tensor,
) -> frozenset[str]:
    """Return the weights whose Σ_i g_i differs from autograd's gradient, after naming them."""
    names = list(weights)
    found = torch.autograd.grad(
        losses.sum(), [weights[name] for name in names], retain_graph=True, allow_unused=True
    )
    truth = {name: g for name, g in zip(names, found, strict=True) if g is not None}
    together = Sorted((len(losses),), losses.device)
    told = set()
    for entry in entries:
        name = entry.names[0]
        detached = [t.detach() for t in entry.tensors]
        mean, squares, _ = entry.source.moments(detached, together, centered=False)
        gap = (mean[0] * len(losses) - truth[name].flatten()).norm()
        coarse = any(t.dtype not in TOLERANCES for t in (truth[name], losses)) or (
            torch.is_autocast_enabled(losses.device.type)
        )
        tolerance = COARSE if coarse else TOLERANCES[losses.dtype]
        if bool(gap <= tolerance * squares.sum().sqrt()):
            told.add(name)
    untold = frozenset(name for name in truth if name not in told)
    surprising = [name for name in untold if name in owners]
    if surprising:
        warnings.warn(
            f"the layers that own {', '.join(sorted(surprising))} do not account for the whole "
            "gradient of these weights (used outside the layer's own call?); their individual "
            "gradients are taken by torch.func instead, which is exact and slower",
            RuntimeWarning,
            stacklevel=2,
        )
    return untold


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
