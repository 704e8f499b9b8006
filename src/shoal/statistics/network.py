"""Variances and means of the gradients in any weights of any network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..gradients import gram, mean
from ..gradients import memory as budget
from ..gradients.collect import finish
from ..gradients.domains import SortedDomains
from ..gradients.examples import Inputs, Loss
from ..gradients.gram import LayerGradients
from ..gradients.job import Form, Job, job_of, like_of, outside_autocast
from ..gradients.parameters import Parameters, select, uncompiled
from ..gradients.precision import precise
from ..gradients.recording import Recording
from ..gradients.variance import losses_and_rows, variance_of
from ..penalties import spread
from ..replay import Randomness


@uncompiled
def gradient_variance(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    centered: bool = True,
    unbiased: bool = True,
    loss: Loss | None = None,
    num_domains: int | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> Tensor:
    """Return v_e = Var(G_e), Eq. 2, of the gradients in any weights of any network, ``[E, P]``.

    Runs its own forward in the model's current mode. Linear layers on vectors cost three matrix
    products and no per-example gradient; other layers at most one layer's ``[chunk, P_l]`` at a
    time; what has no rule goes through ``torch.func``.

    Args:
        model: returns logits, ``[n, C]`` or one per example.
        inputs: a tensor, tuple or dict of tensors with examples first.
        parameters: ``"all"``, a submodule, or names and prefixes; P is in ``named_parameters()``
            order, each tensor row-major, a tied weight once, frozen weights left out.
        chunk_size: run this many examples at a time and run them again in the backward, which
            bounds memory; None keeps the whole graph.
        memory: bytes that this call and its backward may take beyond what is there; the chunk is
            chosen by them, and where all examples fit nothing is run again.
        centered, unbiased, loss, num_domains: as in ``head_variance``.
    """
    form = Form(centered, unbiased)
    job = job_of(model, inputs, labels, domains, parameters, form, loss, num_domains, chunk_size)
    return losses_and_rows(_within(job, memory))[1]


@uncompiled
def losses_and_variance(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    centered: bool = True,
    unbiased: bool = True,
    loss: Loss | None = None,
    num_domains: int | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ℓ_i, ``[n]``, and ``gradient_variance``, ``[E, P]``, of one forward.

    A second forward for the risk would cost a step a third more. Arguments as in
    ``gradient_variance``. DistributedDataParallel averages gradients only after a forward of its
    own: under it, use ``gradient_variance`` and the wrapper's logits.
    """
    form = Form(centered, unbiased)
    job = job_of(model, inputs, labels, domains, parameters, form, loss, num_domains, chunk_size)
    return losses_and_rows(_within(job, memory))


def _within(job: Job, memory: int | None) -> Job:
    """Return the job with the chunk that a number of bytes allows."""
    if memory is None:
        return job
    if job.chunk_size is not None:
        raise ValueError(
            f"give chunk_size or memory, which chooses it; got {job.chunk_size} and {memory}"
        )
    return replace(job, chunk_size=budget.chunk_within(job, memory))


@uncompiled
def gradient_mean(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    loss: Loss | None = None,
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Return g_e, the mean gradient of each domain (Eq. 1), ``[E, P]``.

    Arguments as in ``gradient_variance``.
    """
    job = job_of(model, inputs, labels, domains, parameters, Form(), loss, num_domains, chunk_size)
    return mean.gradient_mean(job)


# With so few weights a covariance is formed densely, which cancels nothing.
DENSE = 2048


@uncompiled
def covariance_spread(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    blocks: bool = False,
    unbiased: bool = True,
    loss: Loss | None = None,
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Return 1/|𝓔| Σ_e ‖C_e − C̄‖²_F of the full gradient covariances, a scalar.

    Takes n × n Gram matrices where P × P would not fit. Their terms cancel as the covariances
    agree, so in float32 a value below about 1e-7 of 1/|𝓔| Σ_e ‖C_e‖² is rounding.

    Args:
        blocks: one covariance per weight tensor, divided by the tensor's size, and no covariance
            between tensors, as the released code has it (which also uses ``unbiased=False``).
        chunk_size: examples per side of a block of the Gram matrix.
    """
    form = Form(True, unbiased)
    job = job_of(model, inputs, labels, domains, parameters, form, loss, num_domains, chunk_size)
    _, entries = job.record(None, create_graph=torch.is_grad_enabled())
    if any(entry.source.shared for entry in entries):
        check_no_dropout(job.model)
    if not entries:  # the loss does not depend on any of these weights
        return like_of(job).new_zeros(())
    parts = [LayerGradients(entry.source, list(map(precise, entry.tensors))) for entry in entries]
    with outside_autocast(job):
        parts, groups = gram.over_ranks(parts, job.groups)
        if not blocks:
            return _covariance_spread(parts, groups, unbiased, chunk_size)
        spreads = []
        for part, entry in zip(parts, entries, strict=True):
            sizes = [job.weights[name].numel() for name in entry.names]
            for one in gram.by_tensor(part, sizes):
                value = _covariance_spread([one], groups, unbiased, chunk_size)
                spreads.append(value / one.source.size**2)
        return torch.stack(spreads).sum()


def _covariance_spread(
    parts: list[LayerGradients], groups: SortedDomains, unbiased: bool, chunk_size: int | None
) -> Tensor:
    if sum(part.source.size for part in parts) > DENSE:
        return gram.gram_spread(parts, groups, unbiased, chunk_size)
    covariances = gram.dense_covariances(parts, groups, unbiased)
    return spread(covariances.flatten(1), groups.counts >= 2)


def check_no_dropout(model: nn.Module) -> None:
    """Raise if dropout is active: blocks of a Gram matrix would see different masks."""
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
        rate = rate or getattr(module, "dropout", 0.0)
        if module.training and isinstance(rate, float) and rate > 0:
            raise ValueError(
                f"covariance_spread needs the same masks for every block of examples, but {name} "
                "has dropout active and weights here go through torch.func; call model.eval()"
            )


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
                return losses_and_rows(job)[1]
        if job.order is not None:
            raise ValueError("a recorded forward must have its examples sorted by domain")
        graph = torch.is_grad_enabled()
        entries = finish(self._recording, self.model, job.examples, losses, None, graph)
        return variance_of(job, entries)
