"""The engines of sweeps: whoever is killed, what is left is the sweep that nobody disturbed."""

import importlib.util
import os
import pickle
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.runs.folder import open_run_folder
from shoal.sweeps.attempt import BEGUN
from shoal.sweeps.local import run_locally
from shoal.sweeps.plan import folder_of, read_plan
from shoal.sweeps.ray_engine import _at_once, _first, _gpus, _reach, _Tasks, _worker, run_on_ray
from shoal.sweeps.status import RunState, SweepWatcher, count_states, state_of
from shoal.sweeps.worker import Stopped, Worker
from tests.processes import forkserver
from tests.sweeps.driving import ROOT, drive, until_running, workers_of
from tests.sweeps.workspaces import Broken, Full, Shared, Squares, Tight, contents, planned
from tests.training.little import watching

pytestmark = pytest.mark.timeout(240)
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What an undisturbed sweep leaves, one run after the other in this process."""
    out = tmp_path_factory.mktemp("whole")
    planned(out)
    worker = Worker(out, Squares())
    assert [worker.attempt(run) for run in read_plan(out)] == [RunState.DONE] * 12
    return contents(out)


def check(out: Path, whole: dict[str, dict[str, bytes]]) -> None:
    """Exactly the runs of the plan, and each as in the undisturbed sweep."""
    runs = read_plan(out)
    assert count_states(out, runs) == {RunState.DONE: len(runs)}
    assert {path.name for path in (out / "runs").iterdir()} == {
        folder_of(out, run).name for run in runs
    }
    assert contents(out) == {run.identity: whole[run.identity] for run in runs}


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process that has imported torch; drivers elsewhere start them anew."""
    monkeypatch.setattr("shoal.sweeps.local.multiprocessing.get_context", lambda _: forkserver())


