"""Parameters: the weights that P covers and their order; compiled networks are refused."""

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..choices import choose
from ..internals import compiler_is_loaded, is_compiled_copy, is_compiled_in_place

Parameters = str | nn.Module | Iterable[str]

P = ParamSpec("P")
T = TypeVar("T")

COMPILED = (
    "statistics of a network's gradients look into its layers and differentiate twice, which a "
    "compiled network does not support: pass the module that was given to torch.compile (they "
    "share their weights), or use head_variance or Fishr, which can be compiled"
)


def select_weights(model: nn.Module, parameters: Parameters) -> dict[str, Tensor]:
    """Return the chosen trainable weights by name, in ``named_parameters()`` order.

    A tied weight comes once, under its first name.

    Args:
        parameters: ``"all"``, a submodule of ``model``, or names and prefixes of names; one string
            can hold several, separated by commas.
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
        # A tied weight can be chosen by any of its names.
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


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside a data-parallel wrapper; raise if it is compiled."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = model.module
    if any(is_compiled_copy(part) or is_compiled_in_place(part) for part in model.modules()):
        raise RuntimeError(COMPILED)
    return model


def outside_compile(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function uncompiled, even inside a compiled step.

    A RuntimeError during tracing breaks the graph there, and the step must not catch it. With
    ``fullgraph=True`` it is an error.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        if not compiler_is_loaded():  # it takes more than a second, and must not load for this
            return function(*args, **kwargs)
        # Otherwise it would compile the functions that this one calls.
        plain: Callable[P, T] = torch.compiler.disable(function)
        return plain(*args, **kwargs)

    return called
