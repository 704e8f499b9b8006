"""One forward and one backward of a network, recorded layer by layer.

For each chosen weight: the source of its individual gradients and the tensors they are made of.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .anywhere import individual_gradients
from .convolved import OfConvolution, OfFrozenNorm
from .elementary import twice_differentiable
from .groups import Sorted
from .inputs import Examples, precise
from .layers import RULES
from .losses import Loss
from .sources import Individual, LinearOnVectors, Source

# Σ_i g_i against autograd's gradient, relative to the root of Σ_i g_i².
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
# The same where products round their factors, by the digits that are left: relative to the larger
# of that root and the gradient, because some kernels cut digits off and shift all products alike.
ROUNDED = {"half": 5e-2, "tf32": 2e-2}
# Frozen, because check_independent lets no other pass.
FROZEN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass
class Verdict:
    """Which weights their layers do not account for, and how often that was asked."""

    untold: frozenset[str] = frozenset()
    calls: int = 0


# model -> names asked for and mode -> verdict, looked at on calls 1, 2, 4, 8 …
_verdicts: WeakKeyDictionary[nn.Module, dict[tuple[str | bool, ...], Verdict]] = WeakKeyDictionary()


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
    use: Use | None = None


@dataclass
class Recording:
    """What a forward and a backward of a network left behind: the uses of each layer."""

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
            with twice_differentiable(model):
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
        """Return entries for the weights that recorded layers own; unused weights have none."""
        entries: list[Entry] = []
        for name in self.weights:
            uses = self._uses(owners.get(name, []))
            if not uses:
                continue
            tensors = [precise(t) for use, _ in uses for t in (use.z, use.r) if t is not None]
            use, attribute = uses[0]
            alone = _closed_form(use, attribute) if len(uses) == 1 else None
            if alone is not None:
                entries.append(Entry((name,), alone, tensors, use))
            elif len(uses) == 1 and entries and _joins(entries[-1], use):
                # The bias of the weight before it, with the same z and r.
                weight = entries.pop()
                joined = _with_bias(weight, use)
                entries.append(Entry((*weight.names, name), joined, weight.tensors))
            else:
                calls = [(use.module, attribute) for use, attribute in uses]
                size = self.weights[name].numel()
                source = Individual(size, partial(_sum_of_uses, calls))
                entries.append(Entry((name,), source, tensors, use if len(uses) == 1 else None))
        return entries

    def _uses(self, owners: list[tuple[nn.Module, str]]) -> list[tuple[Use, str]]:
        return [
            (use, attribute)
            for module, attribute in owners
            for use in self.uses.get(module, [])
            if use.r is not None
        ]


def _closed_form(use: Use, attribute: str) -> Source | None:
    """Return the source of a weight that is used once, where there is one without autograd."""
    module: Any = use.module
    if attribute != "weight":
        return None
    if type(module) is nn.Linear and use.z.ndim == 2:
        return LinearOnVectors(module.out_features, module.in_features, bias=False)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.padding_mode == "zeros":
        return OfConvolution(module)
    return None


def _joins(before: Entry, use: Use) -> bool:
    """Return whether a bias goes with the weight before it."""
    if before.use is not use or len(before.names) > 1:
        return False
    return isinstance(before.source, LinearOnVectors) or isinstance(use.module, FROZEN)


def _with_bias(weight: Entry, use: Use) -> Source:
    if isinstance(weight.source, LinearOnVectors):
        return replace(weight.source, bias=True)
    return OfFrozenNorm(use.module)  # type: ignore[arg-type]


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
        if id(p) in by_id
        and all(
            type(module) in RULES and attribute in ("weight", "bias")
            for module, attribute in by_id[id(p)]
        )
    }


def record(
    model: nn.Module,
    weights: dict[str, Tensor],
    examples: Examples,
    loss: Loss | None,
    create_graph: bool,
    trusted: bool = False,
) -> tuple[Tensor, list[Entry]]:
    """Return ℓ_i, and entries that together hold every weight, of one forward and one backward."""
    recording = Recording(weights)
    with torch.enable_grad():
        with recording.on(model):
            losses = examples.losses(model, loss)
        return losses, finish(recording, model, examples, losses, loss, create_graph, trusted)


def finish(
    recording: Recording,
    model: nn.Module,
    examples: Examples,
    losses: Tensor,
    loss: Loss | None,
    create_graph: bool,
    trusted: bool = False,
) -> list[Entry]:
    """Run the backward of a recorded forward; return entries, also of what no layer tells."""
    weights = recording.weights
    recording.backward(losses, create_graph)
    owners = owners_of(model, weights)
    entries = recording.entries(owners)
    verdict = _verdicts.setdefault(model, {}).setdefault((model.training, *weights), Verdict())
    odd = {
        name
        for entry in entries
        for name in entry.names
        if any(len(t) != len(losses) for t in entry.tensors)  # positions where examples should be
    }
    due = (verdict.calls + 1) & verdict.calls == 0
    # What is not finite says nothing about the layers.
    if not (trusted or _capturing()) and (not due or bool(torch.isfinite(losses).all())):
        verdict.calls += 1
        if due:
            known = verdict.untold
            verdict.untold = known | _find_untold(weights, owners, entries, losses, known)
    untold = verdict.untold | odd
    entries = [entry for entry in entries if not untold.intersection(entry.names)]
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
    known: frozenset[str],
) -> frozenset[str]:
    """Return the weights whose Σ_i a_i g_i differs from autograd's gradient of Σ_i a_i ℓ_i.

    With random a_i, because layers that see the examples in another order, or positions where
    examples should be, still get the plain sum right. Weights not yet ``known`` are named.
    """
    names = list(weights)
    random = torch.rand(len(losses), generator=torch.Generator().manual_seed(0)).to(losses) + 0.5
    found = torch.autograd.grad(
        (random * losses).sum(), list(weights.values()), retain_graph=True, allow_unused=True
    )
    truth = {name: g for name, g in zip(names, found, strict=True) if g is not None}
    told: set[str] = set()
    for entry in entries:
        if all(len(t) == len(losses) for t in entry.tensors):
            whole = torch.cat([truth[name].flatten() for name in entry.names])
            if _accounts_for(entry, whole, random):
                told.update(entry.names)
    untold = frozenset(name for name in truth if name not in told)
    surprising = [name for name in sorted(untold - known) if name in owners]
    if surprising:
        warnings.warn(
            f"the layers that own {', '.join(surprising)} do not account for the whole gradient "
            "of these weights (used outside the layer's own call, or not with examples first?); "
            "their individual gradients are taken by torch.func instead: exact, and slower",
            RuntimeWarning,
            stacklevel=2,
        )
    return untold


def _accounts_for(entry: Entry, whole: Tensor, random: Tensor) -> bool:
    """Return whether the entry's Σ_i a_i g_i is ``whole``; g_i is linear in each r."""
    scaled = [t.detach() for t in entry.tensors]
    for k in range(1, len(scaled), 2):
        scaled[k] = scaled[k] * random.reshape(-1, *[1] * (scaled[k].ndim - 1)).to(scaled[k])
    together = Sorted((len(random),), random.device)
    mean, squares = entry.source.moments(scaled, together, centered=False)
    gap, size = (mean[0] * len(random) - whole).norm(), squares.sum().sqrt()
    products = _products(whole)
    if products is not None:
        size = torch.maximum(size, whole.norm())
    tolerance = TOLERANCES[whole.dtype] if products is None else ROUNDED[products]
    # A gradient that is zero by construction is rounding of the r it is summed from.
    rounding = 100 * torch.finfo(mean.dtype).eps * sum(t.abs().sum() for t in scaled[1::2])
    return bool(gap <= tolerance * size + rounding) or not bool(gap.isfinite())


def _products(like: Tensor) -> str | None:
    """Return to what products of such weights round their factors; None where they do not."""
    if like.dtype not in TOLERANCES or torch.is_autocast_enabled(like.device.type):
        return "half"
    if like.dtype == torch.float64:
        return None
    matmul = torch.get_float32_matmul_precision()
    if like.device.type == "cpu":  # "high" does not change it there
        return "half" if matmul == "medium" else None
    return "tf32" if matmul != "highest" or torch.backends.cudnn.allow_tf32 else None


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
