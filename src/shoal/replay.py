"""Replay: run a forward again with the same random state, modes and autocast, whole or in parts.

A part of a batch gets the dropout masks that it has in the whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Backward = Callable[..., Any]

DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


@dataclass(frozen=True)
class BatchSlice:
    """Examples ``start`` … ``stop`` − 1 of ``total``."""

    start: int
    stop: int
    total: int

    def take(self, whole: Tensor) -> Tensor:
        """Return the part's rows of a tensor drawn for the whole batch."""
        return whole[self.start : self.stop]


_NOW: ContextVar[BatchSlice | None] = ContextVar("part", default=None)


@contextmanager
def part_of_batch(start: int, stop: int, total: int, draws: bool = True) -> Iterator[None]:
    """Run some examples of a batch with the dropout masks that they have in the whole batch.

    The caller sets the random state. Dropout that does not go through ``torch.nn.functional`` draws
    for the part alone.

    Args:
        draws: whether the forward draws at all. If it does not, its operations need not be looked
            at one by one, which takes the host as long as some of them.
    """
    token = _NOW.set(BatchSlice(start, stop, total))
    try:
        with _WholeBatchMasks() if draws else nullcontext():
            yield
    finally:
        _NOW.reset(token)


def current_part(inputs: Tensor) -> BatchSlice | None:
    """Return the part of the batch that these activations belong to; None for a whole batch."""
    if torch.compiler.is_compiling():
        return None
    part = _NOW.get()
    return part if part is not None and len(inputs) == part.stop - part.start else None


class _WholeBatchMasks(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func not in DROPOUTS:
            return func(*args, **(kwargs or {}))
        return _dropout(func, *args, **(kwargs or {}))


def _dropout(
    func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    part = current_part(input)
    if part is None or not training or p == 0:
        found: Tensor = func(input, p, training, inplace)
        return found
    ones = torch.ones(part.total, *input.shape[1:], dtype=input.dtype, device=input.device)
    mask = part.take(func(ones, p)).clone()  # a copy, so that the rest is freed
    return input.mul_(mask) if inplace else input * mask


@dataclass(frozen=True)
class Randomness:
    """The random state at one moment, so that dropout can be repeated.

    It holds the state of torch's generators, and the counters in a model's buffers.
    """

    generators: tuple[Tensor, Tensor | None] | None
    counts: list[tuple[Tensor, Tensor]]  # a buffer, and its value at that moment
    device: torch.device

    @staticmethod
    def now(device: torch.device, model: nn.Module | None = None) -> "Randomness":
        cuda = device.type == "cuda"
        capturing = cuda and torch.cuda.is_current_stream_capturing()
        if capturing:  # generators cannot be read
            _check_no_dropout(model)
        state = torch.cuda.get_rng_state(device) if cuda and not capturing else None
        generators = None if capturing else (torch.get_rng_state(), state)
        counts = [] if model is None else [(b, b.clone()) for b in _counts(model)]
        return Randomness(generators, counts, device)

    def has_moved(self) -> bool:
        """Return whether anything was drawn since; True where that cannot be known."""
        if self.generators is None or self.device.type not in ("cpu", "cuda"):
            return True
        cpu, cuda = self.generators
        moved = not torch.equal(cpu, torch.get_rng_state())
        if cuda is not None:
            moved |= not torch.equal(cuda, torch.cuda.get_rng_state(self.device))
        return moved or any(not torch.equal(buffer, count) for buffer, count in self.counts)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw from this state inside the block; the state before is restored afterwards."""
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
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.ndim == 0 and not buffer.is_floating_point()
        # A norm counts batches in training mode only. Large networks have many.
        if module.training or name != "num_batches_tracked"
    ]


def _check_no_dropout(model: nn.Module | None) -> None:
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise RuntimeError(
                f"{name} draws from torch's generator, which cannot be repeated inside a captured "
                "step; set its p to 0, put it in eval mode, or do not capture the step"
            )


@dataclass(frozen=True)
class Modes:
    """The modes of a model at one moment: which modules train, which weights are trainable."""

    model: nn.Module
    training: list[bool]
    trainable: list[bool]

    @staticmethod
    def now(model: nn.Module) -> "Modes":
        training = [module.training for module in model.modules()]
        return Modes(model, training, [p.requires_grad for p in model.parameters()])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set these modes inside the block; the modes before are restored afterwards."""
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
    """Return a function that makes the current autocast context again, for use in a backward."""
    enabled = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type)
    return lambda: torch.autocast(device.type, dtype=dtype, enabled=enabled)


def first_order(backward: Backward) -> Backward:
    """Raise if this backward is differentiated: the result would be wrong, without an error."""

    @wraps(backward)
    def checked(ctx: Any, *cotangents: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a gradient statistic can be differentiated once, not twice (create_graph=True): "
                "it already is a derivative, and its backward is written by hand"
            )
        return backward(ctx, *cotangents)

    return checked
