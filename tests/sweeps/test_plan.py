"""Sweeps: the runs of a plan, and what becomes of each, whatever happens to who carries it out."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.documents import read_json
from shoal.results.records import SET_HPARAMS, failure_of, failures
from shoal.runs.folder import open_run_folder
from shoal.runs.run import Run
from shoal.sweeps import attempt as attempts
from shoal.sweeps import status as standings
from shoal.sweeps.attempt import DEATHS, DeviceLost, attempt, try_again
from shoal.sweeps.plan import (
    Shard,
    Sweep,
    domain_sets,
    folder_of,
    read_plan,
    runs_of,
    set_hparams,
    superseded,
    write_plan,
)
from shoal.sweeps.status import RunState, SweepStatus, stale_folders, state_of, without_stale
from shoal.sweeps.worker import Worker
from tests.runs.small import small_run, squares
from tests.sweeps.workspaces import Squares, planned

MACHINE = Squares().machine


def data() -> Any:
    return squares(), None


def loading(data: Callable[[], Any]) -> Any:
    """Return a workspace with these data, by whatever name."""
    return SimpleNamespace(method=lambda name: (find(name), {}), data=lambda *_: data())


def failed(path: Path) -> dict[str, Any]:
    failure = failure_of(path)
    assert failure is not None
    return failure


class Killed(BaseException):
    """As if the process were dead: nothing of ours handles it."""


def test_a_plan_has_every_combination_once() -> None:
    sweep = Sweep(
        algorithms=("erm", "fishr"),
        datasets=("squares", "colored-mnist"),
        trials=2,
        draws=3,
        test_domains="pairs",
    )
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


def test_a_plan_uses_the_searches_of_its_data_sets() -> None:
    """RDM has some of its own; what they draw is not taken for something set by hand."""
    sweep = Sweep(
        algorithms=("rdm",), datasets=("pacs", "terra-incognita", "mine"), trials=1, draws=2
    )
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    batches = {run.dataset: run.hparams["batch_size"] for run in runs if run.draw == 0}
    assert batches == {"pacs": 88, "terra-incognita": 40, "mine": 88}
    assert all(set_hparams(run) == {} for run in runs)


def test_a_plan_says_which_hyperparameters_were_set(tmp_path: Path) -> None:
    """Of published data sets, where a report compares only what the search drew."""
    sweep = Sweep(
        algorithms=("erm", "fishr"),
        datasets=("colored-mnist",),
        trials=1,
        draws=2,
        settings={"lr": "0.5"},
    )
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    write_plan(tmp_path, runs)
    found = read_json(tmp_path / SET_HPARAMS)
    assert found == {folder_of(tmp_path, run).name: {"lr": 0.5} for run in runs}
    (tmp_path / SET_HPARAMS).unlink()
    write_plan(tmp_path, runs)  # a plan of a version that did not write them
    assert read_json(tmp_path / SET_HPARAMS) == found
    planned(tmp_path / "own")
    assert read_plan(tmp_path / "own")[0].dataset == "squares"
    assert not (tmp_path / "own" / SET_HPARAMS).exists()


def test_a_plan_says_which_search_drew_its_runs(tmp_path: Path) -> None:
    """Of a user's own data, too; draw 0 is the same in every search."""
    sweep = Sweep(
        algorithms=("fishr",), datasets=("pacs", "mine"), trials=1, draws=3, search="mild"
    )
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    wide = runs_of(
        replace(sweep, search="domainbed"), Squares().method, lambda n, _: squares(name=n)
    )
    same = {run.identity for run in runs} & {run.identity for run in wide}
    assert same == {run.identity for run in runs if run.draw == 0}
    write_plan(tmp_path, runs)
    found = read_json(tmp_path / SET_HPARAMS)
    for run in runs:
        if run.draw:
            assert found[folder_of(tmp_path, run).name] == {"search": "mild"}
        else:
            assert not found.get(folder_of(tmp_path, run).name)
    with_one_set = replace(runs[-1], hparams={**runs[-1].hparams, "lr": 0.1}, dataset="pacs")
    assert set_hparams(with_one_set)["lr"] == 0.1


