"""Steps: one update on the device, run eagerly, captured, compiled or in micro-batches."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MethodType

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm, Capture
from ..catalogue import PRECISIONS, STEP_KINDS, StepKind
from ..choices import choose
from ..distributed import alone, processes, run_shared
from ..internals import allow_recompilations, decompile, is_compiled_in_place, mark_dynamic
from ..micro_batches import in_micro_batches
from ..networks.backbones import Features
from ..scalars import widest
from .batches import Batches


class CapturedStep:
    """Call to run ``step``: captured and replayed on a CUDA device, eagerly elsewhere.

    A step must update its state in place and never wait for the host. Capturing needs a few steps
    to warm up; ``undo`` must revert them in place, so that every counted step is a replay. Replays
    have their own stream, so that several trainings can share a device: the memory traffic of one
    overlaps with the arithmetic of another. Call ``wait`` before reading results.
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
        """Change the state of the step between the last call and the next."""
        if self._graph is None:
            change()
        else:
            with torch.cuda.stream(self._stream):
                change()

    def follow(self) -> None:
        """Have later steps wait for what the device was given elsewhere, such as an evaluation."""
        if self._graph is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def wait(self) -> None:
        """Wait for all calls."""
        if self._graph is not None:
            self._stream.synchronize()


@dataclass(frozen=True)
class BatchRunner:
    """Runs a network on a batch: each process runs a part of it, ``size`` images at a time."""

    size: int | None

    def __call__(self, network: nn.Module, inputs: Tensor) -> Tensor:
        return run_shared(self._run, network, inputs)

    def _run(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        if self.size is None:
            return network(inputs)
        features: Tensor = in_micro_batches(network, inputs, self.size)
        return features


def set_runner(algorithm: Algorithm) -> None:
    """Let the method's network run in micro-batches and on all processes, if there are any."""
    plain = algorithm.micro_batch is None and processes() == 1
    for part in algorithm.modules():
        if isinstance(part, Features):
            part.runner = None if plain else BatchRunner(algorithm.micro_batch)


def halve_micro_batch(algorithm: Algorithm, images: int) -> int:
    """Halve the method's micro-batches and return their size; raise if that cannot help."""
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
            "memory ran out, and micro-batches would change the batch-norm statistics; choose a "
            "smaller batch_size, or keep the statistics frozen"
        )
    algorithm.micro_batch = (now + 1) // 2
    set_runner(algorithm)
    return algorithm.micro_batch


def fuse(network: nn.Module) -> None:
    """Let the group norms of ``network`` keep the memory layout of images when compiled.

    Torch's group norm copies channels-last images, and the next convolution copies them back.
    """
    for part in network.modules():
        if type(part) is nn.GroupNorm:
            part.forward = MethodType(_group_norm, part)  # type: ignore[method-assign]


def _group_norm(norm: nn.GroupNorm, inputs: Tensor) -> Tensor:
    """Return the output of ``nn.GroupNorm`` in the layout of the inputs."""
    if inputs.ndim == 2 or not torch.compiler.is_compiling():
        plain: Tensor = nn.GroupNorm.forward(norm, inputs)
        return plain
    precise = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    groups, inner = norm.num_groups, tuple(range(2, inputs.ndim))
    # First over each channel, which reads channels-last memory in order; then over the channels of
    # a group: its variance is the mean of their variances plus the variance of their means. Two
    # sums each, because the compiler makes one slow pass of ``var_mean``.
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
    # Autocast on a GPU returns float32, and the next layer casts it.
    cast = inputs.is_cuda and torch.is_autocast_enabled("cuda")
    return found if cast else found.to(inputs.dtype)


def step_kind(
    asked: StepKind, capture: Capture, device: torch.device, micro_batch: int | None = None
) -> StepKind:
    """Return the kind of step that runs where ``asked`` was asked for.

    Args:
        capture: how far the method's step can be captured.
    """
    if processes() > 1:
        return "eager"
    kind: StepKind = min(asked, capture, key=lambda k: -STEP_KINDS.index(k))
    if kind == "compiled" and micro_batch is not None:
        kind = "graph"
    return "eager" if kind == "graph" and device.type != "cuda" else kind


