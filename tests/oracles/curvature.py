"""Reference curvature: dense Hessians and Fisher matrices in float64, example by example."""

import torch
from torch import Tensor, nn

from tests.oracles.autograd import gradient_of, loss_of_one


def risk(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of these examples."""
    losses = [loss_of_one(model(inputs[i : i + 1]), labels[i : i + 1]) for i in range(len(labels))]
    return torch.stack(losses).mean()


def hessian(value: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the second derivatives of a scalar in ``weights``, ``[P, P]``."""
    first = gradient_of(value, weights)
    rows = []
    for g in first:
        if not g.requires_grad:
            rows.append(torch.zeros_like(first))
            continue
        found = torch.autograd.grad(g, weights, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(w) if h is None else h).flatten()
                    for h, w in zip(found, weights, strict=True)
                ]
            )
        )
    return torch.stack(rows).detach()


def jacobians(model: nn.Module, inputs: Tensor, weights: list[Tensor]) -> Tensor:
    """Return ∂ logits / ∂ weights of every example, ``[n, C, P]``."""
    rows = []
    for i in range(len(inputs)):
        logits = model(inputs[i : i + 1]).reshape(-1)
        rows.append(torch.stack([gradient_of(one, weights) for one in logits]).detach())
    return torch.stack(rows)


def fisher(model: nn.Module, inputs: Tensor, weights: list[Tensor]) -> Tensor:
    """Return F / n: the mean over examples of Σ_y p(y) ggᵀ, over the labels y of the model."""
    total = 0
    for i in range(len(inputs)):
        logits = model(inputs[i : i + 1])
        if logits.numel() == 1:
            one = torch.sigmoid(logits.detach().reshape(()))
            odds = torch.stack([1 - one, one])
        else:
            odds = torch.softmax(logits.detach()[0], 0)
        for label, probability in enumerate(odds):
            g = gradient_of(loss_of_one(logits, torch.tensor([label])), weights).detach()
            total = total + probability * torch.outer(g, g)
    return total / len(inputs)
