"""The discriminator of DANN and CDANN: an MLP that tells the domains, and its hyperparameters."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..networks import drawn, dropout, perceptron
from ..randomness import Draws, stream
from ..statistics import precise
from .hparams import Hparams, choice, hparam, power, whole_power

# As lr and weight_decay: for small images a distribution, for large ones also a default.
SMALL_LR, LARGE_LR = power(10, -4.5, -2.5), (5e-5, power(10, -5, -3.5))
DECAY = 0.0, power(10, -6, -2)


@dataclass(frozen=True)
class DiscriminatorHparams(Hparams):
    """Its size, its loss and its optimiser."""

    lr_d: float = hparam(
        1e-3, SMALL_LR, key="lr_d", help="learning rate of the discriminator", large=LARGE_LR
    )
    weight_decay_d: float = hparam(*DECAY, key="weight_decay_d", help="of the discriminator")
    grad_penalty: float = hparam(
        0.0, power(10, -2, 1), key="grad_penalty", help="weight of the discriminator's slopes"
    )
    mlp_width: int = hparam(
        256,
        whole_power(2, 6, 10),
        "[1, ∞)",
        key="mlp_width",
        help="hidden units of the discriminator",
    )
    mlp_depth: int = hparam(
        3, choice(3, 4, 5), "[1, ∞)", key="mlp_depth", help="linear layers of the discriminator"
    )
    mlp_dropout: float = hparam(
        0.0,
        choice(0.0, 0.1, 0.5),
        "[0, 1)",
        key="mlp_dropout",
        help="dropout of the discriminator",
    )


def discriminator(
    width: int, domains: int, h: DiscriminatorHparams, seed: int, like: nn.Module
) -> nn.Sequential:
    """Return the network, of ``width`` features and with a logit for each domain."""
    build = partial(perceptron, width, domains, h.mlp_width, h.mlp_depth, dropout=h.mlp_dropout)
    return drawn(build, stream("discriminator", seed), like=like)


def discriminate(network: nn.Sequential, inputs: Tensor, draws: Draws) -> Tensor:
    """Return the logits; ``draws`` has the masks of the dropout, in training."""
    for layer in network:
        if isinstance(layer, nn.Dropout):
            # torch's own would move the global random state
            inputs = dropout(inputs, layer.p if layer.training else 0.0, draws)
        else:
            inputs = layer(inputs)
    return inputs


def slopes(losses: Tensor, inputs: Tensor) -> Tensor:
    """Return the mean square of the losses' gradients in the inputs ``[n, p]``."""
    (found,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
    return precise(found).square().sum(1).mean()