# The most terms that a method can report.
TERMS = 16
# Compiled versions of one function in a process; torch gives up after them.
GRAPHS = 64


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context that runs a network in this precision."""
    if choose("precision", precision, PRECISIONS) == "float32":
        return nullcontext()
    # Without the cache, which would hold old weights; a captured step must cast its own.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


class Update(nn.Module):
    """A method and its batches: the whole state of a training."""

    sums: Tensor

    def __init__(self, algorithm: Algorithm, batches: Batches, precision: str) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.batches = batches
        self.precision = choose("precision", precision, PRECISIONS)
        self.names: tuple[str, ...] = ()
        set_runner(algorithm)
        # Of the terms since the last record; in float64 their mean loses nothing.
        on = algorithm.device
        sums = torch.zeros(TERMS, dtype=widest(on), device=on)
        self.register_buffer("sums", sums)

    def forward(self) -> None:
        """Run one update and add up its terms."""
        with precision_context(self.precision, self.algorithm.device), alone():
            batches = self.batches()
            if is_compiled_in_place(self.algorithm):
                for tensor in (tensor for batch in batches for tensor in batch):
                    # One compilation for all batch sizes.
                    mark_dynamic(tensor)
            terms = self.algorithm.update(batches)
        self.names = tuple(terms)
        if len(terms) > TERMS:
            raise ValueError(f"a method can report {TERMS} terms at most, got {len(terms)}")
        values = torch.stack([term.to(self.sums.dtype) for term in terms.values()])
        self.sums[: len(values)].add_(values)

    @property
    def images(self) -> int:
        """The number of images in an update."""
        return sum(source.size for source in self.batches.sources)  # type: ignore[misc]

    def means(self, steps: int) -> dict[str, float]:
        """Return the mean terms of the last ``steps`` updates, and set the sums to zero.

        Raises FloatingPointError if any value was not finite, now or before.
        """
        self.algorithm.check({})
        found = self.sums / steps
        self.sums.zero_()
        # ``tolist`` comes last: it waits, so that no later update comes before the zeros.
        return dict(zip(self.names, found.tolist(), strict=False))


def _out_of_memory(error: BaseException | None) -> bool:
    """Return whether memory ran out, even if the error is that of a broken capture."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


class Step:
    """Call to run one update, as fast as the device and the method allow.

    If memory runs out in the first update, the network runs in ever smaller micro-batches, which
    changes no result.

    Args:
        kind: "compiled" (the loss compiled, the update captured in a CUDA graph), "graph" or
            "eager"; a method that does not support it uses the next that it supports. Without a
            CUDA device, or in several processes, nothing is captured.
        note: called with a line that a user should read.
    """

    def __init__(
        self, update: Update, kind: StepKind, note: Callable[[str], object] = lambda _: None
    ) -> None:
        choose("kind of step", kind, STEP_KINDS)
        self.update, self._asked, self._note = update, kind, note
        # The state before the first update, to which a capture or a lack of memory reverts.
        self._before = {key: t.clone() for key, t in update.state_dict().items()}
        self._captured: CapturedStep | None = None
        self._first = True
        if update.algorithm.device.type == "cuda" and self.kind != "eager":
            self.update.batches.fetch(0)
        self._retry_in_micro_batches(self._capture)

    @property
    def kind(self) -> StepKind:
        """The kind of step that runs."""
        algorithm = self.update.algorithm
        return step_kind(self._asked, algorithm.capture, algorithm.device, algorithm.micro_batch)

    def _capture(self) -> CapturedStep:
        algorithm, device = self.update.algorithm, self.update.algorithm.device
        if self.kind == "compiled":
            # Methods share compiled code, and a process can train many of them.
            allow_recompilations(GRAPHS)
            fuse(algorithm)
            algorithm.compile()
            self.update.batches.fuse()
        else:
            decompile(algorithm)  # compiled before, without micro-batches
        plain = device.type != "cuda" or self.kind == "eager"
        on = torch.device("cpu") if plain else device
        self._captured = CapturedStep(self.update, self._undo, on)
        return self._captured

    def _retry_in_micro_batches(self, attempt: Callable[[], object]) -> None:
        """Call ``attempt``, again with smaller micro-batches while memory runs out."""
        while not self._fits(attempt):
            self._captured = None
            gc.collect()
            if (device := self.update.algorithm.device).type == "cuda":
                # A capture has its own stream, and must not write over the reverted state.
                torch.cuda.synchronize(device)
                torch.cuda.empty_cache()
            self._undo()
            size = halve_micro_batch(self.update.algorithm, self.update.images)
            self._note(f"memory ran out: images go through the network {size} at a time")

    def _fits(self, attempt: Callable[[], object]) -> bool:
        # A function of its own, so that no traceback keeps the tensors that did not fit.
        try:
            attempt()
        except RuntimeError as error:
            # Other processes wait for this one in the middle of an update.
            if processes() > 1 or not _out_of_memory(error):
                raise
            return False
        return True

    def _undo(self) -> None:
        """Revert the state; set tensors to zero that did not exist before."""
        with torch.no_grad():
            for key, tensor in self.update.state_dict(keep_vars=True).items():
                if key in self._before:
                    tensor.copy_(self._before[key])
                else:
                    tensor.zero_()

    def __call__(self, step: int) -> None:
        if self._first:
            self._retry_in_micro_batches(lambda: self._run(step))
            self._first, self._before = False, {}
        else:
            self._run(step)

    def _run(self, step: int) -> None:
        captured = self._captured or self._capture()
        captured.between(lambda: self.update.batches.fetch(step))
        captured()

    def wait(self) -> None:
        """Wait for all updates that were called."""
        if self._captured is not None:
            self._captured.wait()

    def between(self, change: Callable[[], object]) -> None:
        """Do something after the updates called so far and before the next."""
        (self._captured or self._capture()).between(change)

    def follow(self) -> None:
        """Have later updates wait for what the device was given elsewhere."""
        if self._captured is not None:
            self._captured.follow()
