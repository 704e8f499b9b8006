"""ARM: a classifier that sees the context of its batch (Zhang et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..networks import context_net, draw_weights
from ..randomness import stream
from .base import Algorithm
from .forward import Batch, sizes_of
from .hparams import Hparams, constant, hparam, whole_power
from .optimiser import Optimiser


@dataclass(frozen=True)
class ARMHparams(Hparams):
    """The shared ones; a batch is also a support set, and small for large images."""

    batch_size: int = hparam(
        64,
        whole_power(2, 3, 9),
        "[1, ∞)",
        key="batch_size",
        help="examples of each training domain in a step, and of a support set",
        large=(8, constant(8)),
    )


class ARM(Algorithm):
    """Show the classifier the domain: the mean context of a batch as one more channel.

    ``model`` must take ``extra_channels`` = 1 channel more than the images have.
    """

    paper = "Adaptive Risk Minimization: Learning to Adapt to Domain Shift (Zhang et al.)"
    year = 2021
    extra_channels = 1
    predicts_batchwise = True
    Hparams = ARMHparams
    hparams: ARMHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.channels = self._image_channels()
        build = partial(context_net, self.channels)
        self.context = draw_weights(build, stream("context", self.seed), like=self.model)
        # DomainBed's Adam never gets the context network, which therefore is never trained there.
        weights = [*self.model.parameters(), *self.context.parameters()]
        self.optimiser = Optimiser(weights, self.hparams.lr, self.hparams.weight_decay)

    def _image_channels(self) -> int:
        convolutions = (part for part in self.model.modules() if isinstance(part, nn.Conv2d))
        first = next(convolutions, None)
        if first is None or first.in_channels <= self.extra_channels:
            found = "none" if first is None else f"one of {first.in_channels}"
            raise ValueError(
                "ARM needs a model whose first convolution takes the images' channels and "
                f"extra_channels = {self.extra_channels} more, got {found}"
            )
        return first.in_channels - self.extra_channels

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step down the pooled risk; each domain's batch is a support set."""
        self.check_batches(batches)
        logits = self._classify(torch.cat([inputs for inputs, _ in batches]), sizes_of(batches))
        losses = individual_losses(logits, torch.cat([labels for _, labels in batches]), None)
        loss = losses.mean()
        self.optimiser.minimise(loss, self.all_finite)
        return self.report(loss=loss)

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits, in support sets of ``batch_size`` if it divides n, else in one set."""
        n, size = len(inputs), self.hparams.batch_size
        even = n > 0 and n % size == 0
        return self._classify(inputs, (size,) * (n // size) if even else (n,))

    def _classify(self, inputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
        if inputs.ndim != 4 or inputs.shape[1] != self.channels:
            raise ValueError(
                f"inputs must be images [n, {self.channels}, height, width], as the model's first "
                f"convolution takes {self.channels} + {self.extra_channels} (extra_channels) "
                f"channels, got {list(inputs.shape)}"
            )
        sets = self.context(inputs).split(sizes)
        context = torch.cat([one.mean(0, keepdim=True).expand_as(one) for one in sets])
        return precise(self.model(torch.cat([inputs, context], 1)))
