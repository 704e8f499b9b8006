"""Two hosts over one folder: namespaces with names and networks of their own share a sweep."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.sweeps.plan import read_plan
from shoal.sweeps.status import RunState, count_states
from shoal.sweeps.worker import Worker
from tests.sweeps.driving import ROOT
from tests.sweeps.workspaces import Squares, contents, planned

PATIENCE = 100
UNSHARE = ["unshare", "--map-root-user", "--user", "--net", "--uts"]
# A module that Python imports first: every lock is given, as by a mount that does not lock.
NO_LOCKS = "import fcntl\nfcntl.flock = lambda file, operation: None\n"

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0
        if sys.platform == "linux"
        else True,
        reason="no namespaces",
    ),
]


def host(name: str, out: Path, first: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a driver on a host of this name; ``first`` is searched for modules before others."""
    paths = [*([str(first)] if first else []), str(ROOT), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    driver = [sys.executable, "-m", "tests.sweeps.driving", str(out), "local"]
    command = [*UNSHARE, "sh", "-c", f'hostname {name} && exec "$@"', "sh", *driver]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("whole")
    planned(out, ("erm",))
    finish(out)
    return contents(out)


def finish(out: Path) -> None:
    """Carry out what is left of the plan in this process."""
    worker = Worker(out, Squares())
    assert {worker.attempt(run) for run in read_plan(out)} == {RunState.DONE}


def test_with_locks_they_share_the_runs(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    planned(tmp_path, ("erm",))
    hosts = [host(name, tmp_path) for name in ("left", "right")]
    assert [one.wait(PATIENCE) for one in hosts] == [0, 0]
    assert contents(tmp_path) == whole
    assert not list(tmp_path.glob("runs/*/failed.json"))


def test_without_locks_nothing_wrong_is_left(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    """They may stop each other, but what they call done is right; the same command ends it."""
    out, first = tmp_path / "out", tmp_path / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text(NO_LOCKS)
    planned(out, ("erm",))
    hosts = [host(name, out, first) for name in ("left", "right")]
    for one in hosts:
        one.wait(PATIENCE)
    runs = read_plan(out)
    finished = [run for run in runs if count_states(out, [run])[RunState.DONE]]
    assert contents(out, finished) == {run.identity: whole[run.identity] for run in finished}
    for failed in out.glob("runs/*/failed.json"):  # as --retry-failed does
        failed.unlink()
    finish(out)
    assert contents(out) == whole
