"""Statistics of any weights of any network: gradient variance, mean and covariance spread."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..gradients import gram, mean
from ..gradients.collect import collect_recorded
from ..gradients.domains import SortedDomains
from ..gradients.examples import Inputs, Loss
from ..gradients.gram import LayerGradients
from ..gradients.job import Job
from ..gradients.memory import chunk_within
from ..gradients.parameters import Parameters, outside_compile, select_weights
from ..gradients.precision import full_precision, precise
from ..gradients.recording import Recording
from ..gradients.sources import Form
from ..gradients.variance import losses_and_rows, variance_of
from ..penalties import spread
from ..replay import Randomness

# Up to this many weights a covariance is formed densely, which cancels nothing.
DENSE = 2048


@outside_compile
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

    Runs its own forward in the model's current mode. Linear layers on vectors take three matrix
    products and form no per-example gradient. Other layers form at most one layer's
    ``[chunk, P_l]`` at a time. Weights without a rule go through ``torch.func``.

    Args:
        model: returns logits, ``[n, C]`` or one per example.
        inputs: a tensor, tuple or dict of tensors with examples first.
        parameters: ``"all"``, a submodule, or names and prefixes; P is in ``named_parameters()``
            order, each tensor row-major, a tied weight once, without frozen weights.
        chunk_size: run this many examples at a time, and again in the backward, which bounds
            memory; None keeps the whole graph.
        memory: additional bytes that this call and its backward can take. It chooses
            ``chunk_size``; if all examples fit, nothing runs twice.
        centered, unbiased, loss, num_domains: as in ``head_variance``.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        >>> inputs, labels, domains = torch.eye(4), torch.arange(4) % 2, torch.arange(4) // 2
        >>> shoal.gradient_variance(net, inputs, labels, domains).shape  # all 23 weights
        torch.Size([2, 23])
        >>> shoal.gradient_variance(net, inputs, labels, domains, "0.weight").shape
        torch.Size([2, 12])
        >>> shoal.spread(shoal.gradient_variance(net, inputs, labels, domains)).backward()
    """
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(centered, unbiased),
        loss=loss,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    return losses_and_rows(_within(job, memory))[1]


@outside_compile
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

    A second forward for the risk would make a step a third longer. Arguments as in
    ``gradient_variance``. DistributedDataParallel averages gradients only after its own forward:
    use ``gradient_variance`` and the wrapper's logits with it.

    Example:
        >>> net = torch.nn.Linear(4, 2)
        >>> inputs, labels, domains = torch.eye(4), torch.arange(4) % 2, torch.arange(4) // 2
        >>> losses, v = shoal.losses_and_variance(net, inputs, labels, domains)
        >>> losses.shape, v.shape
        (torch.Size([4]), torch.Size([2, 10]))
        >>> (losses.mean() + shoal.spread(v)).backward()
    """
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(centered, unbiased),
        loss=loss,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    return losses_and_rows(_within(job, memory))


def _within(job: Job, memory: int | None) -> Job:
    """Return the job with the chunk size that ``memory`` bytes allow."""
    if memory is None:
        return job
    if job.chunk_size is not None:
        raise ValueError(
            f"give chunk_size or memory, which chooses it; got {job.chunk_size} and {memory}"
        )
    return replace(job, chunk_size=chunk_within(job, memory))


@outside_compile
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

    Example:
        >>> net = torch.nn.Linear(4, 2)
        >>> inputs, labels, domains = torch.eye(4), torch.arange(4) % 2, torch.arange(4) // 2
        >>> g = shoal.gradient_mean(net, inputs, labels, domains)
        >>> g.shape
        torch.Size([2, 10])
        >>> shoal.spread(g).backward()  # the penalty of IGA
    """
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(),
        loss=loss,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    return mean.gradient_mean(job)


