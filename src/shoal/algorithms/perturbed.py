"""Perturbed gradients: one at the weights θ, another a little further uphill (SAM, SAGM)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..internals import foreach
from ..weight_average import use_weights
from .base import UpdateAlgorithm
from .forward import Batch, Forward
from .hparams import Hparams, choice, hparam
from .optimiser import Optimiser, joint_norm, scale_gradients

TINY = 1e-12  # beside a norm, so that a gradient of zero moves nothing


@dataclass(frozen=True)
class PerturbedHparams(Hparams):
    """How far uphill the second gradient is taken."""

    rho: float = hparam(
        0.05, choice(0.01, 0.02, 0.05, 0.1), key="rho", help="ρ, the way to the second gradient"
    )


class Perturbed(UpdateAlgorithm):
    """A method that steps with the gradient at θ and one at θ + r g, with g the first.

    Calling it returns the risk; ``compile()`` compiles just that.
    """

    Hparams = PerturbedHparams
    hparams: PerturbedHparams
    capture = "compiled"
    # The weight of the gradient at θ in the step; the other has the rest.
    share: ClassVar[float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)

    @abstractmethod
    def reach(self, norm: Tensor) -> Tensor:
        """Return r, by which the gradient of this norm is multiplied; a scalar on the device."""

    def forward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Return ``loss``, the risk of these batches together."""
        return {"loss": Forward.of(self.model, batches).risk}

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step from θ with both gradients.

        The second pass has the dropout masks of the first, because both are of one function
        (``nn.Dropout`` draws others), and it leaves no trace: running statistics move in the first
        pass alone.
        """
        self.check_batches(batches)
        weights: list[Tensor] = list(self.optimiser.weights)
        # Those of frozen batch norm, which is in eval mode, do not move.
        moving = [
            buffer
            for part in self.model.modules()
            if part.training
            for buffer in part.buffers(recurse=False)
        ]
        before = [buffer.clone() for buffer in moving]
        risk, first = self._gradient(batches)
        shift = scale_gradients(first, self.reach(joint_norm(first)))
        with torch.no_grad():
            uphill = foreach("add", shift, weights)
        with use_weights([*weights, *moving], [*uphill, *before]):
            torch.clear_autocast_cache()  # it holds the weights from before
            there, second = self._gradient(batches)
        loss = self.share * risk + (1 - self.share) * there
        step = foreach("lerp", second, first, self.share) if self.share else second
        self.optimiser.step(step, loss.isfinite() & risk.isfinite() & self.all_finite)
        return self.report(loss=loss, risk=risk)

    def _gradient(self, batches: Sequence[Batch]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the risk, detached, and its gradient; zero for weights that it does not use."""
        risk = self(batches)["loss"]
        grads = torch.autograd.grad(risk, self.optimiser.weights, materialize_grads=True)
        return risk.detach(), grads
