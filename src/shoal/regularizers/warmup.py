"""λ times any penalty, with a warm-up."""

import math
from numbers import Real

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..scalars import Number, Scalars


def check_weight(name: str, weight: float | Tensor) -> None:
    """Raise unless the weight is finite and not negative; one on a device is not looked at."""
    if isinstance(weight, Tensor) and weight.ndim == 0:
        if weight.device.type != "cpu":
            return
        weight = float(weight)
    if not isinstance(weight, Real):
        raise TypeError(f"{name} must be a number, got {type(weight).__name__}")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"{name} must be finite and 0 or more, got {weight}")


def check_steps(name: str, steps: float) -> None:
    """Raise unless it is a whole number and not negative; 1e3 is one."""
    whole = isinstance(steps, float) and steps.is_integer()
    check_count(name, int(steps) if whole else steps, 0)  # type: ignore[arg-type]


def check_schedule(penalty_weight: float, warmup_steps: int, warmup_weight: float) -> None:
    """Raise unless the weights are finite and nothing is negative."""
    check_weight("penalty_weight", penalty_weight)
    check_steps("warmup_steps", warmup_steps)
    check_weight("warmup_weight", warmup_weight)


class Warmup(nn.Module):
    """λ times any penalty, with a warm-up: a weight of its own before ``warmup_steps``.

    Args:
        penalty_weight: λ.
        warmup_steps: the call from which λ acts; made with 0, it never has a warm-up.
        warmup_weight: the weight until then; IRM and V-REx have 1, Fishr 0.
    """

    penalty_weight, warmup_weight = Number(check_weight), Number(check_weight)
    warmup_steps = Number(check_steps)
    steps: Tensor

    def __init__(
        self, penalty_weight: float, warmup_steps: int = 0, warmup_weight: float = 1.0
    ) -> None:
        super().__init__()
        check_schedule(penalty_weight, warmup_steps, warmup_weight)
        self.scalars = Scalars(
            penalty_weight=penalty_weight, warmup_weight=warmup_weight, warmup_steps=warmup_steps
        )
        self.scheduled = warmup_steps > 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, penalty: Tensor) -> Tensor:
        """Return the weighted penalty, a scalar to add to the loss."""
        if self.steps.device != penalty.device:
            self.to(penalty.device)
        weight, before, warmup_steps = self.scalars.values.unbind()
        if self.scheduled:
            weight = torch.where(self.steps >= warmup_steps, weight, before)
            if self.training:
                self.steps += 1  # in place: a captured step replays addresses
        return weight.to(penalty.dtype) * penalty
