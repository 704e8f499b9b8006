"""URM: features spread evenly over a cube, whatever the domain (Krishnamachari et al., 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_vectors
from ..gradients.precision import precise
from ..networks import Network, draw_weights, head_sizes
from ..randomness import Draws, stream
from .base import Algorithm
from .forward import Batch, Forward
from .hparams import Hparams, choice, hparam, power, uniform
from .optimiser import Optimiser

# Units of each hidden layer of the discriminator.
HIDDEN = 100
# What bounds the features, and the least value of the cube; the largest is 1.
OUTPUTS: dict[str, tuple[type[nn.Module], float]] = {
    "tanh": (nn.Tanh, -1.0),
    "relu": (nn.ReLU, 0.0),
}


@dataclass(frozen=True)
class URMHparams(Hparams):
    """λ, the bound of the features, and the discriminator."""

    penalty_weight: float = hparam(
        0.1, uniform(0, 0.2), key="urm_adv_lambda", help="λ of the discriminator's view of features"
    )
    output: str = hparam(
        "tanh",
        choice(*OUTPUTS),
        tuple(OUTPUTS),
        key="urm_generator_output",
        help="what the features go through: tanh or relu",
    )
    discriminator_layers: int = hparam(
        1,
        choice(1, 2, 3),
        key="urm_discriminator_hidden_layers",
        help="hidden layers of the discriminator after its first",
    )
    lr_d: float = hparam(
        1e-3,
        power(10, -5.5, -3.5),
        key="urm_discriminator_lr",
        help="learning rate of the discriminator",
        large=(5e-5, power(10, -6, -4.5)),
    )


def discriminator(width: int, layers: int) -> nn.Sequential:
    """Return an MLP from ``width`` features to one logit, with ``layers`` + 1 hidden layers."""
    found: list[nn.Module] = [nn.Linear(width, HIDDEN), nn.LeakyReLU()]
    for _ in range(layers):
        found += [nn.Linear(HIDDEN, HIDDEN), nn.LeakyReLU()]
    return nn.Sequential(*found, nn.Linear(HIDDEN, 1))


class URM(Algorithm):
    """Match the features with uniform noise: a discriminator cannot tell them apart.

    The features of ``model`` go through tanh or ReLU, in training and in predictions:
    ``self.model`` holds its parts and this bound. Predict with the method, not with ``model``. What
    ``model`` does in ``train()``, such as freezing batch norm, must be done by its features.
    """

    paper = (
        "Uniformly Distributed Feature Representations for Fair and Robust Learning "
        "(Krishnamachari et al.)"
    )
    year = 2024
    Hparams = URMHparams
    hparams: URMHparams
    model: Network

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        bound, self.least = OUTPUTS[h.output]
        width, _ = head_sizes(self.model.classifier)
        self.discriminator = draw_weights(
            lambda: discriminator(width, h.discriminator_layers),
            stream("discriminator", self.seed),
            like=self.model,
        )
        self.model = Network(
            nn.Sequential(self.model.features, bound()),
            self.model.classifier,
            getattr(self.model, "preprocessing", None),
        )
        self.draws = Draws("urm", self.seed, device=self.device)
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.discriminator_optimiser = Optimiser(
            self.discriminator.parameters(), h.lr_d, h.weight_decay
        )

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step of the network on R + λ BCE(D(z), 1), and one of the discriminator D.

        D steps on BCE(D(u), 1) + λ BCE(D(z), 0), with u uniform noise. Both take z and D from
        before the update.
        """
        self.check_batches(batches)
        weight = self.hparams.penalty_weight
        forward = Forward.of(self.model, batches)
        features = forward.features
        check_vectors(features)
        noise = self.draws.uniform(features.numel()).view_as(features)
        noise = (self.least + (1 - self.least) * noise).to(features.dtype)

        # BCE of a logit d is softplus(−d) for the target 1, and softplus(d) for 0.
        loss = forward.risk + weight * F.softplus(-self._judge(features)).mean()
        real, made = self._judge(noise), self._judge(features.detach())
        opposed = F.softplus(-real).mean() + weight * F.softplus(made).mean()

        ours, theirs = self.optimiser, self.discriminator_optimiser
        up = torch.autograd.grad(loss, ours.weights, allow_unused=True) if ours.weights else ()
        down = torch.autograd.grad(opposed, theirs.weights)
        finite = loss.detach().isfinite() & opposed.detach().isfinite() & self.all_finite
        ours.step(up, finite)
        theirs.step(down, finite & ours.all_finite)
        return self.report(loss=loss, risk=forward.risk, discriminator=opposed)

    def _judge(self, features: Tensor) -> Tensor:
        return precise(self.discriminator(features))

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits of the bounded features."""
        logits: Tensor = self.model(inputs)
        return logits
