"""One update of a run as a step without arguments: drawn, made and summed up on the device."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..catalogue import PRECISIONS, STEP_KINDS, StepKind
from ..choices import choose
from ..distributed import alone, processes, run_shared
from ..micro_batches import in_micro_batches
from ..networks.backbones import Features
from .batches import Batches


class CapturedStep:
    """Call to run ``step``: captured and replayed on a CUDA device, plainly elsewhere.

    A step must update its state in place and never ask the host. Capturing needs a few steps to
    warm up; ``undo`` must take them back in place, so that every counted step is a replay.
    Replays go to a stream of their own, so that several trainings can share a device: the memory
    traffic of one runs under the arithmetic of another. Call ``wait`` before reading results.
    """

    def __init__(
        self, step: Callable[[], None], undo: Callable[[], None], device: torch.device
    ) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._capture(undo, device)

    def _capture(self, undo: Callable[[], None], device: torch.device) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            for _ in range(3):
                self._step()
        self.wait()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._step()
        undo()
        torch.cuda.synchronize(device)

    def __call__(self) -> None:
        if self._graph is None:
            self._step()
        else:
            with torch.cuda.stream(self._stream):
                self._graph.replay()

    def between(self, change: Callable[[], object]) -> None:
        """Change the step's state after the steps called so far and before the next."""
        if self._graph is None:
            change()
        else:
            with torch.cuda.stream(self._stream):
                change()

    def wait(self) -> None:
        """Return when all steps that were called have run."""
        if self._graph is not None:
            self._stream.synchronize()


