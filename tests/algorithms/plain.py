"""Parts of the oracles: a tiny network in float64, batches, and Adam written out.

An oracle is a slow, obvious version of a method's update: it takes ``Plain`` (weights as a dict,
functions of them) and the batches of a step, changes the weights, and returns the loss.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.base import Algorithm
from shoal.algorithms.forward import Batch
from shoal.networks import Network, draw_weights
from shoal.randomness import domainbed_hash, stream

INPUTS, FEATURES, CLASSES = 6, 5, 3


def tiny(seed: int = 0) -> Network:
    """A network on vectors, in float64, with no kink: tanh."""

    def build() -> Network:
        features = nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, FEATURES), nn.Tanh())
        return Network(features, nn.Linear(FEATURES, CLASSES))

    return draw_weights(build, stream("tiny", seed)).double()


def make_batches(step: int, sizes: Sequence[int] = (4, 6, 5)) -> list[Batch]:
    """Batches of each domain; labels depend on the inputs, and inputs on the domain."""
    found = []
    for domain, n in enumerate(sizes):
        generator = stream("batch", step, domain)
        inputs = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64) + 0.3 * domain
        labels = torch.randint(CLASSES, (n,), generator=generator)
        found.append((inputs, labels))
    return found


def make(
    name: str, num_domains: int = 3, model: nn.Module | None = None, **hparams: Any
) -> Algorithm:
    """Return the method on a tiny network, with a learning rate at which a few steps matter."""
    kind = ALGORITHMS[name]
    chosen = replace(kind.Hparams(), **{"lr": 0.01, **hparams})
    return kind(tiny() if model is None else model, num_domains, chosen)


def domainbed_stream(key: str, number: int) -> np.random.RandomState:
    """The stream from which DomainBed draws the hyperparameter ``key`` in trial 0."""
    return np.random.RandomState(domainbed_hash(domainbed_hash(number, 0), key))


class Plain:
    """A method's network as plain functions of a dict of weights, before its first update."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.network = copy.deepcopy(algorithm.model)
        self.weights = {
            name: p.detach().clone().requires_grad_() for name, p in self.network.named_parameters()
        }
        self.adams: dict[str, PlainAdam] = {}

    def logits(self, inputs: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        return functional_call(self.network, weights or self.weights, (inputs,))

    def features(self, inputs: Tensor) -> Tensor:
        own = {
            name.removeprefix("features."): p
            for name, p in self.weights.items()
            if name.startswith("features.")
        }
        return functional_call(self.network.features, own, (inputs,))

    def classify(self, features: Tensor) -> Tensor:
        weight, bias = self.weights["classifier.weight"], self.weights["classifier.bias"]
        return features @ weight.T + bias

    def risk(self, batch: Batch, weights: dict[str, Tensor] | None = None) -> Tensor:
        return F.cross_entropy(self.logits(batch[0], weights), batch[1])

    def gradients(self, loss: Tensor, create_graph: bool = False) -> dict[str, Tensor]:
        found = torch.autograd.grad(
            loss, list(self.weights.values()), create_graph=create_graph, allow_unused=True
        )
        return {
            name: torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(self.weights.items(), found, strict=True)
        }

    def adam(self, name: str = "all", **options: Any) -> "PlainAdam":
        """The Adam of this name; made on first use, kept until ``forget``."""
        return self.adams.setdefault(name, PlainAdam(**options))

    def forget(self, name: str = "all") -> None:
        self.adams.pop(name, None)


class PlainAdam:
    """Adam as in its paper's Algorithm 1, with L2 added to the gradient."""

    def __init__(
        self,
        lr: float = 0.01,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.count: dict[str, int] = {}
        self.m: dict[str, Tensor] = {}
        self.v: dict[str, Tensor] = {}

    def step(self, weights: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        one, two = self.betas
        for name, gradient in gradients.items():
            weight = weights[name]
            g = gradient.detach() + self.weight_decay * weight.detach()
            t = self.count[name] = self.count.get(name, 0) + 1
            m = self.m[name] = one * self.m.get(name, torch.zeros_like(g)) + (1 - one) * g
            v = self.v[name] = two * self.v.get(name, torch.zeros_like(g)) + (1 - two) * g**2
            with torch.no_grad():
                weight -= self.lr * (m / (1 - one**t)) / ((v / (1 - two**t)).sqrt() + self.eps)


Oracle = Callable[[Plain, list[Batch], int], Tensor]


def compare(
    algorithm: Algorithm,
    oracle: Oracle,
    steps: int = 5,
    sizes: Sequence[int] = (4, 6, 5),
    tolerance: float = 1e-9,
    plain: Plain | None = None,
) -> None:
    """Compare loss and every weight of the network with the oracle's, after each step."""
    plain = Plain(algorithm) if plain is None else plain
    start = {name: p.detach().clone() for name, p in plain.weights.items()}
    for step in range(steps):
        batches = make_batches(step, sizes)
        terms = algorithm.update(batches)
        expected = oracle(plain, batches, step)
        torch.testing.assert_close(terms["loss"], expected.detach(), rtol=tolerance, atol=tolerance)
        wrong = {
            name: float((p.detach() - plain.weights[name].detach()).abs().max())
            for name, p in algorithm.model.named_parameters()
            if not torch.allclose(p, plain.weights[name], rtol=tolerance, atol=tolerance)
        }
        assert not wrong, f"after step {step} these weights are off: {wrong}"
    moved = {
        name for name, p in algorithm.model.named_parameters() if not torch.equal(p, start[name])
    }
    assert moved == set(start), f"never trained: {set(start) - moved}"
