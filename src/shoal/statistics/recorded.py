"""Variances of the gradients in any weights, of a forward that is run by someone else."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..gradients.asked import job_of
from ..gradients.capture import finish
from ..gradients.job import Form
from ..gradients.passes import losses_and_variance
from ..gradients.recording import Recording
from ..gradients.repeat import Randomness
from ..gradients.selection import Parameters, select
from ..gradients.variance import variance_of


class Recorded:
    """A forward whose layers are recorded, so that its gradients' variances need no second one.

    Args:
        parameters: as in ``gradient_variance``.
        chunk_size: nothing is recorded, and so many examples at a time are run again.
    """

    def __init__(
        self, model: nn.Module, parameters: Parameters, chunk_size: int | None = None
    ) -> None:
        self.model, self.parameters, self.chunk_size = model, parameters, chunk_size
        self._recording = Recording(select(model, parameters))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record what the model runs inside the block, once."""
        if self.chunk_size is None:
            with self._recording.on(self.model):
                yield
        else:
            self._state = Randomness.now(next(self.model.parameters()).device, self.model)
            yield

    def variance(
        self,
        inputs: Tensor,
        losses: Tensor,
        labels: Tensor,
        domains: Tensor,
        *,
        centered: bool = True,
        unbiased: bool = True,
        num_domains: int | None = None,
    ) -> Tensor:
        """Return v_e as ``gradient_variance`` does, ``[E, P]``, differentiable like the losses.

        Args:
            inputs, labels: what was run, sorted by domain.
            losses: ℓ_i of the forward that was recorded, cross-entropy or binary, ``[n]``.
            domains: as in ``gradient_variance``.
        """
        form = Form(centered, unbiased)
        asked = (self.model, inputs, labels, domains, self.parameters, form)
        job = job_of(*asked, None, num_domains, self.chunk_size)
        if self.chunk_size is not None:
            with self._state.restored():  # the masks of the forward
                return losses_and_variance(job)[1]
        if job.order is not None:
            raise ValueError("a recorded forward must have its examples sorted by domain")
        graph = torch.is_grad_enabled()
        entries = finish(self._recording, self.model, job.examples, losses, None, graph)
        return variance_of(job, entries)
