"""Sharded networks: a network under FSDP2 as a plain one, with the whole weights on every rank.

FSDP2 gathers a layer's weights when its own hooks run, and a weight is another tensor before, in
and after a forward. A statistic needs one tensor per weight. So it runs a copy of the network whose
weights are gathered once, and their gradients are averaged over ranks and cut into shards again.
"""

import sys
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from ..distributed import average_over_ranks

_origins: WeakKeyDictionary[nn.Module, "ref[nn.Module]"] = WeakKeyDictionary()


def origin_of(model: nn.Module) -> nn.Module:
    """Return the sharded network that a plain one was made of, for caches; others as they are."""
    found = _origins.get(model)
    return (found() if found is not None else None) or model


def with_whole_weights(model: nn.Module) -> nn.Module:
    """Return a network under FSDP2 as a plain one, differentiable in its shards.

    Others are returned as they are. Every rank must call. Buffers are shared with the sharded
    network.
    """
    kind = _sharded_kind()
    if kind is None or not any(isinstance(module, kind) for module in model.modules()):
        return model
    for module in model.modules():
        if isinstance(module, kind):
            module.reshard()  # type: ignore[operator]  # FSDP2 keeps the root's weights gathered
    shards = list(model.parameters())
    whole: tuple[Tensor, ...] = _Whole.apply(*shards)  # type: ignore[no-untyped-call]
    if not torch.is_grad_enabled():  # leaves, so that the statistic can enable gradients
        whole = tuple(t.requires_grad_(p.requires_grad) for t, p in zip(whole, shards, strict=True))
    weights = {id(p): t for p, t in zip(shards, whole, strict=True)}
    plain = _plain(model, kind, weights, {})
    _origins[plain] = ref(model)
    return plain


def _sharded_kind() -> type | None:
    """Return FSDP2's class; None if nobody has imported it."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)


def _plain(
    module: nn.Module, kind: type, weights: dict[int, Tensor], known: dict[int, nn.Module]
) -> nn.Module:
    """Return a copy of a module without FSDP2's class and hooks, and with these weights."""
    if id(module) in known:
        return known[id(module)]
    cls = type(module)
    # FSDP2 puts a class of its own and FSDPModule before the module's class.
    copy: nn.Module = object.__new__(cls.__mro__[2] if isinstance(module, kind) else cls)
    known[id(module)] = copy
    attributes: dict[str, Any] = dict(module.__dict__)
    attributes["_parameters"] = {
        name: None if p is None else weights[id(p)] for name, p in module._parameters.items()
    }
    attributes["_modules"] = {
        name: None if child is None else _plain(child, kind, weights, known)
        for name, child in module._modules.items()
    }
    for hooks in ("_forward_pre_hooks", "_forward_hooks"):
        own = {key: hook for key, hook in attributes[hooks].items() if not _of_fsdp(hook)}
        attributes[hooks] = type(attributes[hooks])(own)
    copy.__dict__ = attributes
    return copy


def _of_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp.")


class _Whole(torch.autograd.Function):
    """The whole weights of shards; their gradients are averaged over ranks in one message."""

    @staticmethod
    def forward(ctx: Any, *shards: Any) -> tuple[Tensor, ...]:
        ctx.places = [
            (p.device_mesh, p.placements) if hasattr(p, "full_tensor") else None for p in shards
        ]
        ctx.set_materialize_grads(False)
        whole = tuple(
            p.detach().clone() if place is None else p.detach().full_tensor()
            for p, place in zip(shards, ctx.places, strict=True)
        )
        ctx.mark_non_differentiable(
            *[t for t, p in zip(whole, shards, strict=True) if not p.requires_grad]
        )
        ctx.like = [torch.empty_like(t, device="meta") for t in whole]
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        from torch.distributed.tensor import DTensor, Replicate

        wanted = [k for k, need in enumerate(ctx.needs_input_grad) if need]
        device = next(g.device for g in grads if g is not None)
        whole = []
        for k in wanted:
            g = grads[k]
            whole.append(torch.zeros_like(ctx.like[k], device=device) if g is None else g)
        found: list[Any] = [None] * len(grads)
        for k, mean in zip(wanted, average_over_ranks(whole), strict=True):
            if ctx.places[k] is None:
                found[k] = mean
                continue
            mesh, placements = ctx.places[k]
            everywhere = DTensor.from_local(mean, mesh, [Replicate()] * mesh.ndim, run_check=False)
            found[k] = everywhere.redistribute(mesh, placements)  # each rank cuts out its part
        return tuple(found)
