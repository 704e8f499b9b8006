"""Several processes that fit one model: the first decides and writes, the others take part."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from ..distributed import rank, same_everywhere
from ..runs.run import Run
from ..sweeps.attempt import EVERYWHERE
from ..sweeps.worker import Hand

# Instead of the number of a run: there is no other.
END = -1


def agreed(found: Callable[[], int]) -> int:
    """Return what the first process finds, in all of them; the others find nothing themselves."""
    value = torch.tensor([found() if rank() == 0 else 0])
    same_everywhere([value])
    return int(value)


def say(number: int) -> None:
    """Tell the other processes which run begins now, or ``END``."""
    agreed(lambda: number)


def follow(hand: Hand, runs: Sequence[Run]) -> None:
    """Take part in those of the runs that the first process carries out, until it says ``END``."""
    while (number := agreed(lambda: END)) != END:
        with suppress(*EVERYWHERE):  # which the first process writes down
            hand.assist(runs[number])
