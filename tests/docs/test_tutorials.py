"""Tutorials: the notebooks run as they are written, and their outputs are committed.

The code of the cells runs in this process, without Jupyter and on less data: constants at the top
of a notebook say how much.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_documents import links

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
# The line of each notebook that says how much to compute, and a smaller one.
SMALLER = {
    "images": ("EACH, CLASSES, STEPS = 15, 8, 150", "EACH, CLASSES, STEPS = 2, 6, 5"),
    "own_loop": ("EXAMPLES, STEPS = 1500, 300", "EXAMPLES, STEPS = 100, 12"),
    "table": ("ROWS, STEPS = 400, 200", "ROWS, STEPS = 60, 5"),
}


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text("utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_is_a_smaller_size_for_every_notebook() -> None:
    assert {path.stem for path in NOTEBOOKS} == SMALLER.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(
        "shoal.fitting.fit.onnx_missing", lambda: "onnx"
    )  # seconds, tested elsewhere
    full, small = SMALLER[path.stem]
    namespace: dict[str, Any] = {"__name__": "notebook"}
    codes = [source(cell) for cell in cells(path, "code")]
    assert sum(code.count(full) for code in codes) == 1
    for number, code in enumerate(codes, 1):
        program = compile(code.replace(full, small), f"{path.name}, code cell {number}", "exec")
        exec(program, namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_those_of_one_run_from_top_to_bottom(path: Path) -> None:
    found = cells(path, "code")
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    outputs = [output for cell in found for output in cell["outputs"]]
    assert not [one for one in outputs if one["output_type"] == "error"]
    assert not [one for one in outputs if one.get("name") == "stderr"], "a warning"
    shown = {kind for one in outputs for kind in one.get("data", {})}
    assert "image/png" in shown
    assert path.stat().st_size < 250_000
    text = json.dumps(outputs)
    assert not re.search(r"/(tmp|home|root)/", text), "a path of the machine that ran it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_begins_with_a_problem_and_ends_with_what_was_learned(path: Path) -> None:
    texts = [source(cell) for cell in cells(path, "markdown")]
    title, problem, *_ = texts[0].split("\n\n")
    assert title.startswith("# ")
    assert len(problem.split()) > 30, "a problem in a few sentences"
    assert "pip install" in texts[0]
    assert texts[-1].startswith("## What you learned\n\n- ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_to_a_file(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n\n".join(source(cell) for cell in cells(path, "markdown")), "utf-8")
    found = links(page)
    assert found
    for link in found:
        assert (TUTORIALS / link.partition("#")[0]).exists(), f"{link} leads nowhere"