def until(happened: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def ended(driver: ForkServerProcess, seconds: float) -> int | None:
    """Return the status of a driver at its end; None if it goes on for longer."""
    driver.join(seconds)
    return driver.exitcode


def gone(pid: int) -> bool:
    """Whether the process is no more; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_killed_workers_and_drivers_lose_nothing(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    planned(tmp_path)
    runs = read_plan(tmp_path)
    others = {RunState.DONE: 11, RunState.RUNNING: 1}

    # We hold one run all the while, so that no driver is over before anything happens to it.
    with open_run_folder(folder_of(tmp_path, runs[-1]), runs[-1]):
        # A worker is killed, and replaced; then its driver is asked to end, and ends its workers.
        driver = drive(tmp_path, "local")
        until(lambda: count_states(tmp_path, runs)[RunState.RUNNING] >= 2)
        first = workers_of(driver.pid, "local")
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(set(workers_of(driver.pid, "local")) - set(first)) == 1)
        workers = workers_of(driver.pid, "local")
        driver.terminate()
        assert ended(driver, 30) == 128 + signal.SIGTERM
        assert all(map(gone, workers))
        begun = [run for run in runs if (folder_of(tmp_path, run) / BEGUN).exists()]
        assert len(begun) <= 1  # the killed worker's; who is asked to end does not die

        # A driver is killed; the next shares with its workers, and waits for what we hold.
        driver = drive(tmp_path, "local")
        until(
            lambda: bool(workers_of(driver.pid, "local")) or count_states(tmp_path, runs) == others
        )
        driver.kill()
        driver.join()
        driver = drive(tmp_path, "local")
        until(lambda: count_states(tmp_path, runs) == others)
        until(lambda: not workers_of(driver.pid, "local"))
        time.sleep(1.5)
        assert driver.is_alive()
        assert not workers_of(driver.pid, "local")
    assert ended(driver, 60) == 0
    check(tmp_path, whole)


@pytest.mark.usefixtures("forked")
def test_out_of_memory_is_tried_again_at_the_end(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    planned(tmp_path, ("erm",))
    runs, seen = read_plan(tmp_path)[:2], []
    world = Tight(tmp_path)
    report = lambda counts, workers: seen.append((counts[RunState.FAILED], workers))  # noqa: E731
    watcher = watching(SweepWatcher, status=report)
    assert run_locally(tmp_path, runs, world, 2, watcher) == {RunState.DONE: 2}
    assert (1, 2) in seen and seen[-1] == (0, 2)
    assert contents(tmp_path, runs) == {run.identity: whole[run.identity] for run in runs}


@pytest.mark.usefixtures("forked")
def test_workers_are_dealt_over_gpus_and_are_alone_on_each_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("device_count", "set_device", "synchronize", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))  # undone in the end
    planned(tmp_path, ("erm",))
    runs, told = read_plan(tmp_path)[:3], set[int]()
    watcher = watching(SweepWatcher, status=lambda _, workers: told.add(workers))
    found = run_locally(tmp_path, runs, Full(tmp_path), 3, watcher)
    assert found == {RunState.FAILED: 3}
    # Three workers, and then one for each of the two, between whom the runs are divided.
    devices = (tmp_path / "devices").read_text().split()
    assert sorted(devices[:3]) == ["cuda:0", "cuda:0", "cuda:1"]
    assert sorted(devices[3:]) == ["cuda:0", "cuda:1"]
    assert len((tmp_path / "tried").read_text().split()) == 2 * 3
    assert told == {3, 2}
    locks = {path.name.rpartition("GPU")[2] for path in tmp_path.glob("alone-*.lock")}
    assert locks == {"-0.lock", "-1.lock"}


@pytest.mark.usefixtures("forked")
def test_a_worker_that_cannot_work_stops_the_sweep(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    with pytest.raises(Stopped, match="torch sees no GPU"):
        run_locally(tmp_path, read_plan(tmp_path), Broken(), 1)


@pytest.mark.skipif(not HAS_RAY, reason="no ray")
def test_ray_with_a_killed_worker_and_a_killed_driver(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    planned(tmp_path, ("erm",))
    driver = drive(tmp_path, "ray")
    until_running(tmp_path)
    os.kill(workers_of(driver.pid, "ray")[0], signal.SIGKILL)
    until_running(tmp_path)
    driver.kill()
    driver.join()
    assert ended(drive(tmp_path, "ray"), 120) == 0
    check(tmp_path, whole)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster with one GPU, as Ray believes, that was started by its command."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # Its sockets must have short names.
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as place:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0"]
        command += ["--num-cpus=2", "--num-gpus=1", "--include-dashboard=false", "--block"]
        command += ["--disable-usage-stats", f"--temp-dir={place}"]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        log = Path(place) / "head.log"
        with log.open("w") as file:
            head = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=file, stderr=file)
        try:
            until(lambda: "Ray runtime started" in log.read_text())
            yield (Path(place) / "ray_current_cluster").read_text()
        finally:
            head.terminate()
            head.wait(60)


@pytest.mark.skipif(not HAS_RAY, reason="no ray")
def test_a_cluster_by_its_address_shares_gpus_and_tries_again_alone(
    tmp_path: Path, whole: dict[str, dict[str, bytes]], cluster: str
) -> None:
    planned(tmp_path, ("erm",))
    runs = read_plan(tmp_path)[:2]
    told = set[int]()
    watcher = watching(SweepWatcher, status=lambda _, workers: told.add(workers))
    found = run_on_ray(tmp_path, runs, Shared(tmp_path), cluster, 0.5, watcher)
    assert found == {RunState.DONE: 2} and told == {2}  # two halves of its GPU
    assert contents(tmp_path, runs) == {run.identity: whole[run.identity] for run in runs}
    # What ran out of memory came again with a whole GPU.
    assert (tmp_path / "gpus").read_text().split() == ["0.5", "1.0"]
    with pytest.raises(Stopped, match="torch sees no GPU"):
        run_on_ray(tmp_path, read_plan(tmp_path), Broken(), cluster, 0.5)


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of a head and another machine with one CPU each, both played by this one."""
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # A machine that does not answer is given up after seconds, which a busy one never needs.
    checks = {"period_ms": 500, "timeout_ms": 1500, "initial_delay_ms": 0, "failure_threshold": 3}
    before = signal.getsignal(signal.SIGTERM)
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as place:
        cluster = Cluster()
        try:
            cluster.add_node(
                num_cpus=1,
                include_dashboard=False,
                temp_dir=place,
                _system_config={f"health_check_{name}": number for name, number in checks.items()},
            )
            cluster.add_node(num_cpus=1)
            monkeypatch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()
            signal.signal(signal.SIGTERM, before)  # Ray has put its own in its place


def stopped_in_a_run(raylet: int, out: Path) -> tuple[int, Path] | None:
    """Stop a worker of this machine in the middle of a run; return it with the run's folder."""
    for pid in workers_of(raylet, "ray"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it may just end
            os.kill(pid, signal.SIGSTOP)
            files = [file.resolve() for file in Path(f"/proc/{pid}/fd").iterdir()]
            for folder in (file.parent for file in files if file.name == "lock"):
                if folder.parent == out / "runs" and state_of(folder) is RunState.RUNNING:
                    return pid, folder
            os.kill(pid, signal.SIGCONT)
    return None


@pytest.mark.skipif(not HAS_RAY, reason="no ray")
def test_ray_with_a_machine_that_dies(
    tmp_path: Path, whole: dict[str, dict[str, bytes]], two_machines: Any
) -> None:
    planned(tmp_path)
    driver = drive(tmp_path, "ray")
    (machine,) = two_machines.worker_nodes
    raylet = machine.all_processes["raylet"][0].process.pid
    end = time.monotonic() + 60
    while (held := stopped_in_a_run(raylet, tmp_path)) is None:
        assert time.monotonic() < end, "no run was begun there"
        time.sleep(0.05)
    worker, folder = held
    os.kill(worker, signal.SIGKILL)
    two_machines.remove_node(machine, allow_graceful=False)
    assert not (folder / "done").exists()  # it was in the middle
    assert ended(driver, 60) == 0
    check(tmp_path, whole)


@pytest.mark.skipif(not HAS_RAY, reason="no ray")
def test_an_address_where_nothing_listens_is_told_at_once(tmp_path: Path) -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"):
        begin = time.monotonic()
        with pytest.raises(Stopped, match=f"nothing listens at {address}"):
            run_on_ray(tmp_path, [], Squares(), address)
        assert time.monotonic() - begin < 15
    _reach("auto")


def test_the_cause_of_a_failed_connection_is_told() -> None:
    try:
        try:
            raise ValueError("the token is wrong")
        except ValueError as error:
            raise ConnectionError("failed to connect") from error
    except ConnectionError as error:
        assert _first(error) == "the token is wrong"
    assert _first(ConnectionError("gone")) == "gone"


def test_without_ray_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shoal\[ray\]'"):
        run_on_ray(tmp_path, [], Squares())


def test_a_worker_of_ray_s_is_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    _worker(pickle.dumps((tmp_path, tmp_path / "out", Squares())))
    assert Path.cwd() == tmp_path
    _worker(pickle.dumps((tmp_path / "not here", tmp_path / "out", Squares())))
    assert Path.cwd() == tmp_path


def test_how_much_of_a_gpu_a_run_takes() -> None:
    def ray(**resources: float) -> Any:
        return SimpleNamespace(cluster_resources=lambda: resources)

    assert _gpus(ray(CPU=2.0), None, "local") == 0
    assert _gpus(ray(CPU=2.0, GPU=8.0), None, "local") == 1
    assert _gpus(ray(GPU=1.0), 0.25, "local") == 0.25
    assert _gpus(ray(), 0.25, "10.0.0.1:6379") == 0.25  # it may grow
    with pytest.raises(Stopped, match=r"is 0.25, but Ray finds 0 GPUs here"):
        _gpus(ray(), 0.25, "local")


def test_how_many_runs_a_cluster_carries_out_at_once(tmp_path: Path) -> None:
    for there, gpus, expected in (
        ({"CPU": 4.0, "memory": 9.0}, 0.0, 4),
        ({"CPU": 4.0, "GPU": 2.0}, 1.0, 2),
        ({"CPU": 64.0, "GPU": 2.0}, 0.25, 8),
        ({"CPU": 64.0, "GPU": 2.0}, 0.4, 4),  # two on each: a run has a share of one GPU
        ({"CPU": 1.0, "GPU": 8.0}, 1.0, 1),
        ({"CPU": 4.0}, 1.0, 0),
    ):
        assert _at_once(there, gpus) == expected
    nodes: list[dict[str, Any]] = [
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 8.0}},
        {"Alive": False, "Resources": {"CPU": 16.0, "GPU": 16.0}},
    ]
    ray = SimpleNamespace(nodes=lambda: nodes, remote=lambda task: task)
    assert _Tasks(ray, tmp_path, Squares(), 0.5).at_once() == 4
    assert _Tasks(ray, tmp_path, Squares(), 0.0).at_once() == 12
    nodes.clear()
    assert _Tasks(ray, tmp_path, Squares(), 0.0).at_once() == 1  # it may grow
