"""Sweeps: the runs of a plan, and what becomes of each, whatever happens to who carries it out."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.protocol import attempt as attempts
from shoal.protocol.attempt import DEATHS, State, attempt, failure_of, state_of
from shoal.protocol.folder import opened
from shoal.protocol.plan import Sweep, folder_of, read_plan, runs_of, sets_left_out
from shoal.protocol.workers import Shard, carry_out, standing
from tests.protocol.small import small_run, squares
from tests.protocol.worlds import Squares, contents, planned

MACHINE = Squares().machine


def data() -> Any:
    return squares(), None


def fishr() -> Any:
    return find("fishr")


def test_a_plan_has_every_combination_once() -> None:
    sweep = Sweep(("erm", "fishr"), ("squares", "colored-mnist"), 2, 3, "pairs")
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    assert len(runs) == 2 * 2 * 2 * 3 * 6
    assert len({run.identity for run in runs}) == len(runs)
    assert {run.test_domains for run in runs} == {
        *(("a",), ("b",), ("c",)),
        *(("a", "b"), ("a", "c"), ("b", "c")),
    }
    first = next(run for run in runs if run.dataset == "colored-mnist" and run.draw == 0)
    assert first.hparams["batch_size"] == 64 and first.protocol.record_every == 100
    assert next(run for run in runs if run.dataset == "squares").protocol.record_every == 300
    drawn = [run.hparams["lr"] for run in runs if (run.draw, run.trial) == (2, 1)]
    assert len(set(drawn)) == 2  # one for each scale, the same for all methods and test domains


def test_two_domains_have_no_pairs() -> None:
    assert sets_left_out(["a", "b"], "pairs") == [("a",), ("b",)]


def test_a_plan_is_read_as_written_and_only_grows(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    before = read_plan(tmp_path)
    planned(tmp_path, ("fishr",))
    planned(tmp_path, ("erm",))
    after = read_plan(tmp_path)
    assert after[: len(before)] == before and len(after) == 2 * len(before) == 12
    with pytest.raises(ValueError, match=r"no folder of a sweep: it has no plan\.json"):
        read_plan(tmp_path / "elsewhere")


def test_shards_are_the_plan() -> None:
    runs = [small_run(trial=trial) for trial in range(7)]
    parts = [Shard(index, 3).of(runs) for index in range(3)]
    assert sorted(run.trial for part in parts for run in part) == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_run_is_carried_out_once(tmp_path: Path) -> None:
    run, path = small_run(steps=2), tmp_path / "run"
    assert state_of(path) is State.WAITING
    assert attempt(run, fishr, data, path, MACHINE()) is State.DONE
    assert state_of(path) is State.DONE

    def never() -> Any:
        raise AssertionError("a run that is done is made again")

    assert attempt(run, never, never, path, MACHINE()) is State.DONE


def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    run = small_run(steps=2)
    with opened(tmp_path / "run", run):
        assert state_of(tmp_path / "run") is State.RUNNING
        assert attempt(run, fishr, data, tmp_path / "run", MACHINE()) is State.RUNNING
    assert state_of(tmp_path / "run") is State.WAITING


def test_a_failure_is_written_down_and_not_repeated(tmp_path: Path) -> None:
    run, path = small_run(steps=4, lr=1e30), tmp_path / "run"
    assert attempt(run, fishr, data, path, MACHINE()) is State.FAILED
    failure = failure_of(path)
    assert failure["kind"] == "FloatingPointError" and not failure["memory"]
    assert "was not finite at step" in failure["reason"]
    assert attempt(run, fishr, data, path, MACHINE()) is State.FAILED
    assert state_of(path) is State.FAILED


def test_out_of_memory_is_tried_again_where_asked(tmp_path: Path) -> None:
    run, path, tried = small_run(steps=2), tmp_path / "run", []

    def exhausted() -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert attempt(run, fishr, exhausted, path, MACHINE()) is State.FAILED
    assert failure_of(path)["memory"]
    assert attempt(run, fishr, exhausted, path, MACHINE()) is State.FAILED
    assert len(tried) == 1
    again = attempt(run, fishr, data, path, MACHINE(), lambda failure: bool(failure["memory"]))
    assert again is State.DONE and not (path / attempts.FAILED).exists()


def test_a_run_that_kills_its_process_again_and_again_has_failed(tmp_path: Path) -> None:
    run, path = small_run(steps=2), tmp_path / "run"

    class Killed(BaseException):
        pass

    def die() -> Any:
        raise Killed

    for _ in range(DEATHS):
        with pytest.raises(Killed):
            attempt(run, fishr, die, path, MACHINE())
    assert attempt(run, fishr, data, path, MACHINE()) is State.FAILED
    assert "died 5 times" in failure_of(path)["reason"]


def test_other_data_than_planned_is_refused(tmp_path: Path) -> None:
    run = small_run(steps=2)
    state = attempt(run, fishr, lambda: (squares((41, 50, 30)), None), tmp_path, MACHINE())
    assert state is State.FAILED
    assert "not what it was when the sweep was planned" in failure_of(tmp_path)["reason"]


def test_a_full_disk_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempts, "execute", full)
    with pytest.raises(OSError, match="No space left"):
        attempt(small_run(steps=2), fishr, data, tmp_path / "run", MACHINE())
    assert state_of(tmp_path / "run") is State.WAITING


@pytest.mark.serial
@pytest.mark.timeout(240)
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    planned(tmp_path / "whole")
    assert carry_out(tmp_path / "whole", Squares(), 2) == {State.DONE: 12}
    planned(tmp_path / "killed")
    stop, kills = threading.Event(), []

    def kill_some() -> None:
        while not stop.is_set() and len(kills) < 3:
            time.sleep(4)
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
            for child in children.read_text().split():
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"spawn_main" in line and len(kills) < 3:
                    os.kill(int(child), signal.SIGKILL)
                    kills.append(child)
                    break

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        assert carry_out(tmp_path / "killed", Squares(), 2) == {State.DONE: 12}
    finally:
        stop.set()
        killer.join()
    assert kills
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    runs = read_plan(tmp_path / "killed")
    assert {path.name for path in (tmp_path / "killed" / "runs").iterdir()} == {
        folder_of(tmp_path, run).name for run in runs
    }
    assert standing(tmp_path / "killed", runs) == {State.DONE: len(runs)}
