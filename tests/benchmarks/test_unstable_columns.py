"""The benchmark of unstable columns: a small one from its command to its file."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import tables, unstable_columns
from benchmarks.unstable_columns import Simulation, draw


def test_a_small_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Simulation(rows=(100,) * 3, columns=3, categories=1, missing=0.1)
    turning = Simulation(rows=(300,) * 3, columns=3, effects=(2.0, 2.0, -2.0))
    monkeypatch.setattr(unstable_columns, "STABLE", {"small": small})
    monkeypatch.setattr(unstable_columns, "UNSTABLE", {"turning": turning})
    monkeypatch.setattr(unstable_columns, "TABLES", {"spurious": lambda: tables.spurious(5000)})
    monkeypatch.setattr(sys, "argv", ["unstable", "--repeats", "2", "--out", str(tmp_path)])
    unstable_columns.main()
    found = json.loads((tmp_path / "unstable_columns.json").read_text())
    assert found["stable"]["small"] == {"significant": 0.0, "flagged": 0.0}
    assert found["unstable"]["turning"]["flagged"] == 100.0
    last = found["tables"]["spurious"][-1]
    assert (last["left_out"], last["flagged"]) == ("site 5", ["x07"])
    assert last["all_columns"] < 50 and last["without_flagged"] > 75


def test_simulated_tables_are_as_described() -> None:
    kind = Simulation(rows=(50, 70), classes=3, columns=6, categories=2, missing=0.5)
    vectors, labels, domains, columns = draw(kind, 0)
    assert domains.bincount().tolist() == [50, 70]
    assert sorted(set(labels.tolist())) == [0, 1, 2]
    assert [len(places) for places in columns.values()] == [1, 1, 1, 1, 4, 4]
    missing = vectors.isnan().double().mean(0)
    assert 0.3 < missing[0] < 0.7 and 0.3 < missing[2] < 0.7
    assert missing[[1, 3]].sum() == missing[4:].sum() == 0
