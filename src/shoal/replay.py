"""Which examples of a whole batch are run, so that they draw what they would draw in the whole."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@dataclass(frozen=True)
class BatchSlice:
    """Examples ``start`` … ``stop`` − 1 of ``total``."""

    start: int
    stop: int
    total: int

    def take(self, whole: Tensor) -> Tensor:
        """Return the part's rows of what was drawn for all."""
        return whole[self.start : self.stop]


_NOW: ContextVar[BatchSlice | None] = ContextVar("part", default=None)


@contextmanager
def part_of_batch(start: int, stop: int, total: int) -> Iterator[None]:
    """Draw inside the block what these examples have in the whole; random states are the caller's.

    What drops at random by other roads than ``torch.nn.functional`` draws for the part alone.
    """
    token = _NOW.set(BatchSlice(start, stop, total))
    try:
        with _MasksOfTheWhole():
            yield
    finally:
        _NOW.reset(token)


def part_now(inputs: Tensor) -> BatchSlice | None:
    """Return of which part these are the activations; None for all of a batch."""
    if torch.compiler.is_compiling():
        return None
    part = _NOW.get()
    return part if part is not None and len(inputs) == part.stop - part.start else None


class _MasksOfTheWhole(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func not in DROPOUTS:
            return func(*args, **(kwargs or {}))
        return _dropped(func, *args, **(kwargs or {}))


def _dropped(
    func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    part = part_now(input)
    if part is None or not training or p == 0:
        found: Tensor = func(input, p, training, inplace)
        return found
    ones = torch.ones(part.total, *input.shape[1:], dtype=input.dtype, device=input.device)
    mask = part.take(func(ones, p)).clone()  # so that no more of it is kept
    return input.mul_(mask) if inplace else input * mask


Backward = Callable[..., Any]


@dataclass(frozen=True)
class Randomness:
    """All that is random at one moment, so that dropout repeats itself.

    Torch's generators, and the counts in a model's buffers by which its own draws go on.
    """

    generators: tuple[Tensor, Tensor | None] | None
    counts: list[tuple[Tensor, Tensor]]  # a buffer, and what was in it
    device: torch.device

    @staticmethod
    def now(device: torch.device, model: nn.Module | None = None) -> "Randomness":
        cuda = device.type == "cuda"
        capturing = cuda and torch.cuda.is_current_stream_capturing()
        if capturing:  # generators cannot be asked
            _check_nothing_drawn(model)
        state = torch.cuda.get_rng_state(device) if cuda and not capturing else None
        generators = None if capturing else (torch.get_rng_state(), state)
        counts = [] if model is None else [(b, b.clone()) for b in _counts(model)]
        return Randomness(generators, counts, device)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw as at that moment inside the block, and go on as before after it."""
        before = [buffer.clone() for buffer, _ in self.counts]
        with ExitStack() as stack:
            if self.generators is not None:
                cpu, cuda = self.generators
                stack.enter_context(
                    torch.random.fork_rng([self.device] if cuda is not None else [])
                )
                torch.set_rng_state(cpu)
                if cuda is not None:
                    torch.cuda.set_rng_state(cuda, self.device)
            for buffer, count in self.counts:
                buffer.copy_(count)  # in place: a captured step replays addresses
            try:
                yield
            finally:
                for (buffer, _), count in zip(self.counts, before, strict=True):
                    buffer.copy_(count)


def _counts(model: nn.Module) -> list[Tensor]:
    return [b for b in model.buffers() if b.ndim == 0 and not b.is_floating_point()]


def _check_nothing_drawn(model: nn.Module | None) -> None:
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise RuntimeError(
                f"{name} draws from torch's generator, which cannot be repeated inside a captured "
                "step; set its p to 0, call it in eval mode, or do not capture the step"
            )


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
