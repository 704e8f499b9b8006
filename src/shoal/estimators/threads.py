"""A CPU's cores, one batch each.

Cores that share one small product wait for each other after every layer, and where something else
needs one of them, they wait long: on two busy cores, networks run five times faster this way.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TypeVar

import torch

Item = TypeVar("Item")
Made = TypeVar("Made")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let every operation inside run on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(
    work: Callable[[Item], Made], items: Iterable[Item], device: torch.device
) -> Iterator[Made]:
    """Yield what ``work`` makes of each item, in order; on a CPU as many at once as it has cores.

    What is yielded is made a little ahead, so that nothing waits for who takes it.
    """
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    left, waiting = iter(items), deque[Future[Made]]()
    with (
        one_thread() if device.type == "cpu" else nullcontext(),
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            for item in islice(left, 2 * workers):
                waiting.append(pool.submit(work, item))
            while waiting:
                made = waiting.popleft().result()
                for item in islice(left, 1):
                    waiting.append(pool.submit(work, item))
                yield made
        finally:
            for future in waiting:
                future.cancel()
