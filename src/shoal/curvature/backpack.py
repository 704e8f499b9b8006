"""Diag(H_e) by BackPACK, an extra: for networks of the layers that it knows."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ..gradients.inputs import Examples
from ..gradients.job import Job, like_of
from ..gradients.selection import select


def backpack_diagonal(job: Job) -> Tensor:
    """Return Diag(H_e), ``[E, P]``, of cross-entropy on two logits or more."""
    backpack = _package()
    model = deepcopy(job.model)
    chosen = [weight for name, weight in select(model, "all").items() if name in job.weights]
    # A container of ours is no chain to BackPACK.
    named = [getattr(model, name, None) for name in ("features", "classifier")]
    parts = [part for part in named if isinstance(part, nn.Module)]
    chain = nn.Sequential(*parts) if len(parts) == 2 else model
    extended = backpack.extend(chain)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    rows = like_of(job).new_zeros(job.groups.num_domains, sum(w.numel() for w in chosen))
    for domain, part in job.groups.chunks(job.chunk_size or max(job.groups.sizes)):
        examples = _with_gradients(job.examples.take(part))
        if examples.labels.is_floating_point():
            raise ValueError("BackPACK takes class indices, got soft targets or 0/1 of one logit")
        for weight in chosen:
            weight.grad = None
        with torch.enable_grad(), backpack.backpack(backpack.extensions.DiagHessian()):
            loss(examples.run(extended), examples.labels).backward()
        rows[domain] += torch.cat([weight.diag_h.flatten() for weight in chosen])  # type: ignore[attr-defined]
    return rows / job.groups.counts.to(rows.dtype).clamp(min=1)[:, None]


def _with_gradients(examples: Examples) -> Examples:
    """Let inputs have gradients, without which torch warns of BackPACK's hooks."""
    tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in examples.tensors]
    return examples.with_tensors(tensors, examples.labels)


def _package() -> Any:
    try:
        import backpack
        import backpack.extensions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "method='backpack' needs BackPACK, which is not installed: "
            "pip install 'shoal[curvature]'",
            name="backpack",
        ) from error
    return backpack
