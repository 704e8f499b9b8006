"""Drivers of sweeps as processes of their own, and kills of them and of their workers."""

import os
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from shoal.sweeps.plan import read_plan
from shoal.sweeps.status import RunState, count_states
from tests.processes import forkserver
from tests.sweeps.workspaces import Squares

ROOT = Path(__file__).resolve().parent.parent.parent
# How the command line of a worker looks, by engine.
WORKERS = {"local": b"spawn_main", "ray": b"ray::_attempt"}


def drive(out: Path, engine: str) -> ForkServerProcess:
    """Start a driver with two workers on the plan in ``out``."""
    environment = dict(os.environ)  # a cluster's address, for example
    driver = forkserver().Process(target=_drive, args=(out, engine, environment))
    driver.start()
    return driver


def _drive(out: Path, engine: str, environment: dict[str, str]) -> None:
    # Its workers start anew and find the tests there.
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    os.environ |= environment | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(_carry_out(out, engine))


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
    return _carry_out(Path(sys.argv[1]), sys.argv[2])


def _carry_out(out: Path, engine: str) -> int:
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
