"""One update of a run as a step without arguments: drawn, made and summed up on the device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..checks import choose
from ..networks.fusing import fuse
from .batches import Batches
from .captured import CapturedStep

Kind = Literal["compiled", "graph", "eager"]
KINDS = ("compiled", "graph", "eager")
PRECISIONS = ("float32", "bf16")
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
        # Of the terms since the last record; float64, so that their mean loses nothing.
        sums = torch.zeros(TERMS, dtype=torch.float64, device=algorithm.device)
        self.register_buffer("sums", sums)

    def forward(self) -> None:
        """Make one update and add up its terms."""
        with precision_context(self.precision, self.algorithm.device):
            batches = self.batches()
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


class Step:
    """Call to make one update, as fast as the device and the method allow.

    Args:
        kind: "compiled" (the loss compiled, the update captured in a CUDA graph), "graph" or
            "eager"; a method that cannot go so far goes as far as it can. Elsewhere than on a
            CUDA device nothing is captured.
    """

    def __init__(self, update: Update, kind: Kind) -> None:
        choose("kind of step", kind, KINDS)
        device, algorithm = update.algorithm.device, update.algorithm
        self.kind: Kind = min(kind, algorithm.capture, key=lambda k: -KINDS.index(k))
        if self.kind == "compiled":
            # Methods share the code that is compiled, and a process may train many of them.
            config: Any = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, GRAPHS)
            fuse(algorithm)
            algorithm.compile()
            update.batches.fuse()
        if device.type != "cuda" and self.kind == "graph":
            self.kind = "eager"
        self.update = update
        self._before: dict[str, Tensor] = {}
        if device.type == "cuda" and self.kind != "eager":
            self._before = {key: t.clone() for key, t in update.state_dict().items()}
            self.update.batches.fetch(0)
            self._captured = CapturedStep(update, self._undo, device)
            self._before = {}
        else:
            self._captured = CapturedStep(update, lambda: None, torch.device("cpu"))

    def _undo(self) -> None:
        """Take back what the steps of a capture did; what only they made begins at zero."""
        with torch.no_grad():
            for key, tensor in self.update.state_dict(keep_vars=True).items():
                if key in self._before:
                    tensor.copy_(self._before[key])
                else:
                    tensor.zero_()

    def __call__(self, step: int) -> None:
        self._captured.between(lambda: self.update.batches.fetch(step))
        self._captured()

    def wait(self) -> None:
        """Return when all updates that were called have been made."""
        self._captured.wait()
