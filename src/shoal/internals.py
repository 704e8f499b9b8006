"""Internals: private functions of torch, each with public code for where torch has none.

No other module uses a private function of torch. A private function is asked for at each call and
used on CPUs and CUDA devices, where ``tests/test_internals.py`` compares both.
"""

import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Tensors = tuple[Tensor, ...] | list[Tensor]  # the type that torch's functions of many tensors take

DEVICES = ("cpu", "cuda")


def _find(name: str, tensors: Tensors) -> Any:
    """Return torch's private function for these tensors, None if it cannot be used."""
    if not tensors or tensors[0].device.type not in DEVICES:
        return None
    return getattr(torch, name, None)


# Many tensors at once


def foreach(operation: str, tensors: Tensors, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return ``tensor.operation(...)`` of every tensor, in few kernels instead of one for each.

    An argument that is a list has one entry for each tensor; ``foreach("add_", weights, grads,
    alpha=-lr)`` changes the weights in place.
    """
    at_once = _find(f"_foreach_{operation}", tensors)
    if at_once is not None:
        found = at_once(tensors, *args, **kwargs)
        return list(tensors) if operation.endswith("_") else list(found)
    return [
        getattr(tensor, operation)(
            *(arg[k] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs
        )
        for k, tensor in enumerate(tensors)
    ]


def norms(tensors: Tensors, order: float, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return the norm of every tensor, taken in ``dtype``."""
    at_once = _find("_foreach_norm", tensors)
    if at_once is not None:
        return list(at_once(tensors, order, dtype))
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


def find_non_finite(tensors: Tensors, found: Tensor) -> None:
    """Set ``found``, a float32 scalar on the device, to 1 if a value of any tensor is not finite.

    The tensors may have several dtypes, and nothing waits for the device.
    """
    unscale = _find("_amp_foreach_non_finite_check_and_unscale_", tensors)
    if unscale is not None:
        unscale(tensors, found, torch.ones_like(found))
        return
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
    found.masked_fill_(~finite, 1.0)


# Steps of optimisers


def adam_step(
    weights: Tensors,
    grads: Tensors,
    means: Tensors,
    squares: Tensors,
    counts: Tensors,
    *,
    lr: float | Tensor,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    decoupled: bool,
    stop: Tensor,
) -> None:
    """Make one step of Adam in place, or of AdamW if its weight decay is ``decoupled``.

    Args:
        counts: float32 scalars, the number of each weight's steps with this one.
        lr: a number, or a float32 scalar on the device.
        stop: a float32 scalar on the device; if it is 1, nothing changes.
    """
    fused = _find("_fused_adamw_" if decoupled else "_fused_adam_", weights)
    if fused is not None:
        fused(
            weights,
            grads,
            means,
            squares,
            [],
            counts,
            lr=lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=stop,
        )
        return
    for w, g, mean, square, count in zip(weights, grads, means, squares, counts, strict=True):
        exact = torch.float64 if w.dtype == torch.float64 else torch.float32
        rate = lr.to(exact) if isinstance(lr, Tensor) else lr
        # 1 − β^t, which would cancel for a small t.
        bias, square_bias = (-torch.expm1(count.to(exact) * _log(beta)) for beta in betas)
        start = w * (1 - rate * weight_decay) if decoupled else w
        slope = g if decoupled else g + weight_decay * w
        new_mean = mean.lerp(slope, 1 - betas[0])
        new_square = betas[1] * square + (1 - betas[1]) * slope.square()
        new = start - rate / bias * new_mean / (new_square.sqrt() / square_bias.sqrt() + eps)
        for old, value in ((w, new), (mean, new_mean), (square, new_square)):
            old.copy_(torch.where(stop == 1, old, value))


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def sgd_step(
    weights: Tensors,
    grads: Tensors,
    velocities: Tensors,
    *,
    lr: float | Tensor,
    weight_decay: float,
    momentum: float,
    stop: Tensor,
) -> None:
    """Make one step of SGD in place; velocities start at zero, and are absent without momentum.

    ``lr`` and ``stop`` are those of ``adam_step``.
    """
    fused = _find("_fused_sgd_", weights)
    if fused is not None:
        fused(
            weights,
            grads,
            velocities,
            lr=lr,
            momentum=momentum,
            dampening=0.0,
            weight_decay=weight_decay,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=None,
            found_inf=stop,
        )
        return
    for k, (w, g) in enumerate(zip(weights, grads, strict=True)):
        slope = g + weight_decay * w
        if momentum:
            slope = momentum * velocities[k] + slope
            velocities[k].copy_(torch.where(stop == 1, velocities[k], slope))
        w.copy_(torch.where(stop == 1, w, w - lr * slope))


# Autograd


def backward_reaches(ctx: Any, index: int) -> bool:
    """Return whether the running backward reaches an input, which must not be a leaf.

    Without the private function: whether it may. More is then computed, to the same result.
    """
    if not ctx.needs_input_grad[index]:
        return False
    executes = getattr(torch._C, "_will_engine_execute_node", None)
    return executes is None or bool(executes(ctx.next_functions[index][0]))


def tensors_are_hooked() -> bool:
    """Return whether hooks on saved tensors are active, as inside a checkpoint."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("no hooks"):
            return False
    except RuntimeError:
        return True


class _WithoutTransforms(torch.autograd.Function):
    """A function that torch.func refuses, because it has no ``setup_context``."""

    @staticmethod
    def forward(ctx: Any) -> None:
        return None


def transforms_are_active() -> bool:
    """Return whether a transform of torch.func is active: vmap, grad, jvp and the like."""
    try:
        _WithoutTransforms.apply()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    return False


def is_weight_norm(function: object) -> bool:
    """Return whether a function is torch's fused weight norm; other versions need no care."""
    return function is getattr(torch, "_weight_norm", torch)


# The compiler


def _compiler() -> Any:
    """Return torch's compiler if it is loaded, which takes more than a second."""
    return sys.modules.get("torch._dynamo")


def compiler_is_loaded() -> bool:
    return _compiler() is not None


def is_compiled_copy(module: object) -> bool:
    """Return whether ``torch.compile`` returned this module."""
    kind = getattr(_compiler(), "OptimizedModule", None)
    if kind is None:
        return type(module).__name__ == "OptimizedModule"
    return isinstance(module, kind)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Return whether ``module.compile()`` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def decompile(module: nn.Module) -> None:
    """Undo ``module.compile()``."""
    module._compiled_call_impl = None


def mark_dynamic(tensor: Tensor) -> None:
    """Compile once for all lengths of a tensor; else a second length compiles once more."""
    mark = getattr(import_module("torch._dynamo"), "maybe_mark_dynamic", None)
    if mark is not None:
        mark(tensor, 0)


def allow_recompilations(number: int) -> None:
    """Let a function be compiled this often; one beyond torch's limit runs uncompiled."""
    config: Any = getattr(import_module("torch._dynamo"), "config", None)
    if hasattr(config, "recompile_limit"):
        config.recompile_limit = max(config.recompile_limit, number)


# Trees of tensors


def map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Return a tree like the first, of ``function`` of the trees' tensors in each place.

    A tree is a tensor, or a tuple, list or dict of trees, or another class that torch knows.
    """
    try:
        tree_map = import_module("torch.utils._pytree").tree_map
    except (ImportError, AttributeError):
        return _map_tensors(function, *trees)
    return tree_map(function, *trees)


def _map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    first = trees[0]
    if isinstance(first, Mapping):
        items = {k: _map_tensors(function, *(tree[k] for tree in trees)) for k in first}
        return items if type(first) is dict else type(first)(**items)
    if isinstance(first, list | tuple):
        parts = [_map_tensors(function, *places) for places in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return function(*trees)


# Memory


class MemoryTrace(Protocol):
    """The bytes alive inside a block, of tensors that are made there."""

    trace: list[float]  # after each change

    @property
    def peak(self) -> float: ...


def trace_memory() -> AbstractContextManager[MemoryTrace]:
    """Return a block that traces the tensors made in it; it is complete after the block.

    Without private functions the profiler counts, and also counts the scratch memory of kernels.
    """
    return _ProfiledMemory() if _Dispatch is object else _DispatchedMemory()


class _Traced:
    trace: list[float]

    @property
    def peak(self) -> float:
        return max(self.trace, default=0)


try:
    _Dispatch: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
except (ImportError, AttributeError):
    _Dispatch = object


class _DispatchedMemory(_Dispatch, _Traced):  # type: ignore[misc]
    """Sees the result of every operation, and the end of its storage."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self._now = 0
        self.trace = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, Sequence) else (result,):
            for tensor in one if isinstance(one, Sequence) else (one,):
                if isinstance(tensor, Tensor):
                    self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)  # the same object as long as the storage lives
        if key in self._sizes or storage.nbytes() == 0:
            return
        self._sizes[key] = storage.nbytes()
        self._now += storage.nbytes()
        self.trace.append(self._now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._sizes.pop(key, 0)


class _ProfiledMemory(_Traced):
    """Adds up what each operation took and gave back, as the profiler reports it."""

    def __enter__(self) -> "_ProfiledMemory":
        self.trace = []
        self._profile = torch.profiler.profile(profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        now = 0.0
        for event in sorted(self._profile.events(), key=lambda event: event.time_range.end):
            change = event.self_cpu_memory_usage + event.self_device_memory_usage
            if change:
                now += change
                self.trace.append(now)
