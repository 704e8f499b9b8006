"""The index of a sweep never says anything else than the folders of its runs."""

import hashlib
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main
from shoal.results import index
from shoal.results.averages import with_averages
from shoal.results.records import RunResult, read_runs
from tests.report.made_up import make_sweep, write_run


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sweep of 56 runs, one of them with averages, which is large enough for an index."""
    monkeypatch.setattr(index, "FEWEST", 3)
    monkeypatch.setattr(index, "SETTLED", 0)
    for run in make_sweep(["erm", "fishr"], trials=2, draws=2, records=4):
        write_run(tmp_path / index.RUNS, run)
    first = min((tmp_path / index.RUNS).iterdir())
    lines = (first / "records.jsonl").read_text().splitlines()
    average = {"average": "sma", "updates": [1, 300]}
    text = "".join(json.dumps(json.loads(line) | average) + "\n" for line in lines)
    (first / "averages.jsonl").write_text(text)
    (tmp_path / index.PLAN).write_text("[]")
    return tmp_path


def values(runs: Sequence[RunResult]) -> list[Any]:
    """Return everything of the runs and their averages, with types and order."""
    return [
        [repr(run), [json.dumps(one.to_json()) for one in run.records], [*run.inside]]
        for run in with_averages(runs)
    ]


def without_index(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as only:
        only.setattr(index, "FEWEST", 10**9)
        return values(read_runs([sweep]))


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which each run that is read from its own files is added."""
    from shoal.results import records

    found: list[Path] = []
    before = records._read

    def read(folder: Path, set_hparams: Any) -> RunResult:
        found.append(folder)
        return before(folder, set_hparams)

    monkeypatch.setattr(records, "_read", read)
    return found


def test_runs_are_the_same_with_and_without_an_index(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = without_index(sweep, monkeypatch)
    assert not (sweep / index.INDEX).exists()
    read = count_reads(monkeypatch)
    assert values(read_runs([sweep])) == wanted and len(read) == 56
    content = (sweep / index.INDEX).read_bytes()
    assert values(read_runs([sweep])) == wanted and len(read) == 56  # from the index alone
    assert (sweep / index.INDEX).read_bytes() == content
    assert values(read_runs([sweep / "runs", sweep])) == wanted
    assert len(values(read_runs([min((sweep / "runs").iterdir())]))) == 2
    assert (sweep / index.INDEX).read_bytes() == content


@pytest.mark.parametrize("kind", ["terminal", "markdown", "latex", "json", "html"])
def test_reports_are_the_same_with_and_without_an_index(
    kind: str, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for fewest in (10**9, 3, 3):
        monkeypatch.setattr(index, "FEWEST", fewest)
        out = sweep / f"report.{kind}"
        assert main(["report", str(sweep), "--format", kind, "--out", str(out)]) == 0
        found.append(out.read_bytes())
    assert found[0] == found[1] == found[2] and len(found[0]) > 1000


def change(folder: Path) -> None:
    """Change a digit in place: same size, and the same time afterwards."""
    path = folder / "records.jsonl"
    times = path.stat()
    content = path.read_bytes()
    place = content.index(b"0.") + 3
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"1" if content[place : place + 1] != b"1" else b"2")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def replaced(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"draw": 77}))


def lose_averages(folder: Path) -> None:
    (folder / "averages.jsonl").unlink()


def swap(folder: Path) -> None:
    """Put another run into the folder, with all its files as they were."""
    other = max(folder.parent.iterdir())
    shutil.rmtree(folder)
    other.rename(folder)


