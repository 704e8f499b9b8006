"""From what a caller asks for to a job: checked, its weights chosen, its examples sorted."""

import torch
from torch import Tensor, nn

from ..checks import check_count, check_domains
from ..distributed import largest_over_ranks
from .groups import Sorted, host_order
from .inputs import Examples, Inputs
from .job import Form, Job
from .losses import Loss
from .selection import Parameters, select, unwrap


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
    groups = Sorted(sizes, device)
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
