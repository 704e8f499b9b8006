"""A training step as one CUDA graph: launched once, replayed at the speed of its arithmetic."""

from collections.abc import Callable

import torch


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
