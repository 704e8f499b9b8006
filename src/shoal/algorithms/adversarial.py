"""Adversarial training: a discriminator of domains, and features that deceive it (DANN, CDANN).

An update makes one pass through φ, forward and backward. The gradients of both sides are always
computed; the count of steps decides which side moves.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..gradients.precision import precise
from ..networks import draw_weights, dropout, head_sizes, perceptron
from ..randomness import Draws, stream
from .base import UpdateAlgorithm
from .forward import Batch, Forward
from .hparams import Hparams, choice, constant, hparam, power, whole_power
from .optimiser import Optimiser

# Searches of lr and weight_decay: a distribution for small images, also a default for large ones.
SMALL_LR, LARGE_LR = power(10, -4.5, -2.5), (5e-5, power(10, -5, -3.5))
DECAY = 0.0, power(10, -6, -2)


@dataclass(frozen=True)
class DiscriminatorHparams(Hparams):
    """Size, loss and optimiser of the discriminator."""

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
    """Return an MLP from ``width`` features to one logit per domain."""
    build = partial(perceptron, width, domains, h.mlp_width, h.mlp_depth, dropout=h.mlp_dropout)
    return draw_weights(build, stream("discriminator", seed), like=like)


def discriminate(network: nn.Sequential, inputs: Tensor, draws: Draws) -> Tensor:
    """Return the logits; in training the dropout masks come from ``draws``."""
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


@dataclass(frozen=True)
class AdversarialHparams(DiscriminatorHparams):
    """λ and the optimiser of each side; the shared lr and weight_decay are not used."""

    penalty_weight: float = hparam(
        1.0, power(10, -2, 2), key="lambda", help="λ of the discriminator's loss"
    )
    lr_g: float = hparam(
        1e-3, SMALL_LR, key="lr_g", help="learning rate of φ and ω, not lr", large=LARGE_LR
    )
    weight_decay_g: float = hparam(
        0.0, constant(0.0), key="weight_decay_g", help="of φ and ω, not weight_decay", large=DECAY
    )
    beta1: float = hparam(
        0.5, choice(0.0, 0.5), "[0, 1)", key="beta1", help="β₁ of Adam; β₂ is 0.9"
    )
    d_steps_per_g_step: int = hparam(
        1, whole_power(2, 0, 3), key="d_steps_per_g_step", help="discriminator's steps per other"
    )


class Adversarial(UpdateAlgorithm):
    """Features against a discriminator of domains, in turns.

    A method defines the discriminator's inputs and the weights of its losses, and makes its
    optimiser.
    """

    Hparams = AdversarialHparams
    hparams: AdversarialHparams
    discriminator_optimiser: Optimiser

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.width, self.classes = head_sizes(self.model.classifier)  # type: ignore[arg-type]
        self.discriminator = discriminator(
            self.width, self.num_domains, h, self.seed, like=self.model
        )
        self.draws = Draws("discriminator dropout", self.seed, device=self.device)
        self.generator_optimiser = Optimiser(
            self.model.parameters(), h.lr_g, h.weight_decay_g, (h.beta1, 0.9)
        )

    @abstractmethod
    def condition(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the inputs of the discriminator, ``[n, p]``."""

    @abstractmethod
    def weigh(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of the discriminator's losses ``[n]``."""

    def make_opponent(self, *networks: nn.Module) -> Optimiser:
        """Return the optimiser of the discriminator's side."""
        h = self.hparams
        weights = [weight for network in networks for weight in network.parameters()]
        return Optimiser(weights, h.lr_d, h.weight_decay_d, (h.beta1, 0.9))

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make d steps of the discriminator on its loss D, then one of the features on R − λ D."""
        self.check_batches(batches)
        h = self.hparams
        forward = Forward.of(self.model, batches)
        # A leaf: the discriminator's gradient ends here, and the gradient for φ starts here.
        features = forward.features.detach().requires_grad_()
        inputs = self.condition(features, forward.labels)
        ids = [torch.full((n,), e, device=inputs.device) for e, n in enumerate(forward.sizes)]
        logits = precise(discriminate(self.discriminator, inputs, self.draws))
        # With one domain this is zero and nothing is learnt.
        losses = F.cross_entropy(logits, torch.cat(ids), reduction="none")
        opposed = self.weigh(losses, forward.labels)
        if h.grad_penalty != 0:
            opposed = opposed + h.grad_penalty * slopes(losses, inputs)

        theirs = self.discriminator_optimiser
        ours = self.generator_optimiser
        *down, back = torch.autograd.grad(opposed, [*theirs.weights, features])
        # Its value means nothing; its gradient in φ and ω is that of risk − λ D.
        pulled = forward.risk - h.penalty_weight * (forward.features * back).sum()
        up = torch.autograd.grad(pulled, ours.weights, allow_unused=True)

        loss = forward.risk - h.penalty_weight * opposed
        finite = loss.detach().isfinite() & self.all_finite
        turns = h.d_steps_per_g_step
        their_turn = (self.steps + 1) % (1 + turns) < turns  # DomainBed counts from one
        theirs.step(down, finite & their_turn)
        ours.step(up, finite & ~their_turn)
        return self.report(loss=loss, risk=forward.risk, discriminator=opposed)
