"""A statistic to be taken: the network, its chosen weights, the examples and the form."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..checks import check_count, check_domains
from ..distributed import largest_over_ranks
from ..replay import part_of_batch
from .collect import record
from .domains import DomainGroups, SortedDomains, host_order
from .examples import Examples, Inputs, Loss
from .parameters import Parameters, select, unwrap
from .recording import WeightGradients


@dataclass(frozen=True)
class Form:
    """Which second moment: centred or not, 1/(n−1) or 1/n."""

    centered: bool = True
    unbiased: bool = True

    def scale(self, counts: Tensor) -> Tensor:
        """Return what Σ_i is multiplied by, ``[E, 1]``; 0 for a domain that is absent (n < 2)."""
        divisor = counts - 1 if self.centered and self.unbiased else counts
        return torch.where(counts >= 2, 1 / divisor.clamp(min=1), 0.0)[:, None]

    def scale_of(self, groups: DomainGroups, dtype: torch.dtype) -> Tensor | float:
        """Return the scale of groups; one number where the host knows that all are alike."""
        if isinstance(groups, SortedDomains) and len(set(groups.sizes)) == 1:
            n = groups.sizes[0]
            return 0.0 if n < 2 else 1 / (n - 1 if self.centered and self.unbiased else n)
        return self.scale(groups.counts.to(dtype))


@dataclass
class Job:
    """A statistic to be taken: the network, its chosen weights, and examples sorted by domain."""

    model: nn.Module
    weights: dict[str, Tensor]
    examples: Examples
    groups: SortedDomains
    loss: Loss | None
    form: Form
    chunk_size: int | None = None
    trusted: bool = False  # whether layers are not compared with autograd
    order: Tensor | None = None  # that sorted the examples, on the host; None if they came so

    @property
    def device(self) -> torch.device:
        return next(iter(self.weights.values())).device

    def assemble(self, parts: dict[str, Tensor], like: Tensor) -> Tensor:
        """Return the columns of all weights in order; a weight that is never used has zeros."""
        columns = []
        for name, weight in self.weights.items():
            if name in parts:
                columns.append(parts[name])
            else:
                columns.append(like.new_zeros(self.groups.num_domains, weight.numel()))
        return torch.cat(columns, 1)

    def split(self, entry: WeightGradients, rows: Tensor) -> dict[str, Tensor]:
        if len(entry.names) == 1:
            return {entry.names[0]: rows}
        sizes = [self.weights[name].numel() for name in entry.names]
        return dict(zip(entry.names, rows.split(sizes, 1), strict=True))

    def chunks(self) -> list[slice]:
        n = len(self.examples)
        size = self.chunk_size or max(n, 1)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def record(
        self, part: slice | None, create_graph: bool, leaves: list[Tensor] | None = None
    ) -> tuple[Tensor, list[WeightGradients]]:
        """Return ℓ_i and the entries of these examples, or of all.

        Args:
            leaves: other tensors for the inputs of these examples.
        """
        examples = self.examples if part is None else self.examples.take(part)
        if leaves is not None:
            examples = examples.with_tensors(leaves, examples.labels)
        how = (self.loss, create_graph, self.trusted)
        if part is None:
            return record(self.model, self.weights, examples, *how)
        with part_of_batch(part.start, part.stop, len(self.examples)):
            return record(self.model, self.weights, examples, *how)

    def first(self, count: int) -> "Job":
        """Return the job of the first ``count`` examples, one chunk."""
        part = slice(0, count)
        examples, groups = self.examples.take(part), self.groups.within(part)
        return replace(self, examples=examples, groups=groups, chunk_size=count)

    def unsorted(self, losses: Tensor) -> Tensor:
        """Return ℓ_i in the order in which the examples came."""
        if self.order is None:
            return losses
        return losses.index_select(0, self.order.argsort().to(losses.device))

    def columns(self) -> dict[str, slice]:
        """Return the columns of each weight in the rows."""
        columns, start = {}, 0
        for name, weight in self.weights.items():
            columns[name] = slice(start, start + weight.numel())
            start += weight.numel()
        return columns


def like_of(job: Job) -> Tensor:
    """Return an empty tensor of the statistic's dtype and device."""
    weight = next(iter(job.weights.values()))
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.empty(0, dtype=dtype, device=weight.device)


def outside_autocast(job: Job) -> AbstractContextManager[None]:
    """Statistics are float32 under any autocast."""
    return torch.autocast(job.device.type, enabled=False)


def job_of(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters,
    form: Form,
    loss: Loss | None,
    num_domains: int | None,
    chunk_size: int | None,
) -> Job:
    """Return the job of a statistic, its examples sorted by domain, after checking what came."""
    model = unwrap(model)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "a gradient statistic needs gradients, which torch.inference_mode() rules out; "
            "use torch.no_grad() where only its value is wanted"
        )
    check_independent(model)
    examples = Examples.of(inputs, labels)
    check_domains(domains, len(examples), num_domains)
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, 1)
    weights = select(model, parameters)
    device = next(iter(weights.values())).device
    total = num_domains or largest_over_ranks(int(domains.max()) + 1 if len(domains) else 1, device)
    order, sizes = host_order(domains, total)
    if order is not None:
        examples = examples.take(order)
    groups = SortedDomains(sizes, device)
    return Job(model, weights, examples, groups, loss, form, chunk_size, order=order)


def check_independent(model: nn.Module) -> None:
    """Raise if an example's loss depends on the other examples of the batch."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
            raise ValueError(
                f"{name or type(module).__name__} divides gradients by how often the batch has a "
                "word (scale_grad_by_freq), so each example's gradient depends on all others and "
                "has no meaning of its own; make it without"
            )
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            raise ValueError(
                f"{name or type(module).__name__} normalises with the statistics of the batch, so "
                "each example's loss depends on all others and a per-example gradient has no "
                "meaning; put batch norm in eval mode (frozen statistics) or use group norm"
            )
