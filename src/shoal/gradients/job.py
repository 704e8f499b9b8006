"""Jobs: a statistic to compute, with the network, its chosen weights, sorted examples and form."""

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ..checks import check_count, check_domains
from ..distributed import largest_over_ranks
from ..replay import part_of_batch
from .collect import collect
from .domains import SortedDomains, host_order
from .examples import Examples, Inputs, Loss
from .parameters import Parameters, select_weights, unwrap
from .recording import Owners, WeightGradients, owners_of
from .sharding import with_whole_weights
from .sources import Form, GradientSource


@dataclass(frozen=True)
class Routes:
    """Where the gradients of each weight come from.

    Args:
        layers: from the input z and the output's gradient r of their layers.
        copied: from one copy of the weight for each example: positions, class tokens.
        rest: from ``torch.func``.
        draws: whether the forward drew random numbers.
    """

    layers: tuple[str, ...]
    copied: tuple[str, ...]
    rest: tuple[str, ...]
    draws: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """A statistic to compute: the network, its chosen weights, and examples sorted by domain."""

    model: nn.Module
    weights: dict[str, Tensor]
    examples: Examples
    groups: SortedDomains
    loss: Loss | None
    form: Form
    chunk_size: int | None = None
    check_layers: bool = True  # whether the layers' gradients are compared with autograd's
    routes: Routes | None = None  # for a stream; None before they are verified
    order: Tensor | None = None  # sorted the examples, on the host; None if they came sorted

    @staticmethod
    def prepare(
        model: nn.Module,
        inputs: Inputs,
        labels: Tensor,
        domains: Tensor,
        *,
        parameters: Parameters,
        form: Form,
        loss: Loss | None = None,
        num_domains: int | None = None,
        chunk_size: int | None = None,
    ) -> "Job":
        """Return the job of a statistic after checking its arguments; sorts examples by domain."""
        model = unwrap(model)
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "a gradient statistic needs gradients, which torch.inference_mode() disables; "
                "use torch.no_grad() if only its value is wanted"
            )
        check_independent(model)
        examples = Examples.of(inputs, labels)
        check_domains(domains, len(examples), num_domains)
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1)
        plain = with_whole_weights(model)
        weights = select_weights(model, parameters)
        if plain is not model:
            named = dict(plain.named_parameters())
            model, weights = plain, {name: named[name] for name in weights}
        device = next(iter(weights.values())).device
        if num_domains is None:
            largest = int(domains.max()) + 1 if len(domains) else 1
            num_domains = largest_over_ranks(largest, device)
        order, sizes = host_order(domains, num_domains)
        if order is not None:
            examples = examples.take(order)
        return Job(
            model=model,
            weights=weights,
            examples=examples,
            groups=SortedDomains(sizes, device),
            loss=loss,
            form=form,
            chunk_size=chunk_size,
            order=order,
        )

    # Found once for all chunks: to walk through a network's modules takes the host a while.
    @cached_property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(self.model.modules())

    @cached_property
    def trainable(self) -> dict[str, Tensor]:
        """All weights of the network that are trained, chosen or not."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @cached_property
    def owners(self) -> Owners:
        return owners_of(self.modules, self.weights)

    @cached_property
    def sources(self) -> dict[Hashable, list[tuple[tuple[str, ...], GradientSource]]]:
        """Weights of a layer, with the source of their gradients, as a chunk found them."""
        return {}

    @cached_property
    def device(self) -> torch.device:
        return next(iter(self.weights.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the statistic."""
        weight = next(iter(self.weights.values()))
        return torch.float64 if weight.dtype == torch.float64 else torch.float32

    @property
    def size(self) -> int:
        """P, the number of weights."""
        return sum(weight.numel() for weight in self.weights.values())

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros of the statistic's dtype and device."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def outside_autocast(self) -> AbstractContextManager[None]:
        """Return a context without autocast: statistics are float32 under any autocast."""
        kind = self.device.type
        if not torch.is_autocast_enabled(kind):  # asked for every layer: entering one takes longer
            return nullcontext()
        return torch.autocast(kind, enabled=False)

    def differentiable_tensors(self) -> list[Tensor]:
        """Return the tensors a statistic has gradients in: the model's weights, then inputs."""
        weights: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        return weights + [t for t in self.examples.tensors if t.requires_grad]

    def columns(self) -> dict[str, slice]:
        """Return the columns of each weight in the rows."""
        columns, start = {}, 0
        for name, weight in self.weights.items():
            columns[name] = slice(start, start + weight.numel())
            start += weight.numel()
        return columns

    def split(self, entry: WeightGradients, rows: Tensor) -> dict[str, Tensor]:
        """Return an entry's rows ``[E, P_l]`` by weight."""
        if len(entry.names) == 1:
            return {entry.names[0]: rows}
        sizes = [self.weights[name].numel() for name in entry.names]
        return dict(zip(entry.names, rows.split(sizes, 1), strict=True))

    def assemble(self, parts: dict[str, Tensor]) -> Tensor:
        """Return the columns of all weights in order, ``[E, P]``; zeros for an unused weight."""
        columns = []
        for name, weight in self.weights.items():
            if name in parts:
                columns.append(parts[name])
            else:
                columns.append(self.zeros(self.groups.num_domains, weight.numel()))
        return torch.cat(columns, 1)

    def chunks(self) -> list[slice]:
        """Return the examples as slices of at most ``chunk_size``."""
        n = len(self.examples)
        size = self.chunk_size or max(n, 1)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def record(
        self, part: slice | None, create_graph: bool, leaves: list[Tensor] | None = None
    ) -> tuple[Tensor, list[WeightGradients]]:
        """Return ℓ_i and the gradients' entries for some examples, or for all.

        Args:
            leaves: tensors that replace the inputs of these examples.
        """
        examples = self.examples if part is None else self.examples.take(part)
        if leaves is not None:
            examples = examples.with_tensors(leaves, examples.labels)
        if part is None:
            return self._collect(examples, create_graph)
        with part_of_batch(part.start, part.stop, len(self.examples)):
            return self._collect(examples, create_graph)

    def _collect(
        self, examples: Examples, create_graph: bool
    ) -> tuple[Tensor, list[WeightGradients]]:
        return collect(
            self.model,
            self.weights,
            examples,
            self.loss,
            create_graph=create_graph,
            check_layers=self.check_layers,
        )

    def first(self, count: int) -> "Job":
        """Return the job of the first ``count`` examples, one chunk."""
        part = slice(0, count)
        examples, groups = self.examples.take(part), self.groups.within(part)
        return replace(self, examples=examples, groups=groups, chunk_size=count)

    def unsort(self, losses: Tensor) -> Tensor:
        """Return ℓ_i in the order in which the examples came."""
        if self.order is None:
            return losses
        return losses.index_select(0, self.order.argsort().to(losses.device))


def check_independent(model: nn.Module) -> None:
    """Raise if an example's loss depends on the other examples of the batch."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.scale_grad_by_freq:
            raise ValueError(
                f"{name or type(module).__name__} divides gradients by how often the batch has a "
                "word (scale_grad_by_freq), so each example's gradient depends on all others and "
                "has no meaning of its own; set scale_grad_by_freq=False"
            )
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            raise ValueError(
                f"{name or type(module).__name__} normalises with the statistics of the batch, so "
                "each example's loss depends on all others and a per-example gradient has no "
                "meaning; put batch norm in eval mode (frozen statistics) or use group norm"
            )
