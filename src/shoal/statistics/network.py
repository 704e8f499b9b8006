"""Variances and means of the gradients in any weights of any network."""

from dataclasses import replace

from torch import Tensor, nn

from ..gradients import budget, mean, passes
from ..gradients.asked import job_of
from ..gradients.inputs import Inputs
from ..gradients.job import Form, Job
from ..gradients.losses import Loss
from ..gradients.selection import Parameters
from ..gradients.uncompiled import uncompiled


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
    return passes.losses_and_variance(_within(job, memory))[1]


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
    return passes.losses_and_variance(_within(job, memory))


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