@pytest.mark.parametrize("how", [change, replaced, lose_averages, swap, shutil.rmtree])
def test_a_run_that_changed_is_read_anew(
    how: Any, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = values(read_runs([sweep]))
    how(min((sweep / index.RUNS).iterdir()))
    wanted = without_index(sweep, monkeypatch)
    assert wanted != before
    read = count_reads(monkeypatch)
    for _ in range(2):
        assert values(read_runs([sweep])) == wanted
    assert len(read) == (how is not shutil.rmtree)  # and the second time from the index


def test_a_damaged_run_is_named_whatever_the_index_says(sweep: Path) -> None:
    read_runs([sweep])
    folder = min((sweep / index.RUNS).iterdir())
    (folder / "records.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(ValueError, match=r"records\.jsonl has no record in line 1"):
        read_runs([sweep])


def sealed(content: bytes) -> bytes:
    """Return an index with the right digest."""
    head = len(index.MAGIC)
    body = content[head + index.DIGEST :]
    return content[:head] + hashlib.sha256(body).digest() + body


def edited(**changes: Any) -> Any:
    """Return a function that replaces entries of the index's JSON, with the right digest."""

    def edit(content: bytes) -> bytes:
        start = len(index.MAGIC) + index.DIGEST
        size = int.from_bytes(content[start : start + 8], "little")
        head = json.loads(content[start + 8 : start + 8 + size]) | changes
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        whole = content[:start] + len(text).to_bytes(8, "little") + text
        return sealed(whole + content[start + 8 + size :])

    return edit


def first_step(value: float) -> Any:
    """Return a function that replaces the first number of an index, the step of a record."""

    def edit(content: bytes) -> bytes:
        start = len(index.MAGIC) + index.DIGEST
        place = start + 8 + int.from_bytes(content[start : start + 8], "little")
        return sealed(content[:place] + struct.pack("d", value) + content[place + 8 :])

    return edit


@pytest.mark.parametrize(
    "damage",
    [
        first_step(math.inf),
        first_step(2.5),
        first_step(1e30),
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-8],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"another" + content[7:],
        lambda content: sealed(content[:-8]),
        lambda content: sealed(content[:-3]),
        lambda content: sealed(content[: len(index.MAGIC) + index.DIGEST] + b"\xff" * 100),
        lambda content: content + bytes(10**7),
        edited(layouts=[]),
        edited(layouts=["{}"] * 9),
        edited(layouts=['{"step": 0}'] * 9),
        edited(shapes=[]),
        edited(shapes=[[-1]]),
        edited(protocols=[]),
        edited(runs=[[1]]),
        edited(runs={}),
        edited(runs=None),
    ],
)
def test_a_damaged_index_is_written_again(
    damage: Any, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = values(read_runs([sweep]))
    whole = (sweep / index.INDEX).read_bytes()
    (sweep / index.INDEX).write_bytes(damage(whole))
    assert values(read_runs([sweep])) == wanted
    assert (sweep / index.INDEX).read_bytes() == whole


def test_an_index_cannot_change_what_a_run_is(sweep: Path) -> None:
    wanted = values(read_runs([sweep]))
    path = sweep / index.INDEX
    whole = path.read_bytes()
    start = len(index.MAGIC) + index.DIGEST
    size = int.from_bytes(whole[start : start + 8], "little")
    runs = json.loads(whole[start + 8 : start + 8 + size])["runs"]
    for wrong in ({}, {"dataset": "pacs"}, runs[0][2] | {"test_domains": ["nowhere"]}):
        path.write_bytes(edited(runs=[[*runs[0][:2], wrong, *runs[0][3:]]])(whole))
        assert values(read_runs([sweep])) == wanted


def test_young_files_are_not_indexed(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLED", 3600 * 10**9)
    read_runs([sweep])
    assert not (sweep / index.INDEX).exists()


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_is_wrong_by_a_day_changes_nothing(
    days: int, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind, it makes an index wait; ahead, it makes one at once, which still sees a change."""
    now = time.time_ns
    monkeypatch.setattr(index, "SETTLED", 2 * 10**9)
    monkeypatch.setattr(time, "time_ns", lambda: now() + days * 86400 * 10**9)
    before = without_index(sweep, monkeypatch)
    assert values(read_runs([sweep])) == before
    assert (sweep / index.INDEX).exists() is (days > 0)
    change(min((sweep / index.RUNS).iterdir()))
    wanted = without_index(sweep, monkeypatch)
    assert values(read_runs([sweep])) == wanted != before


def test_a_folder_that_cannot_be_written_is_read(sweep: Path) -> None:
    (sweep / index.INDEX).mkdir()  # as hard to replace as a file in a read-only folder
    assert len(read_runs([sweep])) == 56 and len(read_runs([sweep])) == 56
    assert [*(sweep / index.INDEX).iterdir()] == []
    assert sorted(path.name for path in sweep.iterdir()) == ["index.bin", "plan.json", "runs"]


def test_an_index_that_is_no_file_is_not_opened(sweep: Path) -> None:
    os.mkfifo(sweep / index.INDEX)  # opening it would wait for a writer
    assert len(read_runs([sweep])) == 56
    assert (sweep / index.INDEX).is_file()


def test_small_sweeps_and_other_folders_get_no_index(sweep: Path) -> None:
    (sweep / index.PLAN).unlink()
    read_runs([sweep])
    assert not (sweep / index.INDEX).exists()


def test_two_processes_at_once(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from pathlib import Path; from shoal.results import index, records\n"
        "index.FEWEST, index.SETTLED = 3, 0\n"
        "for k in range(12):\n"
        "    (Path(sys.argv[1]) / 'index.bin').unlink(missing_ok=True)\n"
        "    assert len(records.read_runs([Path(sys.argv[1])])) == 56\n"
    )
    command = [sys.executable, "-c", script, str(sweep)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    wanted = without_index(sweep, monkeypatch)
    assert values(read_runs([sweep])) == wanted
    assert not [path for path in sweep.iterdir() if path.name.startswith(".")]
