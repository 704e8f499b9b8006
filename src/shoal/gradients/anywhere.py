"""Individual gradients of any weight, by ``torch.func``: the road for what has no rule."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .inputs import Examples, precise
from .losses import Loss, individual_losses


class Elementary(TorchFunctionMode):
    """Spell out the two norms whose vmapped gradients have a wrong derivative.

    The gradients that ``vmap(grad)`` gives for layer and instance norm are right, but
    differentiating them again is not (torch 2.13: off by up to twice their size).
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **kwargs)
        if func in (F.instance_norm, torch.instance_norm):
            return _instance_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = list(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    out = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    shape = (1, -1, *[1] * (input.ndim - 2))
    axes = list(range(2, input.ndim))
    if use_input_stats or running_mean is None or running_var is None:
        mean = input.mean(axes, keepdim=True)
        var = (input - mean).square().mean(axes, keepdim=True)
    else:
        mean, var = running_mean.reshape(shape), running_var.reshape(shape)
    out = (input - mean) * (var + eps).rsqrt()
    out = out if weight is None else out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def individual_gradients(
    model: nn.Module, names: Sequence[str], examples: Examples, loss: Loss | None
) -> tuple[Callable[..., Tensor], list[Tensor], int]:
    """Return (function, tensors, shared): ``function(*tensors)`` is g_i of ``names``, [n, P].

    The tensors are the inputs and labels, then every weight of the model (shared by the examples),
    so that a caller can cut examples and differentiate in weights and inputs alike.
    """
    weights = dict(model.named_parameters())
    order = list(names) + [name for name in weights if name not in set(names)]
    batched = len(examples.tensors) + 1
    chosen = len(names)

    def loss_of_one(
        mine: tuple[Tensor, ...], others: tuple[Tensor, ...], label: Tensor, *inputs: Tensor
    ) -> Tensor:
        one = examples.with_tensors([x[None] for x in inputs], label[None])
        values = dict(zip(order, (*mine, *others), strict=True))
        logits = precise(one.run(_Functional(model, values)))
        return individual_losses(logits, one.labels, loss).sum()

    def function(*tensors: Tensor) -> Tensor:
        inputs, labels = tensors[: batched - 1], tensors[batched - 1]
        mine, others = tensors[batched : batched + chosen], tensors[batched + chosen :]
        gradient = torch.func.grad(loss_of_one)
        in_dims = (None, None, 0, *[0] * len(inputs))
        try:
            # Fused attention has no second derivative.
            with Elementary(), sdpa_kernel(SDPBackend.MATH):
                rows = torch.func.vmap(gradient, in_dims, randomness="different")(
                    mine, others, labels, *inputs
                )
            parts = [precise(row.flatten(1)) for row in rows]
        except RuntimeError as error:
            _warn_slow(names, error)
            with sdpa_kernel(SDPBackend.MATH):
                parts = _loop(loss_of_one, mine, others, labels, inputs)
        return torch.cat(parts, 1)

    tensors = [*examples.tensors, examples.labels, *(weights[name] for name in order)]
    return function, tensors, len(order)


class _Functional:
    """The model as a function of given weights, callable like the model."""

    def __init__(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        self.model, self.values = model, values

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return torch.func.functional_call(self.model, self.values, args, kwargs)


def _loop(
    loss_of_one: Callable[..., Tensor],
    mine: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    labels: Tensor,
    inputs: Sequence[Tensor],
) -> list[Tensor]:
    """One example after the other, for operations that vmap does not know."""
    keep = torch.is_grad_enabled()
    rows = []
    with torch.enable_grad():
        mine = tuple(p if p.requires_grad else p.detach().requires_grad_() for p in mine)
        for i in range(len(labels)):
            value = loss_of_one(mine, others, labels[i], *(x[i] for x in inputs))
            found = torch.autograd.grad(value, mine, create_graph=keep, allow_unused=True)
            rows.append(
                [torch.zeros_like(p) if g is None else g for g, p in zip(found, mine, strict=True)]
            )
    return [torch.stack([row[k].flatten() for row in rows]) for k in range(len(mine))]


def _warn_slow(names: Sequence[str], error: Exception) -> None:
    reason = str(error).strip().splitlines()[0]
    warnings.warn(
        f"individual gradients of {', '.join(names)} are taken one example at a time, which is "
        f"exact and slow, because torch.func.vmap failed: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
