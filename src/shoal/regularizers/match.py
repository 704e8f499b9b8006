"""λ times the spread of any statistic's rows, with their moving average and a warm-up."""

from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..penalties import presence
from ..scalars import Number, Scalars
from .matching import matched
from .warmup import check_schedule, check_steps, check_weight


def check_decay(name: str, decay: float) -> None:
    """Raise unless it is in [0, 1)."""
    if not isinstance(decay, Real):
        raise TypeError(f"{name} must be a number, got {type(decay).__name__}")
    if not 0 <= decay < 1:
        raise ValueError(f"{name} must be in [0, 1), got {decay}")


class Match(nn.Module):
    """λ times the spread of any statistic's rows, with their moving average and a warm-up.

    With s̄_e ← γ s̄_e + (1 − γ) s_e starting from zero, the domains' u_e = s̄_e / (1 − γ) are
    matched, so that ∂u/∂s does not depend on γ (Appendix D.1). The moving average runs from the
    first call, warm-up included.

    Args:
        num_domains: E; domain ids are 0 … E − 1.
        penalty_weight: λ.
        ema_decay: γ in [0, 1); 0 matches the batch alone.
        warmup_steps: the call from which λ acts.
        warmup_weight: the weight until then.
        normalise: divide by the number of columns P; False is Eq. 3.
    """

    penalty_weight, warmup_weight = Number(check_weight), Number(check_weight)
    ema_decay, warmup_steps = Number(check_decay), Number(check_steps)
    v_bar: Tensor | None
    steps: Tensor
    updates: Tensor

    def __init__(
        self,
        num_domains: int,
        penalty_weight: float,
        ema_decay: float = 0.0,
        warmup_steps: int = 0,
        *,
        warmup_weight: float = 0.0,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        check_count("num_domains", num_domains, 1)
        check_decay("ema_decay", ema_decay)
        check_schedule(penalty_weight, warmup_steps, warmup_weight)
        self.num_domains = num_domains
        self.normalise = normalise
        self.scalars = Scalars(
            ema_decay=ema_decay,
            penalty_weight=penalty_weight,
            warmup_weight=warmup_weight,
            warmup_steps=warmup_steps,
        )
        self.register_buffer("v_bar", None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("updates", torch.zeros(num_domains, dtype=torch.int64))

    @property
    def active(self) -> Tensor:
        """Whether λ acts on the next call, a bool scalar on the device."""
        return self.steps >= self.scalars.values[-1]

    def match(self, rows: Tensor, present: Tensor | Literal[True] | None = None) -> Tensor:
        """Return λ · spread(u) for the rows of any statistic, ``[E, P]`` or ``[E]``.

        A domain that is absent neither decays nor enters. Where domains were seen unequally often,
        their geometric sums are brought to the length of the longest.

        Args:
            present: which domains take part, bool ``[E]``, or True for all; by default the rows
                that are not all zero.
        """
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            raise TypeError(f"rows must be a floating-point tensor, got {_kind(rows)}")
        if rows.ndim not in (1, 2) or len(rows) != self.num_domains:
            raise ValueError(
                f"rows must be [E, P] or [E] with E = num_domains = {self.num_domains}, "
                f"got {list(rows.shape)}"
            )
        rows = rows if rows.dtype == torch.float64 else rows.float()
        taking_part = None if present is True else presence(rows, present)
        return self._match(rows.reshape(self.num_domains, -1), taking_part)

    def begin(self, columns: int, dtype: torch.dtype) -> None:
        """Make v̄ at once, where P and the network's dtype are known.

        A first call that makes it is compiled apart from all others.
        """
        dtype = torch.promote_types(dtype, torch.float32)
        self.v_bar = torch.zeros(self.num_domains, columns, dtype=dtype, device=self.steps.device)

    def _match(self, rows: Tensor, present: Tensor | None) -> Tensor:
        """Match rows ``[E, P]``; ``present=None`` says that the host knows all domains present."""
        v_bar = self._moving_average(rows)
        columns = rows.shape[1] if self.normalise else 1
        numbers = (self.updates, self.steps, self.scalars.values)
        penalty, new, finite = matched(rows, present, v_bar, *numbers, columns)
        if self.training:
            with torch.no_grad():  # in place: a captured step replays addresses
                if torch.compiler.is_compiling() or new.dtype != v_bar.dtype:
                    v_bar.copy_(torch.where(finite, new, v_bar))
                else:
                    torch.where(finite, new, v_bar, out=v_bar)
                self.updates.add_(finite if present is None else present & finite)
                self.steps.add_(1)
        return penalty

    def _moving_average(self, rows: Tensor) -> Tensor:
        with torch.inference_mode(False):  # buffers outlive the block that makes them
            if self.steps.device != rows.device:
                self.to(rows.device)
            if self.v_bar is None:
                fresh = torch.zeros(rows.shape, dtype=rows.dtype, device=rows.device)
                if not self.training:
                    return fresh
                self.v_bar = fresh
        if self.v_bar.shape != rows.shape:
            raise ValueError(
                f"rows must keep the shape of the first call, {list(self.v_bar.shape)}, "
                f"got {list(rows.shape)}"
            )
        return self.v_bar

    def _apply(self, fn: Any, recurse: bool = True) -> "Match":
        # A network in half precision still has its variances averaged in float32.
        before = self.v_bar
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.v_bar is not None and self.v_bar.itemsize < before.itemsize:
            self.v_bar = before.to(self.v_bar.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # v̄ is made on the first call; before it, a checkpoint brings the shape along.
        saved = state_dict.get(prefix + "v_bar")
        if isinstance(saved, Tensor) and self.v_bar is None:
            self.v_bar = torch.zeros_like(saved, device=self.steps.device)
        elif saved is None and prefix + "steps" in state_dict:
            self.v_bar = None  # saved before the first call
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_domains={self.num_domains}, "
            f"penalty_weight={self.penalty_weight}, ema_decay={self.ema_decay}, "
            f"warmup_steps={self.warmup_steps})"
        )


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
