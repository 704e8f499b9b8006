"""Reference statistics: one ``autograd.grad`` per example, then the definitions. Slow and obvious.

Everything is float64 and keeps its graph, so that values and gradients can both be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Loss = Callable[[Tensor, Tensor], Tensor]

# For two exact float64 computations of the same thing, and for float64 central differences.
VALUE = {"rtol": 1e-9, "atol": 1e-12}
GRADIENT = {"rtol": 1e-8, "atol": 1e-11}
DIFFERENCES = {"rel": 1e-5, "abs": 1e-8}
STEP = 1e-5


def loss_of_one(logits: Tensor, label: Tensor, loss: Loss | None = None) -> Tensor:
    """Return the loss of one example, logits ``[1, C]``, ``[1, 1]`` or ``[1]``."""
    if loss is not None:
        return loss(logits, label).sum()
    if logits.numel() == 1:
        return F.binary_cross_entropy_with_logits(
            logits.reshape(()), label.reshape(()).to(logits.dtype)
        )
    return F.cross_entropy(logits, label)


def gradient_of(value: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the gradient of a scalar in ``weights``, flattened, ``[P]``, with its graph."""
    found = torch.autograd.grad(value, weights, create_graph=True, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(w) if g is None else g).flatten()
            for g, w in zip(found, weights, strict=True)
        ]
    )


def one_of(inputs: Any, i: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return example i of tensor, tuple or dict inputs as (args, kwargs) of a batch of one."""
    if isinstance(inputs, Tensor):
        return (inputs[i : i + 1],), {}
    if isinstance(inputs, Mapping):
        return (), {key: value[i : i + 1] for key, value in inputs.items()}
    return tuple(value[i : i + 1] for value in inputs), {}


def individual_gradients(
    model: nn.Module,
    inputs: Any,
    labels: Tensor,
    weights: Sequence[Tensor] | None = None,
    loss: Loss | None = None,
) -> Tensor:
    """Return G, ``[n, P]``, over ``weights`` (by default all trainable ones)."""
    chosen = [p for p in model.parameters() if p.requires_grad] if weights is None else weights
    rows = []
    for i in range(len(labels)):
        args, kwargs = one_of(inputs, i)
        with sdpa_kernel(SDPBackend.MATH):
            output = model(*args, **kwargs)
        logits = getattr(output, "logits", output)
        rows.append(gradient_of(loss_of_one(logits, labels[i : i + 1], loss), list(chosen)))
    return torch.stack(rows)


def of_domain(gradients: Tensor, domains: Tensor, num_domains: int) -> list[Tensor]:
    """Return G_e of each domain, ``[n_e, P]``."""
    return [gradients[domains == e] for e in range(num_domains)]


def variance(
    gradients: Tensor,
    domains: Tensor,
    num_domains: int | None = None,
    centered: bool = True,
    unbiased: bool = True,
) -> Tensor:
    """Return v_e by Eq. 2, ``[E, P]``; zeros for a domain with fewer than two examples."""
    rows = []
    for g in of_domain(gradients, domains, num_domains or int(domains.max()) + 1):
        n = len(g)
        if n < 2:
            rows.append(gradients.sum(0) * 0)
        elif not centered:
            rows.append(sum(g_i**2 for g_i in g) / n)
        else:
            mean = sum(g) / n
            rows.append(sum((g_i - mean) ** 2 for g_i in g) / (n - 1 if unbiased else n))
    return torch.stack(rows)


def mean(gradients: Tensor, domains: Tensor, num_domains: int | None = None) -> Tensor:
    """Return g_e by Eq. 1, ``[E, P]``; zeros for a domain with fewer than two examples."""
    rows = []
    for g in of_domain(gradients, domains, num_domains or int(domains.max()) + 1):
        rows.append(sum(g) / len(g) if len(g) >= 2 else gradients.sum(0) * 0)
    return torch.stack(rows)


def covariances(gradients: Tensor, domains: Tensor, unbiased: bool = True) -> list[Tensor]:
    """Return C_e, ``[P, P]``, of the domains with two examples or more."""
    found = []
    for g in of_domain(gradients, domains, int(domains.max()) + 1):
        n = len(g)
        if n >= 2:
            deviations = [g_i - sum(g) / n for g_i in g]
            total = sum(torch.outer(d, d) for d in deviations)
            found.append(total / (n - 1 if unbiased else n))
    return found


def spread(rows: Sequence[Tensor]) -> Tensor:
    """Return 1/|𝓔| Σ_e ‖s_e − s̄‖² over the given domains, all of them present."""
    middle = sum(rows) / len(rows)
    return sum(((row - middle) ** 2).sum() for row in rows) / len(rows)


def same_function(
    ours: Tensor,
    oracle: Tensor,
    leaves: Sequence[Tensor],
    value: Mapping[str, float] = VALUE,
    gradient: Mapping[str, float] = GRADIENT,
) -> None:
    """Assert equal values and, for a random cotangent, equal gradients in ``leaves``."""
    assert ours.shape == oracle.shape
    torch.testing.assert_close(ours.detach(), oracle.detach(), **value)
    if not leaves:
        return
    cotangent = random_like(oracle)
    mine = torch.autograd.grad(ours, leaves, cotangent, allow_unused=True, retain_graph=True)
    theirs = torch.autograd.grad(oracle, leaves, cotangent, allow_unused=True, retain_graph=True)
    for leaf, a, b in zip(leaves, mine, theirs, strict=True):
        a, b = (torch.zeros_like(leaf) if g is None else g for g in (a, b))
        torch.testing.assert_close(a, b, **gradient)


def random_like(tensor: Tensor, seed: int = 7) -> Tensor:
    """Return fixed standard normal numbers, the same on every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)


def directional(function: Callable[[], Tensor], leaves: Sequence[Tensor]) -> tuple[float, float]:
    """Return the derivative of a scalar along a random direction: by autograd, by differences."""
    directions = [random_like(leaf, seed=k) for k, leaf in enumerate(leaves)]
    found = torch.autograd.grad(function(), leaves, allow_unused=True)
    exact = sum(
        float((g * d).sum()) for g, d in zip(found, directions, strict=True) if g is not None
    )

    def shifted(step: float) -> float:
        before = [leaf.detach().clone() for leaf in leaves]
        for leaf, d in zip(leaves, directions, strict=True):
            leaf.data.add_(d, alpha=step)  # .data: graphs that hold the leaf stay valid
        value = float(function().detach())
        for leaf, old in zip(leaves, before, strict=True):
            leaf.data.copy_(old)
        return value

    return exact, (shifted(STEP) - shifted(-STEP)) / (2 * STEP)