@dataclass(frozen=True)
class BatchRunner:
    """Runs a network on a batch: each process a part of it, ``size`` images at a time."""

    size: int | None

    def __call__(self, network: nn.Module, inputs: Tensor) -> Tensor:
        return run_shared(self._run, network, inputs)

    def _run(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        if self.size is None:
            return network(inputs)
        features: Tensor = in_micro_batches(network, inputs, self.size)
        return features


def share(algorithm: Algorithm) -> None:
    """Have the method's network run as its ``micro_batch`` and the number of processes say."""
    plain = algorithm.micro_batch is None and processes() == 1
    for part in algorithm.modules():
        if isinstance(part, Features):
            part.runner = None if plain else BatchRunner(algorithm.micro_batch)


def smaller(algorithm: Algorithm, images: int) -> int:
    """Halve the method's micro-batches and return their size; raise where that is no help."""
    features = [part for part in algorithm.modules() if isinstance(part, Features)]
    now = algorithm.micro_batch or images
    if now == 1 or not features:
        raise torch.OutOfMemoryError(
            "memory ran out"
            + (" with one image at a time" if features else "")
            + "; choose a smaller batch_size or network, or another device"
        )
    if not all(part.frozen_statistics for part in features):
        raise torch.OutOfMemoryError(
            "memory ran out, and micro-batches would have other batch-norm statistics than the "
            "whole batch; choose a smaller batch_size, or leave the statistics frozen"
        )
    algorithm.micro_batch = (now + 1) // 2
    share(algorithm)
    return algorithm.micro_batch


def fuse(network: nn.Module) -> None:
    """Let the group norms of ``network`` leave images as they lie in memory, once compiled.

    Torch's copies images that lie channels-last, which a convolution after it copies back.
    """
    for part in network.modules():
        if type(part) is nn.GroupNorm:
            part.forward = MethodType(_group_norm, part)  # type: ignore[method-assign]


def _group_norm(norm: nn.GroupNorm, inputs: Tensor) -> Tensor:
    """Return what ``nn.GroupNorm`` returns, in the inputs' layout."""
    if inputs.ndim == 2 or not torch.compiler.is_compiling():
        plain: Tensor = nn.GroupNorm.forward(norm, inputs)
        return plain
    precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    groups, inner = norm.num_groups, tuple(range(2, inputs.ndim))
    # Channel by channel first, which reads memory in order where channels lie last; then the
    # channels of a group: its variance is the mean of theirs and the variance of their means.
    # Two sums each, because the compiler makes one slow pass of ``var_mean``.
    means = precise.mean(inner, keepdim=True)
    variances = (precise - means).square().mean(inner)
    means = means.flatten(1)
    variances, means = variances.unflatten(1, (groups, -1)), means.unflatten(1, (groups, -1))
    between, mean = torch.var_mean(means, 2, correction=0, keepdim=True)
    scale = torch.rsqrt(variances.mean(2, keepdim=True) + between + norm.eps).expand_as(means)
    shift = -mean * scale
    if norm.weight is not None:
        weight = norm.weight.view(groups, -1)
        scale, shift = scale * weight, shift * weight + norm.bias.view(groups, -1)
    shape = (*inputs.shape[:2], *(1,) * len(inner))
    found: Tensor = precise * scale.reshape(shape) + shift.reshape(shape)
    # Autocast on a GPU has it in float32, for whoever comes next to cast.
    cast = inputs.is_cuda and torch.is_autocast_enabled("cuda")
    return found if cast else found.to(inputs.dtype)


# Terms that a method may report.
TERMS = 16
# Compiled versions of one piece of code in a process, beyond which torch gives up.
GRAPHS = 64


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a network runs in this precision."""
    if choose("precision", precision, PRECISIONS) == "float32":
        return nullcontext()
    # No cache: it would keep the weights of before, and a captured step must make its own.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class Update(nn.Module):
    """A method and the batches that it is trained on; all state of a training is in here."""

    sums: Tensor

    def __init__(self, algorithm: Algorithm, batches: Batches, precision: str) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.batches = batches
        self.precision = choose("precision", precision, PRECISIONS)
        self.names: tuple[str, ...] = ()
        share(algorithm)
        # Of the terms since the last record; float64, so that their mean loses nothing.
        sums = torch.zeros(TERMS, dtype=torch.float64, device=algorithm.device)
        self.register_buffer("sums", sums)

    def forward(self) -> None:
        """Make one update and add up its terms."""
        with precision_context(self.precision, self.algorithm.device), alone():
            batches = self.batches()
            if self.algorithm._compiled_call_impl is not None:
                for tensor in (tensor for batch in batches for tensor in batch):
                    # Compiled once for all batch sizes, and for these images.
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
            terms = self.algorithm.update(batches)
        self.names = tuple(terms)
        if len(terms) > TERMS:
            raise ValueError(f"a method may report {TERMS} terms, got {len(terms)}")
        values = torch.stack([term.double() for term in terms.values()])
        self.sums[: len(values)].add_(values)

    @property
    def images(self) -> int:
        """Images of one update."""
        return sum(source.size for source in self.batches.sources)  # type: ignore[misc]

    def means(self, steps: int) -> dict[str, float]:
        """Return the mean terms of the last ``steps`` updates, and begin anew.

        Raises FloatingPointError if any value was not finite, now or before.
        """
        self.algorithm.check({})
        found = self.sums / steps
        self.sums.zero_()
        # The list last: it waits, so that no later update comes before the zeros.
        return dict(zip(self.names, found.tolist(), strict=False))


def _out_of_memory(error: BaseException | None) -> bool:
    """Return whether memory ran out, also where a broken capture is what came of it."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


class Step:
    """Call to make one update, as fast as the device and the method allow.

    Where memory runs out in the first update, images go through the network in smaller and smaller
    micro-batches, which changes no result.

    Args:
        kind: "compiled" (the loss compiled, the update captured in a CUDA graph), "graph" or
            "eager"; a method that cannot go so far goes as far as it can. Elsewhere than on a
            CUDA device, and in several processes, nothing is captured.
        note: called with a line that a user should read.
    """

    def __init__(
        self, update: Update, kind: StepKind, note: Callable[[str], object] = lambda _: None
    ) -> None:
        choose("kind of step", kind, STEP_KINDS)
        self.update, self._asked, self._note = update, kind, note
        # Of the state before the first update: what a capture or a lack of memory undoes.
        self._before = {key: t.clone() for key, t in update.state_dict().items()}
        self._captured: CapturedStep | None = None
        self._first = True
        if update.algorithm.device.type == "cuda" and self.kind != "eager":
            self.update.batches.fetch(0)
        self._with_less(self._capture)

    @property
    def kind(self) -> StepKind:
        """How far the step is captured."""
        algorithm = self.update.algorithm
        if processes() > 1:
            return "eager"
        kind: StepKind = min(self._asked, algorithm.capture, key=lambda k: -STEP_KINDS.index(k))
        if kind == "compiled" and algorithm.micro_batch is not None:
            kind = "graph"
        return "eager" if kind == "graph" and algorithm.device.type != "cuda" else kind

    def _capture(self) -> CapturedStep:
        algorithm, device = self.update.algorithm, self.update.algorithm.device
        if self.kind == "compiled":
            # Methods share the code that is compiled, and a process may train many of them.
            config: Any = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, GRAPHS)
            fuse(algorithm)
            algorithm.compile()
            self.update.batches.fuse()
        else:
            algorithm._compiled_call_impl = None  # compiled before, without micro-batches
        plain = device.type != "cuda" or self.kind == "eager"
        on = torch.device("cpu") if plain else device
        self._captured = CapturedStep(self.update, self._undo, on)
        return self._captured

    def _with_less(self, attempt: Callable[[], object]) -> None:
        """Make an attempt, and where memory runs out others with smaller micro-batches."""
        while not self._fits(attempt):
            self._captured = None
            gc.collect()
            if (device := self.update.algorithm.device).type == "cuda":
                # A capture has a stream of its own, and must not write over what is undone here.
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
            self._undo()
            size = smaller(self.update.algorithm, self.update.images)
            self._note(f"memory ran out: images go through the network {size} at a time")

    def _fits(self, attempt: Callable[[], object]) -> bool:
        # In a function of its own, so that no traceback holds on to what did not fit.
        try:
            attempt()
        except RuntimeError as error:
            # In several processes, the others wait for this one in the middle of an update.
            if processes() > 1 or not _out_of_memory(error):
                raise
            return False
        return True

    def _undo(self) -> None:
        """Take back what was done to the state; what was only made since begins at zero."""
        with torch.no_grad():
            for key, tensor in self.update.state_dict(keep_vars=True).items():
                if key in self._before:
                    tensor.copy_(self._before[key])
                else:
                    tensor.zero_()

    def __call__(self, step: int) -> None:
        if self._first:
            self._with_less(lambda: self._run(step))
            self._first, self._before = False, {}
        else:
            self._run(step)

    def _run(self, step: int) -> None:
        captured = self._captured or self._capture()
        captured.between(lambda: self.update.batches.fetch(step))
        captured()

    def wait(self) -> None:
        """Return when all updates that were called have been made."""
        if self._captured is not None:
            self._captured.wait()
