"""Collection: one forward and one backward give ℓ_i and the gradients of every weight, verified.

Layers with a rule report their gradients through hooks. Their sum is compared with autograd's now
and then; weights that hooks miss are left to ``torch.func``.
"""

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
from .sharding import origin_of
from .vmap import individual_gradients

# Largest difference of Σ_i g_i from autograd's gradient, relative to the root of Σ_i g_i².
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
# The same if products round their factors, by the remaining digits: relative to the larger of that
# root and the gradient, because some kernels cut digits off and shift all products alike.
ROUNDED = {"half": 5e-2, "tf32": 2e-2}


def collect(
    model: nn.Module,
    weights: dict[str, Tensor],
    examples: Examples,
    loss: Loss | None,
    *,
    create_graph: bool,
    check_layers: bool = True,
) -> tuple[Tensor, list[WeightGradients]]:
    """Return ℓ_i and the entries of every weight, from one forward and one backward."""
    recording = Recording(weights)
    with torch.enable_grad():
        with recording.on(model):
            losses = examples.losses(model, loss)
        entries = collect_recorded(
            recording,
            model,
            examples,
            losses,
            loss,
            create_graph=create_graph,
            check_layers=check_layers,
        )
        return losses, entries


def collect_recorded(
    recording: Recording,
    model: nn.Module,
    examples: Examples,
    losses: Tensor,
    loss: Loss | None,
    *,
    create_graph: bool,
    check_layers: bool = True,
) -> list[WeightGradients]:
    """Run the backward of a recorded forward; return the entries of every weight."""
    weights = recording.weights
    recording.backward(losses, create_graph)
    owners = owners_of(model.modules(), weights)
    entries = recording.entries(owners)
    missed = weights_hooks_miss(model, weights, owners, entries, losses, check_layers)
    entries = [entry for entry in entries if not missed.intersection(entry.names)]
    rest = [name for name in weights if name in missed]
    if rest:
        function, tensors, shared = individual_gradients(model, rest, examples, loss)
        size = sum(weights[name].numel() for name in rest)
        entries.append(
            WeightGradients(tuple(rest), AutogradGradients(size, function, shared), tensors)
        )
    return entries


@dataclass
class HookCheck:
    """The weights that their layers do not account for, and the number of calls so far."""

    unaccounted: frozenset[str] = frozenset()
    calls: int = 0


# Mode, precision and names of the weights: each combination is checked on calls 1, 2, 4, 8 …
CheckKey = tuple[str | bool | None, ...]
_checks: WeakKeyDictionary[nn.Module, dict[CheckKey, HookCheck]] = WeakKeyDictionary()


def weights_hooks_miss(
    model: nn.Module,
    weights: dict[str, Tensor],
    owners: Owners,
    entries: list[WeightGradients],
    losses: Tensor,
    check_layers: bool,
) -> frozenset[str]:
    """Return the weights that ``entries`` do not account for.

    With ``check_layers``, compare them with autograd if a check is due.
    """
    key = (model.training, rounding(next(iter(weights.values()))), *weights)
    check = _checks.setdefault(origin_of(model), {}).setdefault(key, HookCheck())
    due = (check.calls + 1) & check.calls == 0
    # Losses that are not finite prove nothing about the layers.
    allowed = check_layers and not _capturing()
    if allowed and (not due or bool(torch.isfinite(losses).all())):
        check.calls += 1
        if due:
            known = check.unaccounted
            check.unaccounted = known | _find_unaccounted(weights, owners, entries, losses, known)
    misshapen = {
        name
        for entry in entries
        for name in entry.names
        if any(len(t) != len(losses) for t in entry.tensors)  # positions instead of examples
    }
    return check.unaccounted | misshapen


def _find_unaccounted(
    weights: dict[str, Tensor],
    owners: Owners,
    entries: list[WeightGradients],
    losses: Tensor,
    known: frozenset[str],
) -> frozenset[str]:
    """Return the weights whose Σ_i a_i g_i differs from autograd's gradient of Σ_i a_i ℓ_i.

    The a_i are random, because layers that see the examples in another order, or positions instead
    of examples, still get the plain sum right. Warns of weights that are not yet ``known``.
    """
    names = list(weights)
    random = random_weights(losses)
    found = torch.autograd.grad(
        (random * losses).sum(), list(weights.values()), retain_graph=True, allow_unused=True
    )
    truth = {name: dense(g) for name, g in zip(names, found, strict=True) if g is not None}
    accounted: set[str] = set()
    for entry in entries:
        if all(len(t) == len(losses) for t in entry.tensors):
            whole = torch.cat([truth[name].flatten() for name in entry.names])
            if accounts_for(entry, whole, losses):
                accounted.update(entry.names)
    unaccounted = frozenset(name for name in truth if name not in accounted)
    surprising = [name for name in sorted(unaccounted - known) if name in owners]
    if surprising:
        warnings.warn(
            f"the layers that own {', '.join(surprising)} do not account for the whole gradient "
            "of these weights (used outside the layer's own call, or not with examples first?); "
            "their individual gradients come from torch.func instead, which is exact but slower",
            RuntimeWarning,
            stacklevel=2,
        )
    return unaccounted


def random_weights(losses: Tensor) -> Tensor:
    """Return the a_i, ``[n]``, the same on every call."""
    # Powers of two: they pass through every rounding of a backward, whose r are then a_i r_i.
    order = torch.randperm(len(losses), generator=torch.Generator().manual_seed(0))
    return torch.exp2(order % 4 - 2.0).to(losses)


def accounts_for(entry: WeightGradients, whole: Tensor, losses: Tensor) -> bool:
    """Return whether the entry's Σ_i a_i g_i equals ``whole``; g_i is linear in each r."""
    random = random_weights(losses)
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
    # A gradient that is zero by construction consists of the rounding of the r it sums.
    zero = 100 * torch.finfo(mean.dtype).eps * sum(t.abs().sum() for t in scaled[1::2])
    return bool(gap <= tolerance * size + zero) or not bool(gap.isfinite())


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
