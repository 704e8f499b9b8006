"""Which weights a statistic is taken over, and in which order: the meaning of P."""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..choices import choose

P = ParamSpec("P")
T = TypeVar("T")

COMPILED = (
    "gradient_variance, gradient_mean and covariance_spread differentiate twice, which a compiled "
    "network does not support: pass the module that was given to torch.compile (they may share "
    "weights), or use head_variance or Fishr, which can be compiled"
)


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function run as it is where the step around it is compiled.

    The graph breaks at it, by a RuntimeError in the tracing that the step must not catch; where it
    may not break, that is an error.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        # The compiler is not loaded for this: that takes more than a second.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        # Else it would try what the function calls.
        plain: Callable[P, T] = torch.compiler.disable(function)
        return plain(*args, **kwargs)

    return called


Parameters = str | nn.Module | Iterable[str]


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module under a data-parallel wrapper; refuse a compiled one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    if any(_compiled(module) for module in model.modules()):
        raise RuntimeError(COMPILED)
    return model


def _compiled(module: nn.Module) -> bool:
    # The compiler is not loaded for the question: that takes more than a second.
    dynamo = sys.modules.get("torch._dynamo")
    returned = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return returned or getattr(module, "_compiled_call_impl", None) is not None


def select(model: nn.Module, parameters: Parameters) -> dict[str, Tensor]:
    """Return the chosen trainable weights by name, in ``named_parameters()`` order, tied once.

    Args:
        parameters: ``"all"``, a submodule of ``model``, or names and prefixes of names; in one
            text they have commas between them.
    """
    trainable: dict[str, Tensor] = {
        name: p for name, p in model.named_parameters() if p.requires_grad
    }
    if isinstance(parameters, nn.Module):
        inside = {id(p) for p in parameters.parameters()}
        chosen = {name: p for name, p in trainable.items() if id(p) in inside}
    elif parameters == "all":
        chosen = trainable
    else:
        if not isinstance(parameters, Iterable):
            raise TypeError(
                "parameters must be 'all', a module of the model, or names of its weights, got "
                f"{type(parameters).__name__}"
            )
        wanted = parameters.split(",") if isinstance(parameters, str) else list(parameters)
        for name in wanted:
            _check_name(model, name)
        # A tied weight goes by its first name, but may be asked for by any of them.
        ids = {
            id(p)
            for name, p in model.named_parameters(remove_duplicate=False)
            if any(_matches(name, prefix) for prefix in wanted)
        }
        chosen = {name: p for name, p in trainable.items() if id(p) in ids}
    if not chosen:
        raise ValueError(
            f"parameters={_describe(parameters)} selects no trainable weight of "
            f"{type(model).__name__}; it has: {', '.join(trainable) or 'none that is trainable'}"
        )
    return chosen


def _matches(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix.removesuffix(".") + ".")


def _check_name(model: nn.Module, name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            "parameters must be 'all', a submodule, or names and prefixes, "
            f"got {type(name).__name__ if isinstance(name, Tensor) else repr(name)}"
        )
    names = [full for full, _ in model.named_parameters(remove_duplicate=False)]
    known = set(names)
    for full in names:
        pieces = full.split(".")
        known.update(".".join(pieces[:k]) for k in range(1, len(pieces)))
    choose("parameter", name.removesuffix("."), known)


def _describe(parameters: Parameters) -> str:
    return type(parameters).__name__ if isinstance(parameters, nn.Module) else repr(parameters)
