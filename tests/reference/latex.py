"""The paper's LaTeX, where it lies beside the repository, and the cells of its tables."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:[^$\d]*\$\\pm\$\s*(\d+\.\d))?")


def shared_text(name: str) -> str:
    """Return a text that is not part of the repository, or skip the test."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"data not present: {name}")
    return path.read_text("utf-8")


@dataclass(frozen=True)
class LatexCell:
    """A number and its error as they are printed, and how the number is marked."""

    text: str
    error: str | None
    bold: bool
    underlined: bool
    gray: bool


def latex_rows(text: str, label: str) -> list[tuple[list[str], list[LatexCell]]]:
    """Return the rows of the tabular with this label: leading words, then cells.

    The first cell is the first field with ± in it; what stands before is words.
    """
    at = text.index(rf"\label{{{label}}}")
    start = text.rindex(r"\begin{table", 0, at)
    table = text[start : text.index(r"\end{table", at)]
    rows = []
    for line in table.splitlines():
        if r"\pm" not in line:
            continue
        fields = [field.strip() for field in line.strip().removesuffix(r"\\").split("&")]
        first = next(i for i, field in enumerate(fields) if r"\pm" in field)
        rows.append((fields[:first], [latex_cell(field) for field in fields[first:]]))
    return rows


def latex_cell(field: str) -> LatexCell:
    bare = re.sub(r"\\textcolor\{gray\}", "", field)
    found = NUMBER.search(bare)
    assert found, field
    return LatexCell(
        found[1],
        found[2],
        bold=r"\textbf" in field,
        underlined=r"\underline" in field,
        gray=r"\textcolor{gray}" in field,
    )
