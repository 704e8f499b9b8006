"""Drivers of sweeps as processes of their own, and kills of them and of their workers."""

import os
import subprocess
import sys
import time
from pathlib import Path

from shoal.sweeps.plan import read_plan
from shoal.sweeps.status import RunState, count_states
from tests.sweeps.workspaces import Squares

ROOT = Path(__file__).resolve().parent.parent.parent
# How the command line of a worker looks, by engine.
WORKERS = {"local": b"spawn_main", "ray": b"ray::_attempt"}


def drive(out: Path, engine: str) -> "subprocess.Popen[bytes]":
    """Start a driver with two workers on the plan in ``out``."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sweeps.driving", str(out), engine]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)


def workers_of(driver: int, engine: str) -> list[int]:
    """Return the workers that came from this driver and live."""
    parents, lines = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                # The name, in brackets, may hold spaces; the parent is the second field after it.
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                lines[int(path.name)] = (path / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(path.name)] = int(parent)
    family = {driver}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(pid for pid in family - {driver} if WORKERS[engine] in lines[pid])


def until_running(out: Path, seconds: float = 60) -> None:
    """Wait until some run of the sweep is carried out."""
    runs, end = read_plan(out), time.monotonic() + seconds
    while RunState.RUNNING not in count_states(out, runs):
        assert time.monotonic() < end, "no run was begun"
        time.sleep(0.02)


def main() -> int:
    out, engine = Path(sys.argv[1]), sys.argv[2]
    runs = read_plan(out)
    if engine == "ray":
        from shoal.sweeps.ray_engine import run_on_ray

        found = run_on_ray(out, runs, Squares())
    else:
        from shoal.sweeps.local import run_locally

        found = run_locally(out, runs, Squares(), 2)
    return 0 if found == {RunState.DONE: len(runs)} else 1


if __name__ == "__main__":
    sys.exit(main())
