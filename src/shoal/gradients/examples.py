"""Examples: inputs and labels that can be sliced and sorted, their losses and residuals r."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_floating, check_labels, check_logits, check_one_each
from .precision import precise

Loss = Callable[[Tensor, Tensor], Tensor]
Inputs = Tensor | tuple[Tensor, ...] | list[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True)
class Examples:
    """Inputs of n examples as a flat list, and their labels; ``keys`` name the inputs of a dict."""

    tensors: list[Tensor]
    keys: list[str] | None
    labels: Tensor

    @staticmethod
    def of(inputs: Inputs, labels: Tensor) -> "Examples":
        keys = None
        if isinstance(inputs, Tensor):
            tensors = [inputs]
        elif isinstance(inputs, Mapping):
            keys, tensors = list(inputs), list(inputs.values())
        elif isinstance(inputs, (tuple, list)):
            tensors = list(inputs)
        else:
            raise TypeError(
                f"inputs must be a tensor, tuple or dict of tensors, got {type(inputs).__name__}"
            )
        _check(tensors, keys, labels)
        return Examples(tensors, keys, labels)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, part: slice | Tensor) -> "Examples":
        """Return the examples of a slice or of an index vector."""

        def cut(tensor: Tensor) -> Tensor:
            return tensor[part if isinstance(part, slice) else part.to(tensor.device)]

        return replace(self, tensors=[cut(t) for t in self.tensors], labels=cut(self.labels))

    def with_tensors(self, tensors: list[Tensor], labels: Tensor) -> "Examples":
        return replace(self, tensors=tensors, labels=labels)

    def run(self, model: Callable[..., Any]) -> Tensor:
        """Return the model's logits on these inputs."""
        if self.keys is not None:
            output = model(**dict(zip(self.keys, self.tensors, strict=True)))
        else:
            output = model(*self.tensors)
        return logits_of(output)

    def losses(self, model: Callable[..., Any], loss: Loss | None) -> Tensor:
        """Return ℓ_i of the model on these examples, ``[n]``, after checking its logits."""
        return individual_losses(self.logits(model, loss), self.labels, loss)

    def logits(self, model: Callable[..., Any], loss: Loss | None) -> Tensor:
        """Return the logits on these examples, checked to fit the labels and the loss."""
        logits = precise(self.run(model))
        if loss is None:
            check_logits(logits, len(self))
            check_labels(logits, self.labels)
        else:  # any shape that the loss takes
            check_floating("logits", logits)
        return logits


def logits_of(output: Any) -> Tensor:
    """Return the logits of a model's output: a tensor, or an object that carries them."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise TypeError(
            "the model must return its logits as a tensor or an object with .logits, "
            f"got {type(output).__name__}"
        )
    return logits


def individual_losses(logits: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return ℓ_i, ``[n]``: the given loss, or cross-entropy, which is binary on one logit."""
    if loss is not None:
        values = loss(logits, labels)
        if not isinstance(values, Tensor):
            raise TypeError(f"loss must return a tensor, got {type(values).__name__}")
        if values.shape != (len(logits),):
            raise ValueError(
                f"loss must return one value per example, [{len(logits)}], got shape "
                f"{list(values.shape)}; pass reduction='none'"
            )
        return values
    if logits.ndim == 1 or logits.shape[1] == 1:
        flat = logits.reshape(-1)
        return F.binary_cross_entropy_with_logits(
            flat, labels.reshape(-1).to(flat.dtype), reduction="none"
        )
    target = labels.to(logits.dtype) if labels.is_floating_point() else labels.long()
    return F.cross_entropy(logits, target, reduction="none")


def residuals(logits: Tensor, labels: Tensor, loss: Loss | None) -> Tensor:
    """Return r_i = ∂ℓ_i/∂logits, ``[n, C]``, as a differentiable function of the logits."""
    n = len(logits)
    if loss is not None:
        r: Tensor = torch.func.grad(lambda x: individual_losses(x, labels, loss).sum())(logits)
        return r.reshape(n, -1)
    if logits.ndim == 1 or logits.shape[1] == 1:
        flat = logits.reshape(n, 1)
        return torch.sigmoid(flat) - labels.reshape(n, 1).to(flat.dtype)
    # log_softmax, then exp: with softmax, Inductor's CPU gradients of r² are wrong.
    log_p = F.log_softmax(logits, 1)
    if labels.is_floating_point():
        labels = labels.to(logits.dtype)
        return log_p.exp() * labels.sum(1, keepdim=True) - labels
    minus_one = torch.full((n, 1), -1.0, dtype=log_p.dtype, device=log_p.device)
    return log_p.exp().scatter_add(1, labels.long()[:, None], minus_one)


def check_examples(tensors: list[Tensor], keys: list[str] | None) -> int:
    """Return the number of examples; raise unless all inputs have that many."""
    if not tensors:
        raise ValueError("inputs is empty; expected a tensor, a tuple or a dict of tensors")
    n = len(tensors[0]) if isinstance(tensors[0], Tensor) and tensors[0].ndim else 0
    for name, tensor in _named(tensors, keys):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.ndim == 0 or len(tensor) != n:
            raise ValueError(
                f"{name} must have one entry per example ({n} in the first input), "
                f"got shape {list(tensor.shape)}"
            )
    return n


def _check(tensors: list[Tensor], keys: list[str] | None, labels: Tensor) -> None:
    n = check_examples(tensors, keys)
    for name, tensor in _named(tensors, keys):
        if tensor.is_floating_point():
            check_floating(name, tensor)
    check_one_each(labels, n)


def _named(tensors: list[Tensor], keys: list[str] | None) -> Iterator[tuple[str, Tensor]]:
    for k, tensor in enumerate(tensors):
        name = "inputs" if len(tensors) == 1 else f"inputs[{keys[k] if keys else k!r}]"
        yield name, tensor
