"""Runs that are killed at random moments and started again until they are done."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.runs.small import carry_out, small_run, tiny_run

# Of what a run leaves, the files that must not depend on what happened to it.
COMPARED = ("records.jsonl", "model.safetensors", "model.json", "run.json")


def small_in(path: Path, algorithm: str) -> None:
    """Carry out a small run, with a checkpoint whenever one can be written."""
    torch.set_num_threads(1)
    carry_out(path, small_run(algorithm), every=0.0)


def tiny_in(path: Path, algorithm: str) -> None:
    """Carry out a tiny run in the same way."""
    torch.set_num_threads(1)
    carry_out(path, tiny_run(algorithm, steps=40), every=0.0)


def finish_with_kills(
    path: Path,
    work: Callable[[Path, str], None],
    algorithm: str,
    moments: random.Random,
    longest: float,
    limit: int,
) -> int:
    """Run ``work`` until it ends by itself; return how often it was killed before.

    Args:
        longest: seconds that it may live; every life ends at a random moment before.
        limit: kills after which it is left alone.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.runs.killing"])
    kills = 0
    while not (path / "done").exists():
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
    return kills


def content(path: Path) -> dict[str, bytes]:
    """Return the compared files of a run."""
    return {name: (path / name).read_bytes() for name in COMPARED}


def timed(path: Path, work: Callable[[Path, str], None], algorithm: str) -> float:
    """Carry ``work`` out undisturbed and return the seconds that it took."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.runs.killing"])
    begin = time.monotonic()
    process = context.Process(target=work, args=(path, algorithm))
    process.start()
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begin
