"""One forward and one backward of a network: ℓ_i, and where each weight's gradients come from."""

import warnings
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .domains import SortedDomains
from .examples import Examples, Loss
from .materialised import AutogradGradients
from .precision import dense, rounding
from .recording import Owners, Recording, WeightGradients, owners_of
from .vmap import individual_gradients

# Σ_i g_i against autograd's gradient, relative to the root of Σ_i g_i².
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
# The same where products round their factors, by the digits that are left: relative to the larger
# of that root and the gradient, because some kernels cut digits off and shift all products alike.
ROUNDED = {"half": 5e-2, "tf32": 2e-2}


@dataclass
class HookCheck:
    """Which weights their layers do not account for, and how often that was asked."""

    untold: frozenset[str] = frozenset()
    calls: int = 0


# model -> names asked for, mode and precision -> verdict, looked at on calls 1, 2, 4, 8 …
Asked = tuple[str | bool | None, ...]
_verdicts: WeakKeyDictionary[nn.Module, dict[Asked, HookCheck]] = WeakKeyDictionary()


def untold_of(
    model: nn.Module,
    weights: dict[str, Tensor],
    owners: Owners,
    entries: list[WeightGradients],
    losses: Tensor,
    trusted: bool,
) -> frozenset[str]:
    """Return the weights that ``entries`` do not account for; unless ``trusted``, look if due."""
    asked = (model.training, rounding(next(iter(weights.values()))), *weights)
    verdict = _verdicts.setdefault(model, {}).setdefault(asked, HookCheck())
    due = (verdict.calls + 1) & verdict.calls == 0
    # What is not finite says nothing about the layers.
    if not (trusted or _capturing()) and (not due or bool(torch.isfinite(losses).all())):
        verdict.calls += 1
        if due:
            known = verdict.untold
            verdict.untold = known | _find_untold(weights, owners, entries, losses, known)
    odd = {
        name
        for entry in entries
        for name in entry.names
        if any(len(t) != len(losses) for t in entry.tensors)  # positions where examples should be
    }
    return verdict.untold | odd


def _find_untold(
    weights: dict[str, Tensor],
    owners: Owners,
    entries: list[WeightGradients],
    losses: Tensor,
    known: frozenset[str],
) -> frozenset[str]:
    """Return the weights whose Σ_i a_i g_i differs from autograd's gradient of Σ_i a_i ℓ_i.

    With random a_i, because layers that see the examples in another order, or positions where
    examples should be, still get the plain sum right. Weights not yet ``known`` are named.
    """
    names = list(weights)
    # Powers of two: they pass through every rounding of a backward, whose r are then a_i r_i.
    order = torch.randperm(len(losses), generator=torch.Generator().manual_seed(0))
    random = torch.exp2(order % 4 - 2.0).to(losses)
    found = torch.autograd.grad(
        (random * losses).sum(), list(weights.values()), retain_graph=True, allow_unused=True
    )
    truth = {name: dense(g) for name, g in zip(names, found, strict=True) if g is not None}
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


def _accounts_for(entry: WeightGradients, whole: Tensor, random: Tensor) -> bool:
    """Return whether the entry's Σ_i a_i g_i is ``whole``; g_i is linear in each r."""
    scaled = [t.detach() for t in entry.tensors]
    for k in range(1, len(scaled), 2):
        scaled[k] = scaled[k] * random.reshape(-1, *[1] * (scaled[k].ndim - 1)).to(scaled[k])
    together = SortedDomains((len(random),), random.device)
    digits = rounding(whole)
    with torch.autocast(whole.device.type, enabled=False):
        mean, squares = entry.source.moments(scaled, together, centered=False)
    gap, size = (mean[0] * len(random) - whole).norm(), squares.sum().sqrt()
    if digits is not None:
        size = torch.maximum(size, whole.norm())
    tolerance = TOLERANCES[whole.dtype] if digits is None else ROUNDED[digits]
    # A gradient that is zero by construction is rounding of the r it is summed from.
    zero = 100 * torch.finfo(mean.dtype).eps * sum(t.abs().sum() for t in scaled[1::2])
    return bool(gap <= tolerance * size + zero) or not bool(gap.isfinite())


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def record(
    model: nn.Module,
    weights: dict[str, Tensor],
    examples: Examples,
    loss: Loss | None,
    create_graph: bool,
    trusted: bool = False,
) -> tuple[Tensor, list[WeightGradients]]:
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
) -> list[WeightGradients]:
    """Run the backward of a recorded forward; return entries, also of what no layer tells."""
    weights = recording.weights
    recording.backward(losses, create_graph)
    owners = owners_of(model, weights)
    entries = recording.entries(owners)
    untold = untold_of(model, weights, owners, entries, losses, trusted)
    entries = [entry for entry in entries if not untold.intersection(entry.names)]
    rest = [name for name in weights if name in untold]
    if rest:
        function, tensors, shared = individual_gradients(model, rest, examples, loss)
        size = sum(weights[name].numel() for name in rest)
        entries.append(
            WeightGradients(tuple(rest), AutogradGradients(size, function, shared), tensors)
        )
    return entries
