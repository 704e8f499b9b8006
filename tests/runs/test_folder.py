"""A run's folder: locked, its own, and free of what a kill left."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.results.records import Record
from shoal.runs.folder import InUse, RunFolder, in_use, open_run_folder
from shoal.runs.run import Protocol, Run
from shoal.storage import explain_write_errors

RUN = Run(
    dataset="data",
    fingerprint="0" * 64,
    algorithm="erm",
    test_domains=("a",),
    hparams={"lr": 0.1},
    protocol=Protocol(steps=5),
)
FIRST = Record(step=0, accuracy={})
OTHER = replace(RUN, hparams={"lr": 0.2}, trial=3, protocol=Protocol(steps=7))


def test_a_new_folder(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "deep" / "run", RUN) as folder:
        assert folder.run() == RUN
        assert not folder.done
        assert not folder.begun
        assert folder.records() == []
        folder.write_records([FIRST, Record(step=5, accuracy={}, extra={"name": "ζ\u2028"})])
        assert folder.records() == [FIRST, Record(step=5, accuracy={}, extra={"name": "ζ\u2028"})]
        assert folder.begun
        folder.finish()
        assert folder.done
    assert len((tmp_path / "deep" / "run" / "records.jsonl").read_text().splitlines()) == 2
    with open_run_folder(tmp_path / "deep" / "run", RUN) as folder:
        assert folder.done


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("no matter")
    with open_run_folder(tmp_path, RUN) as folder:
        assert folder.run() == RUN
    assert (tmp_path / ".hidden").exists()


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text("mine")
    with (
        pytest.raises(ValueError, match=r"b.txt and is not the folder of a run; choose"),
        open_run_folder(tmp_path, RUN),
    ):
        raise AssertionError("opened")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with (
        pytest.raises(ValueError, match="run is a file; choose another --out"),
        open_run_folder(tmp_path / "run", RUN),
    ):
        raise AssertionError("opened")


def begin(path: Path, run: Run) -> None:
    with open_run_folder(path, run) as folder:
        folder.write_records([FIRST])


def test_another_run_s_folder_names_the_differences(tmp_path: Path) -> None:
    begin(tmp_path, RUN)
    with pytest.raises(ValueError) as caught, open_run_folder(tmp_path, OTHER):
        raise AssertionError("opened")
    assert str(caught.value) == (
        f"{tmp_path} is the folder of another run (trial 0, not 3; lr 0.1, not 0.2; "
        "steps 5, not 7); choose another --out"
    )
    assert RunFolder(tmp_path).run() == RUN


def test_differences_are_three_at_most(tmp_path: Path) -> None:
    begin(tmp_path, RUN)
    other = replace(OTHER, dataset="x", algorithm="irm", draw=4)
    with pytest.raises(ValueError, match="another run") as caught, open_run_folder(tmp_path, other):
        raise AssertionError("opened")
    assert str(caught.value).count(", not ") == 3


def test_a_run_that_never_began_gives_its_folder_away(tmp_path: Path) -> None:
    """As one whose data or options were wrong: there is nothing to lose."""
    with open_run_folder(tmp_path, RUN) as folder:
        folder.write_records([])
    with open_run_folder(tmp_path, OTHER) as folder:
        assert folder.run() == OTHER
        folder.checkpoints.mkdir()
        (folder.checkpoints / "step-0000004-0123456789abcdef.pt").write_bytes(b"")
    with (
        pytest.raises(ValueError, match="the folder of another run"),
        open_run_folder(tmp_path, RUN),
    ):
        raise AssertionError("opened")


def test_a_run_that_is_done_keeps_its_folder(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, RUN) as folder:
        folder.finish()
    with (
        pytest.raises(ValueError, match="the folder of another run"),
        open_run_folder(tmp_path, OTHER),
    ):
        raise AssertionError("opened")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", r"run.json cannot be read: .*not valid JSON"),
        ("[]", r"run.json cannot be read: expected a run of schema 1"),
        ('{"schema": 1}', r"run.json cannot be read: .*another version"),
    ],
)
def test_a_damaged_description(tmp_path: Path, content: str, why: str) -> None:
    begin(tmp_path, RUN)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=why), open_run_folder(tmp_path, RUN):
        raise AssertionError("opened")


def test_damaged_records_are_named(tmp_path: Path) -> None:
    begin(tmp_path, RUN)
    (tmp_path / "records.jsonl").write_text('{"step": 0}\n{"st')
    with pytest.raises(ValueError, match=r"records.jsonl is damaged"):
        RunFolder(tmp_path).records()


def test_no_folder_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no run.json"):
        RunFolder(tmp_path).run()


def test_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    begin(tmp_path, RUN)
    left = [".model.safetensors.4711.0123abcd", ".records.jsonl.1.89abcdef"]
    for name in (*left, ".keep.txt", ".nfs000001"):
        (tmp_path / name).write_bytes(b"half")
    with open_run_folder(tmp_path, RUN) as folder:
        assert folder.records() == [FIRST]
    assert sorted(p.name for p in tmp_path.glob(".*")) == [".keep.txt", ".nfs000001"]


def test_killed_before_it_could_say_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / ".run.json.4711.0123abcd").write_text("{")
    with open_run_folder(tmp_path, RUN) as folder:
        assert folder.run() == RUN


# Two processes


def test_a_second_one_is_refused_and_the_lock_goes_with_the_first(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    with open_run_folder(tmp_path, RUN):
        assert in_use(tmp_path)
        with pytest.raises(InUse) as caught, open_run_folder(tmp_path, RUN):
            raise AssertionError("opened")
        assert str(caught.value) == (
            f"{tmp_path} is in use by another process; wait for it, or choose another --out"
        )
    with pytest.raises(RuntimeError, match="in between"), open_run_folder(tmp_path, RUN):
        raise RuntimeError("in between")
    with open_run_folder(tmp_path, RUN):
        pass
    assert not in_use(tmp_path)


def test_who_looks_keeps_nobody_out(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, RUN):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            in_use(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(100):
            with open_run_folder(tmp_path, RUN):
                assert in_use(tmp_path)
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_two_who_look_do_not_see_each_other(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, RUN):
        pass
    with (tmp_path / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not in_use(tmp_path)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.raises(OSError, match="cannot be locked: Function not"),
        open_run_folder(tmp_path, RUN),
    ):
        raise AssertionError("opened")


def test_a_real_second_process_and_its_death(tmp_path: Path) -> None:
    script = (
        "import sys, signal; from pathlib import Path\n"
        "from tests.runs.test_folder import RUN, open_run_folder\n"
        "with open_run_folder(Path(sys.argv[1]), RUN):\n"
        "    print('ready', flush=True)\n"
        "    signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with (
            pytest.raises(ValueError, match="is in use by another process"),
            open_run_folder(tmp_path, RUN),
        ):
            raise AssertionError("opened")
        process.kill()
        process.wait()
        with open_run_folder(tmp_path, RUN) as folder:
            assert folder.run() == RUN
    finally:
        process.kill()
        process.wait()


# Disks


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", "/disk/run")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OSError) as caught, open_run_folder(tmp_path / "run", RUN):
        raise AssertionError("opened")
    assert str(caught.value) == (
        "/disk/run cannot be written: Read-only file system; make room or make the "
        "folder writable, then run the same command again to resume"
    )


def test_a_full_disk_leaves_the_records_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, RUN)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(OSError, match=r"records.jsonl cannot be written: No space left"),
        explain_write_errors(tmp_path),
    ):
        RunFolder(tmp_path).write_records([FIRST, Record(step=1, accuracy={})])
    assert RunFolder(tmp_path).records() == [FIRST]
    assert not list(tmp_path.glob(".*"))
    assert json.loads((tmp_path / "run.json").read_text())["trial"] == 0
