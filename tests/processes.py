"""Processes of tests: forks of one that has imported torch and shoal, which takes a second."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

# One list, because the first test of a session starts the server.
PRELOADED = ["shoal.cli", "shoal.fitting.fit", "shoal.runs.execute", "shoal.sweeps.local"]
PRELOADED += ["tests.processes", "tests.runs.small", "tests.sweeps.workspaces"]
_CONTEXT = multiprocessing.get_context("forkserver")


def forkserver() -> ForkServerContext:
    """Return the context whose processes are such forks, with the environment of the first."""
    _CONTEXT.set_forkserver_preload(PRELOADED)
    return _CONTEXT


def run_code(code: str, path: Sequence[Path] = ()) -> "subprocess.CompletedProcess[str]":
    """Return what came of Python code in a process of its own.

    Args:
        path: folders that are searched for modules first.
    """
    with TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        process = forkserver().Process(target=_run, args=(code, [*map(str, path)], out, err))
        process.start()
        process.join(100)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"it took more than 100 s: {code}")
        return subprocess.CompletedProcess(
            code, process.exitcode, out.read_text("utf-8"), err.read_text("utf-8")
        )


def _run(code: str, path: list[str], *outputs: Path) -> None:
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    sys.path[:0] = path
    exec(compile(code, "code", "exec"), {"__name__": "__main__"})
