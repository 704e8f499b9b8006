"""Forward: one pass over the batches of all training domains; batches stacked to one length."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..gradients.double_backward import twice_differentiable
from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..statistics import Recorded, gradient_mean, head_mean

#: One training domain's share of a step: inputs ``[n_e, ...]`` and labels ``[n_e]``.
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One forward pass over the examples of all training domains, sorted by domain."""

    inputs: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    features: Tensor
    logits: Tensor
    losses: Tensor  # ℓ_i, [n]
    domain_losses: tuple[Tensor, ...]  # by domain; after separate passes, each with its own graph
    recorded: Recorded | None = None  # its layers, if gradients per example are needed

    @staticmethod
    def of(
        model: nn.Module,
        batches: Sequence[Batch],
        separate_passes: bool = False,
        recorded: Recorded | None = None,
    ) -> "Forward":
        """Run ``model`` on all batches, in one pass or in one pass per domain.

        After separate passes each domain has a graph of its own, whose gradient can be
        differentiated.
        """
        inputs = torch.cat([inputs for inputs, _ in batches])
        labels = torch.cat([labels for _, labels in batches])
        sizes = sizes_of(batches)
        domain_losses: tuple[Tensor, ...]
        if separate_passes:
            with twice_differentiable(model):
                runs = [_run(model, *batch) for batch in batches]
            features, logits, losses = (torch.cat(parts) for parts in zip(*runs, strict=True))
            domain_losses = tuple(losses for _, _, losses in runs)
            recorded = None
        else:
            with nullcontext() if recorded is None else recorded.running():
                features, logits, losses = _run(model, inputs, labels)
            domain_losses = losses.split(sizes)
        return Forward(
            inputs=inputs,
            labels=labels,
            sizes=sizes,
            features=features,
            logits=logits,
            losses=losses,
            domain_losses=domain_losses,
            recorded=recorded,
        )

    @property
    def risk(self) -> Tensor:
        """The mean loss of all examples."""
        return self.losses.mean()

    @property
    def risks(self) -> Tensor:
        """R_e, the mean loss of each domain, ``[E]``."""
        return torch.stack([losses.mean() for losses in self.domain_losses])

    @property
    def head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, logits, labels and domains: the arguments of a head's statistics."""
        return self.features, self.logits, self.labels, self.domains

    def variance(self, centered: bool = True, unbiased: bool = True) -> Tensor:
        """Return v_e of the weights named by the method's ``record_gradients_of``, ``[E, P]``."""
        if self.recorded is None:
            raise RuntimeError(
                "no layers were recorded; name their weights in the method's record_gradients_of"
            )
        return self.recorded.variance(
            self.inputs,
            self.losses,
            self.labels,
            self.domains,
            centered=centered,
            unbiased=unbiased,
            num_domains=len(self.sizes),
        )

    def mean(self, bias: bool = True) -> Tensor:
        """Return g_e of the recorded weights, or else of a linear classifier, ``[E, P]``.

        Args:
            bias: whether that classifier has one.
        """
        if self.recorded is None:
            return head_mean(*self.head, len(self.sizes), bias)
        return gradient_mean(
            self.recorded.model,
            self.inputs,
            self.labels,
            self.domains,
            self.recorded.parameters,
            num_domains=len(self.sizes),
            chunk_size=self.recorded.chunk_size,
        )

    @property
    def domains(self) -> Tensor:
        """The domain of each example; on the host, so that sizes are read without a wait."""
        host = not torch.compiler.is_compiling()
        device = torch.device("cpu") if host else self.losses.device
        ids = [torch.full((n,), e, device=device) for e, n in enumerate(self.sizes)]
        return torch.cat(ids)


def _run(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, logits and losses."""
    features = model.features(inputs)  # type: ignore[operator]
    logits = precise(model.classifier(features))  # type: ignore[operator]
    return features, logits, individual_losses(logits, labels, None)


def sizes_of(batches: Sequence[Batch]) -> tuple[int, ...]:
    """Return n_e of each domain."""
    return tuple(len(labels) for _, labels in batches)


@dataclass(frozen=True)
class Stacked:
    """Batches as long as the longest, M; a shorter one repeats its last example."""

    inputs: Tensor  # [E, M, ...]
    labels: Tensor  # [E, M]
    sizes: Tensor  # n_e, [E]

    @staticmethod
    def of(batches: Sequence[Batch]) -> "Stacked":
        """Return the batches of all domains, in their order."""
        sizes = sizes_of(batches)
        return Stacked(
            torch.stack([_pad(inputs, max(sizes)) for inputs, _ in batches]),
            torch.stack([_pad(labels, max(sizes)) for _, labels in batches]),
            torch.cat([torch.full((1,), n, device=batches[0][1].device) for n in sizes]),
        )

    def pick(self, domains: Tensor) -> "Stacked":
        """Return the batches of these domains, numbers ``[k]`` on the device, in their order."""
        inputs, labels, sizes = (
            values.index_select(0, domains) for values in (self.inputs, self.labels, self.sizes)
        )
        return Stacked(inputs, labels, sizes)


def shares(sizes: Tensor, length: int) -> Tensor:
    """Return the weights of a mean over the first n_e of ``length`` losses, ``[E, length]``."""
    counts = sizes[:, None].double()
    return (torch.arange(length, device=sizes.device) < counts) / counts


def _pad(values: Tensor, length: int) -> Tensor:
    if len(values) == length:
        return values
    ids = torch.arange(length, device=values.device).clamp(max=len(values) - 1)
    return values.index_select(0, ids)
