"""The spread of full gradient covariances."""

import torch
from torch import Tensor, nn

from ..gradients import gram
from ..gradients.asked import job_of
from ..gradients.gram_blocks import Part
from ..gradients.groups import Sorted
from ..gradients.inputs import Inputs
from ..gradients.job import Form, like_of, outside_autocast
from ..gradients.losses import Loss
from ..gradients.precision import precise
from ..gradients.selection import Parameters
from ..gradients.uncompiled import uncompiled
from ..penalties import spread

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
    parts = [Part(entry.source, list(map(precise, entry.tensors))) for entry in entries]
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
    parts: list[Part], groups: Sorted, unbiased: bool, chunk_size: int | None
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
