"""Small tables as Markdown and on a terminal, and the tables of the analyses."""

import io

import pytest
from rich.console import Console

from shoal.experiments.ablations import ablation_sheets, draws_sheet
from shoal.experiments.batch_size import batch_sheet
from shoal.experiments.overhead import overhead_sheet
from shoal.report.views import Sheet, power, sheet_markdown, sheet_terminal

SHEET = Sheet("A title", ("Method", "|R|²"), [("ERM", "1 | 2"), ("[red]", "3")], "To know.")


def test_markdown() -> None:
    assert sheet_markdown([SHEET]) == (
        "**A title**\n\n| Method | \\|R\\|² |\n| :-- | --: |\n| ERM | 1 \\| 2 |\n"
        "| [red] | 3 |\n\nTo know.\n"
    )


def test_terminal_shows_names_as_they_are() -> None:
    file = io.StringIO()
    Console(file=file, width=40).print(sheet_terminal(SHEET))
    shown = file.getvalue()
    assert "[red]" in shown and "A title" in shown and "To know." in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.1e-5, "4.1 · 10⁻⁵"),
        (0.29, "0.29"),
        (1.6, "1.6"),
        (39024.4, "39,024"),
        (1.234e7, "1.2 · 10⁷"),
        (-2.5e-4, "-2.5 · 10⁻⁴"),
        (0, "0"),
    ],
)
def test_powers(value: float, text: str) -> None:
    assert power(value) == text


def test_cells_that_were_not_run_say_so() -> None:
    cell = {"mean": 34.25, "error": 1.5, "trials": 3, "runs": 24, "planned": 60}
    rows = [
        {
            "row": "fishr",
            "cells": {"-90%": cell, "average": None},
            "paper": {"-90%": [58.9, 3.7], "average": [68.8]},
        },
        {"row": "ours", "cells": {"-90%": cell | {"runs": 60}, "average": None}, "paper": {}},
    ]
    tables = {"test-domain": rows}
    (sheet,) = ablation_sheets("ablation-ema", "colored-mnist", "table:x", tables, "bf16")
    assert list(sheet.head) == ["Method", "-90%", "Avg"]
    assert sheet.rows[0][1] == "34.2 ± 1.5, 24 of 60 runs (58.9 ± 3.7)"
    assert sheet.rows[0][2] == "not run (68.8)"
    assert sheet.rows[1][1:] == ["34.2 ± 1.5 (–)", "not run (–)"]
    assert sheet.note.endswith("Trained in bf16.")


def test_draws() -> None:
    gap = {"mean": -6.25, "error": 1.31, "runs": 60}
    rows = [{"row": "fishr-no-ema", "domain": "-90%", "gaps": {"all": gap, "large": gap}}]
    sheet = draws_sheet("ablation-ema", "colored-mnist", rows, "bf16")
    assert sheet.head[2:] == ("all draws", "λ ≥ 1,000, batch ≤ 64", "λ ≥ 1,000, batch > 64")
    shown = "-6.2 ± 1.3 (60)"
    assert sheet.rows == [("fishr-no-ema", "-90%", shown, "–", shown)]
    rows[0]["gaps"] = {"all": {"mean": 2.0, "error": None, "runs": 1}}  # type: ignore[dict-item]
    (row,) = draws_sheet("ablation-ema", "colored-mnist", rows, "bf16").rows
    assert row[2] == "+2.0 (1)"


def test_batches() -> None:
    cell = {"pull": "a", "ema_decay": 0.5, "penalty_weight": 8089.5, "error": 0.5}
    cells = [
        cell | {"batch_size": 8, "mean": 12.0},
        cell | {"batch_size": 32, "mean": None, "error": None},
    ]
    sheet = batch_sheet(cells, "float32")
    assert tuple(sheet.head) == ("", "λ", "batch 8", "batch 32")
    assert sheet.rows == [("a, γ = 0.5", "8,090", "12.0 ± 0.5", "not run")]


def test_overhead() -> None:
    head = {
        "name": "PACS",
        "seconds": {"erm": 0.0472, "fishr": 0.0475},
        "peak_bytes": {"erm": 8_701_000_000, "fishr": None},
        "time": 0.58,
        "memory": None,
        "paper": {"time": 2.7, "memory": 0.2},
    }
    work = {"network": "resnet50", "size": 224, "batch": 32, "precision": "bf16", "rounds": 9}
    sheet = overhead_sheet({"heads": {"pacs": head}, "work": work, "device": "x"})
    assert sheet.rows == [
        ("PACS", "47.20 / 47.50", "+0.6 % (+2.7 %)", "8.701 / –", "not measured (+0.2 %)")
    ]
