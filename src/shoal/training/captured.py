"""A training step as one CUDA graph: launched once, replayed at the speed of its arithmetic."""

from collections.abc import Callable

import torch


class CapturedStep:
    """Call to run ``step``: captured and replayed on a CUDA device, plainly elsewhere.

    A step must update its state in place and never ask the host. Capturing needs a few steps to
    warm up; ``undo`` must take them back in place, so that every counted step is a replay.
    """

    def __init__(
        self, step: Callable[[], None], undo: Callable[[], None], device: torch.device
    ) -> None:
        self._step = step
        self._undo = undo
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        self._undo()

    def __call__(self) -> None:
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()
