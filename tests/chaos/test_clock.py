"""Clocks that jump a day between any two looks change nothing: durations are not read off them."""

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.runs.folder import InUse, open_run_folder
from shoal.sweeps.cost import remaining_work
from shoal.sweeps.plan import folder_of, read_plan
from shoal.training.checkpoints import Checkpoints
from tests.runs.killing import content
from tests.runs.small import carry_out, tiny_run
from tests.sweeps.test_cost import HERE, wrote
from tests.sweeps.workspaces import planned

DAY = 86400.0
# The modules that read the time of day, and why.
WALL = {
    "results/records.py": "whether files are so young that an index waits; see test_index.py",
    "sweeps/cost.py": "how old the last record of another process is, within bounds",
}

CLOCKS = {"time.time", "time.time_ns", "date.today"} | {
    f"{module}datetime.{name}" for module in ("", "datetime.") for name in ("now", "utcnow")
}


@pytest.fixture(params=[DAY, -DAY], ids=["forwards", "backwards"])
def jumping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time of day jumps with every look at it, and so do the times of files."""
    looks, move = [0], os.replace

    def now() -> float:
        looks[0] += 1
        return 1e9 + request.param * looks[0]

    def replace(source: Any, target: Any) -> None:
        move(source, target)
        os.utime(target, (now(), now()))

    monkeypatch.setattr(time, "time", now)
    monkeypatch.setattr(time, "time_ns", lambda: int(now() * 1e9))
    monkeypatch.setattr(os, "replace", replace)
    yield


def test_only_named_modules_read_the_time_of_day() -> None:
    root, found = Path(shoal.__file__).parent, set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS:
                found.add(str(path.relative_to(root)))
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert not {"time", "time_ns"} & {one.name for one in node.names}, path
    assert found == WALL.keys()


@pytest.mark.usefixtures("jumping")
def test_checkpoints_and_records_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = [], Checkpoints.take

    def count(self: Checkpoints, step: int, state: dict[str, Any]) -> None:
        taken.append(step)
        take(self, step, state)
        self._writing.result()  # type: ignore[union-attr]  # so that the next is due at once

    monkeypatch.setattr(Checkpoints, "take", count)
    carry_out(tmp_path / "jumping", tiny_run(), every=0.0)
    assert taken == [1, 2, 3, 4, 5, 6]
    monkeypatch.undo()
    carry_out(tmp_path / "whole", tiny_run(), every=0.0)
    assert content(tmp_path / "jumping") == content(tmp_path / "whole")


@pytest.mark.usefixtures("jumping")
def test_a_lock_is_waited_for_as_long_as_before(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, tiny_run()):
        begin = time.monotonic()
        with pytest.raises(InUse), open_run_folder(tmp_path, tiny_run()):
            pass
        assert 0.1 <= time.monotonic() - begin < 5


def test_the_time_left_is_off_by_one_record_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, ("erm",), steps=1000)
    first, run = read_plan(tmp_path)[:2]
    share = run.protocol.record_every / 1000
    assert share < 1
    wrote(tmp_path, first, updating=100.0)
    path = folder_of(tmp_path, run)
    with open_run_folder(path, run):
        (path / "begun.json").write_text("{}")
        for now, left in ((DAY, 100 * (1 - share)), (-DAY, 100.0)):
            at = (path / "begun.json").stat().st_mtime + now
            monkeypatch.setattr(time, "time", lambda at=at: at)
            assert remaining_work(tmp_path, [first, run], HERE).each[0] == pytest.approx(left)
