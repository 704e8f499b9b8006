"""Individual gradients of any weight by ``torch.func``: the fallback for layers without a rule."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..replay import Modes, Randomness
from .double_backward import twice_differentiable
from .examples import Examples, Loss, individual_losses
from .precision import precise


def individual_gradients(
    model: nn.Module, names: Sequence[str], examples: Examples, loss: Loss | None
) -> tuple[Callable[..., Tensor], list[Tensor], int]:
    """Return (function, tensors, shared): ``function(*tensors)`` is g_i of ``names``, ``[n, P]``.

    The tensors are the inputs, the labels and every weight of the model. The weights are the last
    ``shared`` of them. A caller can slice the examples and differentiate in weights and inputs.
    """
    weights = dict(model.named_parameters())
    # Every call draws the same dropout masks, so a backward repeats its forward.
    device = next(iter(weights.values())).device
    state, modes = Randomness.now(device, model), Modes.now(model)
    order = list(names) + [name for name in weights if name not in set(names)]
    batched = len(examples.tensors) + 1
    chosen = len(names)

    def loss_of_one(
        mine: tuple[Tensor, ...], others: tuple[Tensor, ...], label: Tensor, *inputs: Tensor
    ) -> Tensor:
        one = examples.with_tensors([x[None] for x in inputs], label[None])
        values = dict(zip(order, (*mine, *others), strict=True))
        logits = precise(one.run(Functional(model, values)))
        return individual_losses(logits, one.labels, loss).sum()

    def function(*tensors: Tensor) -> Tensor:
        with state.restored(), modes.restored():
            return gradients(*tensors)

    def gradients(*tensors: Tensor) -> Tensor:
        inputs, labels = tensors[: batched - 1], tensors[batched - 1]
        mine, others = tensors[batched : batched + chosen], tensors[batched + chosen :]
        gradient = torch.func.grad(loss_of_one)
        in_dims = (None, None, 0, *[0] * len(inputs))
        try:
            with twice_differentiable(model, vmapped=True):
                rows = torch.func.vmap(gradient, in_dims, randomness="different")(
                    mine, others, labels, *inputs
                )
            parts = [precise(row.reshape(len(row), -1)) for row in rows]
        except RuntimeError as error:
            _warn_slow(names, error)
            with twice_differentiable(model, vmapped=True):
                parts = _loop(loss_of_one, mine, others, labels, inputs)
        return torch.cat(parts, 1)

    tensors = [*examples.tensors, examples.labels, *(weights[name] for name in order)]
    return function, tensors, len(order)


class Functional:
    """The model as a function of given weights, callable like the model."""

    def __init__(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        self.model, self.values = model, values

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any:
        if not self.values:
            return self.model(*args, **kwargs)
        return torch.func.functional_call(self.model, self.values, args, kwargs)


def _loop(
    loss_of_one: Callable[..., Tensor],
    mine: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    labels: Tensor,
    inputs: Sequence[Tensor],
) -> list[Tensor]:
    """Return g_i by weight, one example after the other, for operations that vmap rejects."""
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
        f"individual gradients of {', '.join(names)} are computed one example at a time, which is "
        f"exact but slow, because torch.func.vmap failed: {reason}",
        RuntimeWarning,
        stacklevel=3,
    )