def test_two_domains_have_no_pairs() -> None:
    assert domain_sets(["a", "b"], "pairs") == [("a",), ("b",)]


def test_a_plan_is_read_as_written_and_only_grows(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    before = read_plan(tmp_path)
    planned(tmp_path, ("fishr",))
    planned(tmp_path, ("erm",))
    after = read_plan(tmp_path)
    assert after[: len(before)] == before and len(after) == 2 * len(before) == 12
    with pytest.raises(ValueError, match=r"not the folder of a sweep .*: there is no such folder"):
        read_plan(tmp_path / "elsewhere")


def test_plans_written_at_once_are_both_kept(tmp_path: Path) -> None:
    runs = [small_run(trial=trial) for trial in range(12)]
    writers = [threading.Thread(target=write_plan, args=(tmp_path, [run])) for run in runs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(run.trial for run in read_plan(tmp_path)) == list(range(12))


def other_data(runs: list[Run]) -> list[Run]:
    return [replace(run, fingerprint=f"not {run.fingerprint}") for run in runs]


def test_a_run_of_changed_data_is_replaced_by_the_last_asked_for(tmp_path: Path) -> None:
    runs = [small_run(trial=trial) for trial in range(2)]
    more = [
        *(small_run(trial=2), small_run(draw=1), small_run("erm"), small_run(steps=9)),
        *(small_run(lr=0.5), small_run(test_domains=("a",))),
        replace(small_run(), dataset="other"),
    ]
    write_plan(tmp_path, [*runs, *more])
    assert superseded(read_plan(tmp_path)) == []
    write_plan(tmp_path, other_data(runs))
    assert superseded(read_plan(tmp_path)) == runs
    thirds = other_data(other_data(runs))
    write_plan(tmp_path, thirds[:1])
    assert superseded(read_plan(tmp_path)) == [*runs, other_data(runs)[0]]
    write_plan(tmp_path, runs)  # they were mended back
    assert superseded(read_plan(tmp_path)) == [*other_data(runs), thirds[0]]
    assert len(read_plan(tmp_path)) == 2 + 7 + 2 + 1


def test_what_was_left_behind_is_not_current(tmp_path: Path) -> None:
    runs = [small_run(trial=trial) for trial in range(4)]
    failing, done, running, _ = runs
    strange = small_run(trial=9)  # of another command, which has no plan
    write_plan(tmp_path, runs)
    for run in (failing, done, strange):
        folder_of(tmp_path, run).mkdir(parents=True)
    (folder_of(tmp_path, failing) / attempts.FAILED).write_text("{}")
    for name in ("done", "run.json"):
        (folder_of(tmp_path, done) / name).touch()
    assert without_stale(tmp_path, runs) == runs and stale_folders(tmp_path) == []
    write_plan(tmp_path, other_data(runs))
    with open_run_folder(folder_of(tmp_path, running), running):
        assert without_stale(tmp_path, read_plan(tmp_path)) == [done, running, *other_data(runs)]
        assert stale_folders(tmp_path) == [folder_of(tmp_path, failing)]
    assert without_stale(tmp_path, read_plan(tmp_path)) == [done, *other_data(runs)]
    gone = [folder_of(tmp_path, failing), folder_of(tmp_path, running)]
    assert stale_folders(tmp_path) == sorted(gone)


def test_shards_are_the_plan() -> None:
    runs = [small_run(trial=trial) for trial in range(7)]
    parts = [Shard(index, 3).of(runs) for index in range(3)]
    assert sorted(run.trial for part in parts for run in part) == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_run_is_carried_out_once(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    assert state_of(path) is RunState.WAITING
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.DONE
    assert state_of(path) is RunState.DONE

    def never() -> Any:
        raise AssertionError("a run that is done is made again")

    assert attempt(run, loading(never), tmp_path, MACHINE()) is RunState.DONE


def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    with open_run_folder(path, run):
        assert state_of(path) is RunState.RUNNING
        assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.RUNNING
    assert state_of(path) is RunState.WAITING


def test_a_failure_is_written_down_and_not_repeated(tmp_path: Path) -> None:
    run = small_run(steps=4, lr=1e30)
    path = folder_of(tmp_path, run)
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.FAILED
    failure = failure_of(path)
    assert failure and failure["kind"] == "FloatingPointError" and not failure["memory"]
    assert "was not finite at step" in failure["reason"]
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.FAILED
    assert state_of(path) is RunState.FAILED


def test_out_of_memory_is_tried_again_where_asked(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path, tried = folder_of(tmp_path, run), []

    def exhausted() -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert attempt(run, loading(exhausted), tmp_path, MACHINE()) is RunState.FAILED
    assert failed(path)["memory"]
    assert attempt(run, loading(exhausted), tmp_path, MACHINE()) is RunState.FAILED
    assert len(tried) == 1
    again = attempt(run, loading(data), tmp_path, MACHINE(), retry_out_of_memory=True)
    assert again is RunState.DONE and not (path / attempts.FAILED).exists()


def test_a_run_that_kills_its_process_again_and_again_has_failed(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)

    def die() -> Any:
        raise Killed

    for _ in range(DEATHS):
        with pytest.raises(Killed):
            attempt(run, loading(die), tmp_path, MACHINE())
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.FAILED
    assert "died 5 times" in failed(path)["reason"]
    with open_run_folder(path, run):
        try_again(path, run)
    assert state_of(path) is RunState.FAILED  # somebody was at it
    try_again(path, run)
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.DONE


@pytest.mark.parametrize("content", ["", "[]", "{}", "\udcff"])
def test_a_damaged_failure_is_one(content: str, tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    with open_run_folder(path, run):
        (path / attempts.FAILED).write_bytes(content.encode(errors="surrogateescape"))
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.FAILED
    assert failed(path)["reason"] == "no reason was recorded"
    assert [one.reason for one in failures([tmp_path])] == ["no reason was recorded"]


def test_a_run_that_gets_further_between_its_deaths_goes_on(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)

    def die(step: int) -> Any:
        (path / "checkpoints").mkdir(exist_ok=True)
        (path / "checkpoints" / f"step-{step:07d}-{0:016x}.pt").touch()
        raise Killed

    for step in range(2 * DEATHS):
        with pytest.raises(Killed):
            attempt(run, loading(lambda step=step: die(step)), tmp_path, MACHINE())
    assert state_of(path) is RunState.WAITING


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_asked_to_end_did_not_die(tmp_path: Path, kind: Any) -> None:
    run = small_run(steps=2)

    def end() -> Any:
        raise kind

    for _ in range(DEATHS + 1):
        with pytest.raises(kind):
            attempt(run, loading(end), tmp_path, MACHINE())
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.DONE


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (FileNotFoundError(2, "No such file or directory", "cat.png"), False),
        (KeyError("gone"), False),
    ],
)
def test_what_fails_and_what_is_memory(tmp_path: Path, error: Exception, memory: bool) -> None:
    def fail() -> Any:
        raise error

    path = folder_of(tmp_path, small_run(steps=2))
    assert attempt(small_run(steps=2), loading(fail), tmp_path, MACHINE()) is RunState.FAILED
    assert failed(path)["memory"] is memory
    assert failed(path)["kind"] == type(error).__name__


def test_a_device_that_is_lost_ends_the_process_and_not_the_next_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nFor debugging …")

    monkeypatch.setattr(attempts, "_is_lost", lambda device: True)
    with pytest.raises(DeviceLost):
        attempt(small_run(steps=2), loading(fail), tmp_path, MACHINE())
    told = "RuntimeError: CUDA error: an illegal memory access was encountered"
    path = folder_of(tmp_path, small_run(steps=2))
    assert failed(path)["reason"] == told
    assert "For debugging" in (path / "failed.json").read_text("utf-8")


def test_a_damaged_folder_is_a_failure_of_its_run(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    path.mkdir(parents=True)
    (path / "run.json").write_text("{")
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.FAILED
    assert "run.json cannot be read" in failed(path)["reason"]


def test_what_a_kill_after_the_end_left_is_deleted(tmp_path: Path) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.DONE
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / f"step-0000002-{0:016x}.pt").touch()
    (path / attempts.BEGUN).write_text("{}")
    assert attempt(run, loading(data), tmp_path, MACHINE()) is RunState.DONE
    assert not (path / "checkpoints").exists() and not (path / attempts.BEGUN).exists()


@pytest.mark.parametrize(
    "tidy",
    [
        lambda run, out: attempt(run, loading(data), out, MACHINE()),
        lambda run, out: attempts.tidy_interrupted(out),
    ],
    ids=["sweep", "fit"],
)
def test_what_a_loss_of_power_left_beside_a_finished_run_is_deleted(
    tmp_path: Path, tidy: Callable[[Run, Path], object]
) -> None:
    run = small_run(steps=2)
    path = folder_of(tmp_path, run)
    attempt(run, loading(data), tmp_path, MACHINE())
    (path / attempts.BEGUN).write_text("{}")
    before = {one: one.read_bytes() for one in path.iterdir() if one.name != attempts.BEGUN}
    tidy(run, tmp_path)
    assert {one: one.read_bytes() for one in path.iterdir()} == before


def test_only_what_can_have_changed_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, seen = [small_run(trial=trial) for trial in range(4)], []
    paths = [folder_of(tmp_path, run) for run in runs]
    for path in paths[:3]:
        path.mkdir(parents=True)
    for name in ("done", "run.json"):
        (paths[0] / name).touch()
    (paths[1] / attempts.FAILED).write_text("{}")
    monkeypatch.setattr(standings, "state_of", lambda path: [seen.append(path), state_of(path)][1])
    watched = SweepStatus(tmp_path, runs)
    expected = {RunState.DONE: 1, RunState.FAILED: 1, RunState.WAITING: 2}
    assert watched.refresh() == expected and seen == paths[:3]
    assert watched.refresh() == expected and seen[3:] == paths[1:3]
    assert watched.waiting() == runs[2:]


def test_looks_are_seldom_where_they_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, told = [100.0], []
    monkeypatch.setattr(standings.time, "monotonic", lambda: now[0])
    watched = SweepStatus(tmp_path, [])

    def tell(found: Any) -> None:
        told.append(now[0])
        now[0] += 3.0  # so long does it take

    for _ in range(200):
        watched.refresh_if_due(tell)
        now[0] += 1.0
    gaps = [later - sooner for sooner, later in pairwise(told)]
    assert gaps and min(gaps) >= 3.0 * standings.SPARING


def test_a_broken_image_is_the_reason_of_every_run_and_is_read_once(tmp_path: Path) -> None:
    planned(tmp_path, ("erm",))
    tried: list[int] = []

    class Unreadable(Squares):
        def data(self, name: str, trial: int) -> Any:
            tried.append(trial)
            raise ValueError("cannot read cat.png: it is no image")

    worker = Worker(tmp_path, Unreadable())
    runs = read_plan(tmp_path)
    assert {worker.attempt(run) for run in runs} == {RunState.FAILED}
    assert tried == [0]
    reasons = {failed(folder_of(tmp_path, run))["reason"] for run in runs}
    assert reasons == {"ValueError: cannot read cat.png: it is no image"}


def test_other_data_than_planned_is_refused(tmp_path: Path) -> None:
    run = small_run(steps=2)
    other = loading(lambda: (squares((41, 50, 30)), None))
    assert attempt(run, other, tmp_path, MACHINE()) is RunState.FAILED
    reason = failed(folder_of(tmp_path, run))["reason"]
    assert "has changed since the sweep was planned" in reason


def test_a_full_disk_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempts, "execute", full)
    with pytest.raises(OSError, match="No space left"):
        attempt(small_run(steps=2), loading(data), tmp_path, MACHINE())
    assert state_of(folder_of(tmp_path, small_run(steps=2))) is RunState.WAITING
