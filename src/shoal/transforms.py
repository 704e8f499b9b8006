"""Transforms: calls inside ``torch.func``'s grad and vmap; buffers that change there."""

from typing import Any

import torch
from torch import Tensor

from .internals import transforms_are_active


def transformed() -> bool:
    """Return whether ``torch.func`` transforms the current call, outside of compiled steps."""
    return not torch.compiler.is_compiling() and transforms_are_active()


def batched(tensor: Tensor) -> bool:
    """Return whether ``torch.func.vmap`` maps over this tensor; its values cannot be read then."""
    if not transformed():
        return False
    try:
        tensor.detach().flatten()[:0].sum().item()
    except RuntimeError:
        return True
    return False


def assign(buffer: Tensor, value: Tensor) -> None:
    """Set a buffer in place, inside transforms too, which allow no such change of their own.

    Under vmap the buffer must be one of many, stacked, if the value is.
    """
    if transformed():
        _Assign.apply(buffer, value)  # type: ignore[no-untyped-call]
    else:
        buffer.copy_(value)


class _Assign(torch.autograd.Function):
    """A function of its own, because its forward runs on the plain tensors."""

    @staticmethod
    def forward(buffer: Tensor, value: Tensor) -> Tensor:
        buffer.detach().copy_(value)
        return torch.empty(0, device=buffer.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, buffer: Tensor, value: Tensor) -> tuple[Tensor, None]:
        own, other = in_dims
        if own is None:
            raise RuntimeError(
                "torch.func.vmap maps over the rows, but the running state is that of one module, "
                "which cannot follow all of them: call .eval(), or give every member its own state "
                "with torch.func.stack_module_state and torch.func.functional_call"
            )
        many = buffer.movedim(own, 0)
        rows = value[None] if other is None else value.movedim(other, 0)
        return _Assign.apply(many, rows.expand(many.shape)), None  # type: ignore[no-untyped-call]
