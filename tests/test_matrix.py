"""The matrix of versions: what was committed holds, and the tool reports what happened."""

import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import matrix

    return matrix


@pytest.fixture
def result() -> dict[str, Any]:
    text = (ROOT / "benchmarks/results/matrix.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def lowest_torch() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (found,) = [need for need in project["dependencies"] if need.startswith("torch")]
    return found.removeprefix("torch>=")


def test_every_core_test_passed_on_every_version(
    matrix: ModuleType, result: dict[str, Any]
) -> None:
    cells = [matrix.Cell(**cell) for cell in result["cells"]]
    assert [(c.torch, c.python) for c in cells] == [
        (torch, python) for torch in matrix.TORCH for python in matrix.PYTHON
    ]
    for cell in cells:
        assert cell.missing is None and not cell.failed and cell.passed > 2000, cell
        assert cell.versions["python"].startswith(f"{cell.python}.")
        if cell.torch != matrix.NEWEST:
            assert cell.versions["torch"].startswith(f"{cell.torch}.")
    assert result["tests"] == list(matrix.CORE)


def test_the_metadata_asks_for_the_lowest_torch_that_was_tried(matrix: ModuleType) -> None:
    assert matrix.TORCH[0] == lowest_torch()
    assert all((ROOT / path).exists() for path in matrix.CORE)


def test_the_documents_show_the_table(matrix: ModuleType, result: dict[str, Any]) -> None:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert "\n".join(matrix.table(result)) in page


TESTS = """
import pytest

def test_right():
    pass

def test_wrong():
    assert False

def test_left_out():
    pytest.skip("no GPU")
"""


def test_results_are_counted(matrix: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(TESTS)
    (tmp_path / "pytest.ini").touch()
    cell = matrix.Cell(python="3.11", torch="2.8")
    matrix.run_tests(cell, Path(sys.executable), [str(tmp_path)], tmp_path / "results.xml")
    assert (cell.passed, cell.skipped, len(cell.failed)) == (1, 1, 1)
    assert cell.failed[0].endswith("test_wrong")
    assert cell.verdict == "1 passed, 1 failed"
    nothing = matrix.Cell(python="3.11", torch="2.8")
    matrix.run_tests(nothing, Path(sys.executable), ["nowhere"], tmp_path / "none" / "x.xml")
    assert nothing.failed


def test_a_python_that_is_not_here(matrix: ModuleType, tmp_path: Path) -> None:
    cell = matrix.try_out("3.99", "2.8", tmp_path / "x.whl", [], tmp_path)
    assert cell.verdict == "not here: no Python 3.99"


def test_a_table_with_gaps(matrix: ModuleType) -> None:
    cells = [
        matrix.Cell(python="3.11", torch="2.8", versions={"torch": "2.8.0"}, passed=7),
        matrix.Cell(python="3.13", torch="2.8", missing="no Python 3.13"),
        matrix.Cell(python="3.11", torch="newest", versions={"torch": "9.9"}, failed=["a"]),
    ]
    lines = matrix.table({"cells": [vars(cell) for cell in cells]})
    assert lines == [
        "| torch | Python 3.11 | Python 3.13 |",
        "| --- | --- | --- |",
        "| 2.8.0 | 7 passed | not here: no Python 3.13 |",
        "| 9.9, the newest | 0 passed, 1 failed | – |",
    ]
