"""Micro-batches: a batch in parts, with the value and gradient of the whole, in less memory."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .gradients.examples import Inputs, check_examples
from .internals import is_compiled_copy, map_tensors
from .replay import Randomness, part_of_batch


def in_micro_batches(network: Callable[..., Any], inputs: Inputs, size: int) -> Any:
    """Return ``network(inputs)``, run ``size`` examples at a time, and again in the backward.

    The result covers all examples, so a loss on it is that of the whole batch: a penalty takes the
    moments of all examples first, and their cotangent then flows back through each micro-batch.
    Memory holds the activations of one micro-batch, at the price of a second forward.

    Args:
        network: a module or function whose inputs and outputs have examples first. It returns a
            tensor, or a tuple, list or dict of tensors.
        inputs: a tensor, tuple or dict of tensors with examples first.
        size: examples per micro-batch; the last can have fewer.

    Example:
        >>> network = torch.nn.Linear(4, 2)
        >>> inputs = torch.arange(32.0).view(8, 4)
        >>> outputs = shoal.in_micro_batches(network, inputs, size=2)
        >>> torch.equal(outputs, network(inputs))
        True
        >>> outputs.var(0).sum().backward()  # any loss of the whole batch
    """
    if size < 1:
        raise ValueError(f"size must be 1 or more, got {size}")
    keys = list(inputs) if isinstance(inputs, Mapping) else None
    tensors = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)

    def call(function: Callable[..., Any], parts: list[Tensor]) -> Any:
        return function(*parts) if keys is None else function(**dict(zip(keys, parts, strict=True)))

    n = check_examples(tensors, keys)
    if n <= size:
        return call(network, tensors)
    model = network if isinstance(network, nn.Module) else None
    if model is not None:
        _check_independent(model)
        network = _with_current_weights(model)

    compiled = is_compiled_copy(model)
    state = Randomness.now(tensors[0].device, model)
    found = []
    for start in range(0, n, size):
        stop = min(start + size, n)

        def run(*parts: Tensor, start: int = start, stop: int = stop) -> Any:
            # A compiled network draws dropout masks for the part alone.
            with nullcontext() if compiled else part_of_batch(start, stop, n):
                return call(network, list(parts))

        first = nullcontext() if start == 0 else _Restored(state)
        parts = [tensor[start:stop] for tensor in tensors]
        if torch.is_grad_enabled():
            found.append(_run_again_in_backward(run, parts, first, state))
        else:
            with first:
                found.append(run(*parts))
    return map_tensors(lambda *parts: torch.cat(parts), *found)


def _with_current_weights(model: nn.Module) -> Callable[..., Any]:
    """Return the model with its current weights: by the backward, others can replace them."""
    held: dict[str, Tensor] = dict(model.named_parameters())

    def run(*args: Tensor, **kwargs: Tensor) -> Any:
        return torch.func.functional_call(model, held, args, kwargs)

    return run


def _run_again_in_backward(
    run: Callable[..., Any], parts: list[Tensor], first: Any, state: Randomness
) -> Any:
    def contexts() -> tuple[AbstractContextManager[Any], Any]:
        return first, _Restored(state)

    return checkpoint(
        run, *parts, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )


class _Restored:
    """A random state that can be restored any number of times, because a graph can be reused."""

    def __init__(self, state: Randomness) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._inside = self._state.restored()
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)


def _check_independent(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                f"{name or type(module).__name__} normalises with the statistics of the batch, "
                "which differ between micro-batches and the whole; put batch norm in eval mode "
                "(frozen statistics) or use group norm"
            )