@outside_compile
def gradient_similarity(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    cosine: bool = True,
    loss: Loss | None = None,
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Return the cosines of the angles between the domains' mean gradients, ``[E, E]``.

    Differentiable, as ``gradient_mean`` is; under ``torch.no_grad()`` no graph is kept. Rows and
    columns of an absent domain, with fewer than two examples, are zero.

    Args:
        cosine: False for the inner products ⟨g_e, g_f⟩.
        others: as in ``gradient_variance``.
    """
    rows = gradient_mean(
        model,
        inputs,
        labels,
        domains,
        parameters,
        loss=loss,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    if cosine:  # before the product, whose range is smaller; a zero row stays zero
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows = rows / torch.where(length > 0, length, 1.0)
    with torch.autocast(rows.device.type, enabled=False), full_precision():
        return rows @ rows.mT


@outside_compile
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

    Uses n × n Gram matrices if P × P would be too large. Their terms cancel if the covariances
    agree, so in float32 a value below about 1e-7 of 1/|𝓔| Σ_e ‖C_e‖² is rounding.

    Args:
        blocks: one covariance per weight tensor, divided by the tensor's size, and none between
            tensors, as in the released code (which also uses ``unbiased=False``).
        chunk_size: examples per side of a block of the Gram matrix.

    Example:
        >>> net = torch.nn.Linear(4, 2)
        >>> inputs, labels, domains = torch.eye(4), torch.arange(4) % 2, torch.arange(4) // 2
        >>> shoal.covariance_spread(net, inputs, labels, domains) > 0
        tensor(True)
    """
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(centered=True, unbiased=unbiased),
        loss=loss,
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    _, entries = job.record(None, create_graph=torch.is_grad_enabled())
    if any(entry.source.shared for entry in entries):
        check_no_dropout(job.model)
    if not entries:  # the loss does not depend on any of these weights
        return job.zeros()
    parts = [LayerGradients(entry.source, list(map(precise, entry.tensors))) for entry in entries]
    with job.outside_autocast():
        parts, groups = gram.gather_parts(parts, job.groups)
        if not blocks:
            return _covariance_spread(parts, groups, unbiased, chunk_size)
        spreads = []
        for part, entry in zip(parts, entries, strict=True):
            sizes = [job.weights[name].numel() for name in entry.names]
            for one in gram.split_by_tensor(part, sizes):
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
    """Raise if dropout is active: blocks of a Gram matrix would get different masks."""
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
        rate = rate or getattr(module, "dropout", 0.0)
        if module.training and isinstance(rate, float) and rate > 0:
            raise ValueError(
                f"covariance_spread needs the same masks for every block of examples, but {name} "
                "has dropout active and weights here go through torch.func; call model.eval()"
            )


class Recorded:
    """A forward whose layers are recorded, so the variance of its gradients needs no second one.

    Args:
        parameters: as in ``gradient_variance``.
        chunk_size: record nothing, and run this many examples at a time again.
    """

    def __init__(
        self, model: nn.Module, parameters: Parameters, chunk_size: int | None = None
    ) -> None:
        self.model, self.parameters, self.chunk_size = model, parameters, chunk_size
        self._recording = Recording(select_weights(model, parameters))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the one forward that the model runs inside the block."""
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
            inputs, labels: those of the recorded forward, sorted by domain.
            losses: ℓ_i of the recorded forward, cross-entropy or binary, ``[n]``.
            domains: as in ``gradient_variance``.
        """
        job = Job.prepare(
            self.model,
            inputs,
            labels,
            domains,
            parameters=self.parameters,
            form=Form(centered, unbiased),
            num_domains=num_domains,
            chunk_size=self.chunk_size,
        )
        if self.chunk_size is not None:
            with self._state.restored():  # the dropout masks of the forward
                return losses_and_rows(job)[1]
        if job.order is not None:
            raise ValueError("a recorded forward must have its examples sorted by domain")
        entries = collect_recorded(
            self._recording,
            self.model,
            job.examples,
            losses,
            loss=None,
            create_graph=torch.is_grad_enabled(),
        )
        return variance_of(job, entries)
