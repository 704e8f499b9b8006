"""Methods on a large network of few weights, whose passes can be cut, in float64."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.base import Algorithm
from shoal.algorithms.forward import Batch
from shoal.distributed import alone
from shoal.networks import Network
from shoal.networks.backbones import with_head
from shoal.networks.base import draw_weights
from shoal.randomness import stream
from shoal.training.step import set_runner

CLASSES, CHANNELS, SIDE = 3, 2, 6
SIZES = (4, 7, 5)
STEPS = 4
# Beside the registry's: those whose statistics run the network themselves.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "fishr-theta": ("fishr", {"parameters": "all", "mean_weight": 3.0}),
    "iga-head": ("iga", {"parameters": "classifier"}),
}


def large(channels: int = CHANNELS, dropout: float = 0.3, frozen: bool = True) -> Network:
    """Return a convolutional network with dropout and a batch norm that has learnt something."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    generator = stream("cut")
    network = draw_weights(build, generator)
    nn.init.uniform_(network[1].running_var, 0.5, 2.0, generator=generator)
    return with_head(network, 4, CLASSES, dropout, frozen, None, generator)


def make(method: str, **how: Any) -> Algorithm:
    """Return a method at hyperparameters where a few steps matter and a warm-up ends."""
    name, settings = METHODS[method]
    kind = ALGORITHMS[name]
    wanted = {"lr": 0.01, "lr_g": 0.01, "lr_d": 0.01, "warmup_steps": 2, "tau": 0.5, **settings}
    known = {field.name for field in fields(kind.Hparams)}
    hparams = replace(kind.Hparams(), **{k: v for k, v in wanted.items() if k in known})
    model = large(CHANNELS + kind.extra_channels, **how).double()
    return kind(model, len(SIZES), hparams)


def batches(step: int) -> list[Batch]:
    found = []
    for domain, n in enumerate(SIZES):
        generator = stream("cut", step, domain)
        images = torch.randn(n, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
        labels = torch.randint(CLASSES, (n,), generator=generator)
        found.append((images + 0.3 * domain, labels))
    return found


def trained(method: str, micro_batch: int | None = None) -> dict[str, Tensor]:
    """Return all state after a few updates, and the terms of the last."""
    algorithm = make(method)
    algorithm.micro_batch = micro_batch
    set_runner(algorithm)
    terms: dict[str, Tensor] = {}
    for step in range(STEPS):
        with alone():
            terms = algorithm.update(batches(step))
    state = {key: tensor.clone() for key, tensor in algorithm.state_dict().items()}
    return state | {f"term {name}": term.double() for name, term in terms.items()}
