"""What a user gets at a new place: rows of the place are in no model, and answers are compared."""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import new_places

ROWS = [
    {"site": site, "class": "ny"[k % 2], "x": str(k % 2 + 0.1 * k), "z": "ab"[k % 2]}
    for site in "pqr"
    for k in range(20)
]


def test_numbers_stay_and_other_columns_become_values() -> None:
    known = [{"x": "1.5", "z": "a"}, {"x": "", "z": "b"}, {"x": "2", "z": "a"}]
    found, unseen = new_places._matrices(known, [{"x": "7", "z": "c"}], ["x", "z"])
    np.testing.assert_allclose(found, [[1.5, 1, 0], [np.nan, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(unseen, [[7, 0, 0]])


def test_nothing_of_the_place_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def fake(*words: str, folder: Path) -> str:
        called.append(" ".join(words))
        if words[0] == "fit":
            with (folder / "known.csv").open() as file:
                assert {row["site"] for row in csv.DictReader(file)} == {"p", "r"}
            (folder / "model").mkdir()
            text = json.dumps({"deploy": "erm", "expectation": {"mean": 0.9, "nested": True}})
            (folder / "model" / "estimate.json").write_text(text)
            return ""
        with (folder / "unseen.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert set(rows[0]) == {"x", "z"}
        return "class\n" + "".join("n\n" for _ in rows)

    monkeypatch.setattr(new_places, "shoal", fake)
    asked: Any = argparse.Namespace(time="1min", fit_options="--judge worst")
    found = new_places.at_place(ROWS, "site", "class", "q", asked)
    assert found["shoal"] == 0.5
    assert [found[name] for name in new_places.FITTED] == [1.0] * 4
    assert (found["rows"], found["deployed"], found["expected"]) == (20, "erm", 0.9)
    assert "--time 1min" in called[0] and called[0].endswith("--judge worst")


def test_a_table_is_read_as_rows() -> None:
    assert new_places.rows_of({"a": [1, None], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": "", "b": "y"},
    ]
