"""Output of an experiment: numbers, tables and figures in one folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..report.figures import render
from ..report.views import Sheet, sheet_markdown
from ..storage import write_aside, write_text


def write(
    out: Path,
    command: str,
    result: Mapping[str, Any],
    sheets: Sequence[Sheet],
    figures: Mapping[str, Any],
) -> list[str]:
    """Write results.json, results.md and every figure as PNG and PDF; return the files' names."""
    about = {"command": command, "torch": torch.__version__, **result}
    # On one line: results.md is the file for people.
    write_text(out / "results.json", json.dumps(about, ensure_ascii=False) + "\n")
    write_text(out / "results.md", sheet_markdown(sheets))
    for name, figure in figures.items():
        for kind, content in render(figure).items():
            _write_bytes(out / f"{name}.{kind}", content)
    return ["results.json", "results.md", *(f"{name}.png and .pdf" for name in figures)]


def _write_bytes(path: Path, content: bytes) -> None:
    write_aside(path, lambda file: file.write(content))
