"""The page of a sweep: one HTML file with its data, style and script inside.

The script builds the page from a block of JSON and sets every name as text, never as markup. Its
hash is the only one that the page's policy lets run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from ..results.records import Failure, Finished
from .departures import Searched
from .page_data import Samples, page_data
from .sweeps import not_searched

__all__ = ["sweep_page"]

SCRIPTS = (
    "sweep_tables.js",
    "sweep_charts.js",
    "sweep_runs.js",
    "sweep_gaps.js",
    "sweep_page.js",
)
"""One script in this order."""


def sweep_page(
    runs: Sequence[Finished],
    rules: Iterable[str],
    failed: Sequence[Failure] = (),
    samples: Samples | None = None,
    searched: Searched = not_searched,
) -> str:
    """Return the sweep as one HTML page that needs no other file and no network."""
    import jinja2

    script = "\n".join(map(_file, SCRIPTS))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_file("sweep.html.jinja")).render(
        title=f"Sweep of {len(runs):,} {'run' if len(runs) == 1 else 'runs'}",
        data=_block(page_data(runs, rules, failed, samples, searched)),
        style=_file("sweep.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _file(name: str) -> str:
    return resources.files("shoal.report").joinpath(name).read_text("utf-8")


def _block(data: dict[str, Any]) -> str:
    """Return JSON in which nothing can end the block it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
