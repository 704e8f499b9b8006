"""Runs that are killed at random moments and started again until they are done."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from shoal.catalogue import AVERAGES
from shoal.results.records import TIMING
from tests.processes import forkserver
from tests.runs.small import carry_out, tiny_run

# Averages and predictions are on, so that their files are compared as well.
ALL = {"averages": tuple(AVERAGES), "predictions": True}


def tiny_in(path: Path, algorithm: str, steps: int = 40) -> None:
    """Carry out a tiny run with averages and predictions, and a checkpoint whenever it can."""
    torch.set_num_threads(1)
    carry_out(path, tiny_run(algorithm, steps=steps), every=0.0, machine=ALL)


def finish_with_kills(
    path: Path,
    work: Callable[[Path, str], None],
    algorithm: str,
    moments: random.Random,
    longest: float,
    limit: int,
) -> int:
    """Run ``work`` until it ends by itself; return how often it was killed before.

    A run that was killed after its end is run again, which finds it done.

    Args:
        longest: seconds that it may live; every life ends at a random moment before.
        limit: kills after which it is left alone.
    """
    context = forkserver()
    kills = 0
    while True:
        process = context.Process(target=work, args=(path, algorithm))
        process.start()
        if kills < limit:
            process.join(moments.uniform(0, longest))
        else:
            process.join()
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        elif process.exitcode != 0:
            raise AssertionError(f"the run ended with status {process.exitcode}")
        else:
            return kills


def content(path: Path) -> dict[str, bytes]:
    """Return every file of a run by its name, except its times."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != TIMING)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def timed(path: Path, work: Callable[[Path, str], None], algorithm: str) -> float:
    """Carry ``work`` out undisturbed and return the seconds that it took."""
    context = forkserver()
    begin = time.monotonic()
    process = context.Process(target=work, args=(path, algorithm))
    process.start()
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begin
