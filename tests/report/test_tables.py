"""Result tables beside the paper's cells."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from shoal.reference import published_rows
from shoal.report import Cell, markdown, terminal

PAPER = {"train": [69.6, 0.9], "test": [71.2, 1.1], "gray": [70.2, 0.7]}


def cell(mean: float, std: float = 0.8, count: int = 10) -> dict[str, Any]:
    return {"mean": mean, "std": std, "count": count}


def row(name: str = "Fishr θ (centred variance)", **cells: Any) -> dict[str, Any]:
    base = {"train": cell(69.6), "test": cell(71.2, 1.1), "gray": cell(70.2)}
    return {"method": "fishr-theta", "name": name, "cells": base | cells, "paper": PAPER}


def shown(rows: list[dict[str, Any]], width: int = 120, title: str | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(terminal(rows, title=title))
    return out.getvalue()


def body(text: str) -> list[str]:
    """The cells of the first row of a Markdown table."""
    line = [line for line in text.splitlines() if line.startswith("|")][2]
    return [part.strip() for part in line.strip("|").split("|")]


def test_markdown_stands_beside_the_paper() -> None:
    text = markdown([row(train=cell(70.04, 0.51))], title="Colored MNIST")
    assert text.startswith("**Colored MNIST**\n\n| Method | Runs | Train acc. | paper | diff. |")
    assert body(text) == [
        "Fishr θ (centred variance)",
        "10",
        *("70.0 ± 0.5", "69.6 ± 0.9", "+0.4"),
        *("71.2 ± 1.1", "71.2 ± 1.1", "0.0"),
        *("70.2 ± 0.8", "70.2 ± 0.7", "0.0"),
    ]
    assert "!" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("mean", "std", "marked"),
    [
        (71.5, 0.2, False),  # +1.5 exactly: 1.5 rules, since 2 × 0.2 is less
        (71.51, 0.2, True),
        (68.5, 0.2, False),
        (68.4, 0.2, True),
        (72.2, 1.1, False),  # +2.2 exactly: two deviations rule
        (72.21, 1.1, True),
        (67.7, 1.1, True),
        (float("nan"), 1.1, True),
    ],
)
def test_a_difference_is_marked(mean: float, std: float, marked: bool) -> None:
    assert Cell(mean).departs(Cell(70.0, std)) is marked
    rows = [row(test=cell(mean)) | {"paper": PAPER | {"test": [70.0, std]}}]
    assert ("!**" in markdown(rows)) is marked
    assert ("two of the paper's standard" in markdown(rows)) is marked
    assert bool(re.search(r"(\d|nan)!", shown(rows))) is marked


def test_the_edge_is_not_lost_to_binary_fractions() -> None:
    for paper in (71.2, 64.3, 14.1, 86.4):
        assert not Cell(round(paper + 1.5, 1)).departs(Cell(paper, 0.1))


def test_what_was_not_run_and_what_was_not_possible() -> None:
    impossible = published_rows("table:cmnistend", 0.25)["covariance-theta"]
    rows = [row(train=None) | {"paper": impossible}]
    assert body(markdown(rows))[2:8] == [
        *("not run", "not possible", "–"),
        *("71.2 ± 1.1", "not possible", "–"),
    ]
    assert "not run" in shown(rows) and "not possible" in shown(rows)


def test_a_method_that_the_paper_has_not() -> None:
    own = row()
    del own["paper"]
    assert body(markdown([own]))[2:5] == ["69.6 ± 0.8", "–", "–"]
    assert body(markdown([row() | {"paper": {"test": [71.2, 1.1]}}]))[3] == "–"
    assert body(markdown([row() | {"paper": {"train": None}}]))[3] == "not possible"


def test_runs_and_deviation() -> None:
    rows = [row(test=cell(71.0, 0.0, 1), gray=cell(70.2, float("nan"), 3))]
    cells = body(markdown(rows))
    assert cells[1] == "1–10"
    assert (cells[5], cells[8]) == ("71.0", "70.2")
    assert body(markdown([row(train=None, test=None, gray=None)]))[1] == "–"


def test_fractions_are_refused() -> None:
    low = {key: cell(0.7, 0.01) for key in ("train", "test", "gray")}
    with pytest.raises(ValueError, match=r"cells are percentages, .* 0\.7: multiply by 100"):
        markdown([row() | {"cells": low}])


def test_names_do_not_break_the_table() -> None:
    text = markdown([row(name="a|b\n[bold]c")], title="x|y")
    assert r"| a\|b [bold]c |" in text and r"**x\|y**" in text
    assert "[bold]c" in shown([row(name="[bold]c")], title="[red]t")
    assert "[red]t" in shown([row()], title="[red]t")


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_keeps_every_mark(width: int) -> None:
    far = {key: cell(1.0) for key in PAPER}
    rows = [row(), row() | {"cells": far}]
    text = shown(rows, width=width, title="Colored MNIST")
    assert max(map(len, text.splitlines())) <= width
    for part in ("1.0 ± 0.8", "−68.6!", "−70.2!", "−69.2!", "69.6 ± 0.9", "Gray test acc."):
        assert part in text
    assert "Runs: 10." in text and "Colored MNIST" in text and "…" not in text


def test_terminal_shows_runs_that_differ() -> None:
    few = row() | {"cells": {key: cell(70.0, count=3) for key in PAPER}}
    text = shown([row(), few], width=80)
    assert "Runs " in text and "Runs:" not in text


def test_empty_table() -> None:
    assert markdown([]).count("\n") == 2
    assert "Method" in shown([])


def test_report_does_not_import_torch_or_its_renderers() -> None:
    code = (
        "import sys, types, pathlib, importlib\n"
        "package = types.ModuleType('shoal')\n"
        "import importlib.util\n"
        "package.__path__ = list(importlib.util.find_spec('shoal').submodule_search_locations)\n"
        "sys.modules['shoal'] = package\n"  # without the package's own __init__
        "import shoal.report, shoal.reference\n"
        "bad = {'torch', 'rich', 'jinja2', 'matplotlib'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
