"""Output of an experiment: numbers, tables and figures in one folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write(
    out: Path,
    command: str,
    result: Mapping[str, Any],
    sheets: Sequence[Any],
    figures: Mapping[str, Any],
) -> list[str]:
    """Write results.json, results.md and every figure as PNG and PDF; return the files' names."""
    import torch

    from ..report.figures import render
    from ..report.views import sheet_markdown
    from ..storage import write_aside, write_text

    about = {"command": command, "torch": torch.__version__, **result}
    # On one line: results.md is the file for people.
    write_text(out / "results.json", json.dumps(about, ensure_ascii=False) + "\n")
    write_text(out / "results.md", sheet_markdown(sheets))
    for name, figure in figures.items():
        for kind, content in render(figure).items():
            write_aside(out / f"{name}.{kind}", lambda file, content=content: file.write(content))  # type: ignore[misc]
    return ["results.json", "results.md", *(f"{name}.png and .pdf" for name in figures)]
