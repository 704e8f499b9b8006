"""A statistic to be taken: the network, its chosen weights, the examples and the form."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..parts import part_of_batch
from .capture import record
from .groups import Sorted
from .inputs import Examples
from .losses import Loss
from .masked import Groups
from .recording import Entry


@dataclass(frozen=True)
class Form:
    """Which second moment: centred or not, 1/(n−1) or 1/n."""

    centered: bool = True
    unbiased: bool = True

    def scale(self, counts: Tensor) -> Tensor:
        """Return what Σ_i is multiplied by, ``[E, 1]``; 0 for a domain that is absent (n < 2)."""
        divisor = counts - 1 if self.centered and self.unbiased else counts
        return torch.where(counts >= 2, 1 / divisor.clamp(min=1), 0.0)[:, None]

    def scale_of(self, groups: Groups, dtype: torch.dtype) -> Tensor | float:
        """Return the scale of groups; one number where the host knows that all are alike."""
        if isinstance(groups, Sorted) and len(set(groups.sizes)) == 1:
            n = groups.sizes[0]
            return 0.0 if n < 2 else 1 / (n - 1 if self.centered and self.unbiased else n)
        return self.scale(groups.counts.to(dtype))


@dataclass
class Job:
    """A statistic to be taken: the network, its chosen weights, and examples sorted by domain."""

    model: nn.Module
    weights: dict[str, Tensor]
    examples: Examples
    groups: Sorted
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

    def split(self, entry: Entry, rows: Tensor) -> dict[str, Tensor]:
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
    ) -> tuple[Tensor, list[Entry]]:
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
