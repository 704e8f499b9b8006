"""Backwards by hand: running a forward again exactly as the first time, and only once over."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

Backward = Callable[..., Any]


@dataclass(frozen=True)
class Randomness:
    """The random state at one moment, so that dropout repeats itself."""

    cpu: Tensor
    cuda: Tensor | None
    device: torch.device

    @staticmethod
    def now(device: torch.device) -> "Randomness":
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return Randomness(torch.get_rng_state(), cuda, device)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw as at that moment inside the block, and go on as before after it."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


@dataclass(frozen=True)
class Modes:
    """Which modules of a model were training, and which weights trainable, at one moment."""

    model: nn.Module
    training: list[bool]
    trainable: list[bool]

    @staticmethod
    def now(model: nn.Module) -> "Modes":
        training = [module.training for module in model.modules()]
        return Modes(model, training, [p.requires_grad for p in model.parameters()])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run in the modes of that moment inside the block."""
        before = Modes.now(self.model)
        self._set()
        try:
            yield
        finally:
            before._set()

    def _set(self) -> None:
        for module, training in zip(self.model.modules(), self.training, strict=True):
            module.training = training
        for parameter, trainable in zip(self.model.parameters(), self.trainable, strict=True):
            parameter.requires_grad_(trainable)


def autocast_now(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a maker of the autocast context that is on now, for use in a backward."""
    enabled = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type)
    return lambda: torch.autocast(device.type, dtype=dtype, enabled=enabled)


def first_order(backward: Backward) -> Backward:
    """Refuse to record this backward: its own derivative would come out wrong, not missing."""

    @wraps(backward)
    def checked(ctx: Any, *cotangents: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a gradient statistic can be differentiated once, not twice (create_graph=True): "
                "it already is a derivative, and its backward is written by hand"
            )
        return backward(ctx, *cotangents)

    return checked
