"""The paper's published numbers as data, by the LaTeX label of the table they stand in."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from typing import Any

__all__ = ["labels", "published", "published_rows"]

_FILES = ("colored_mnist.json",)


def _tables() -> dict[str, dict[str, Any]]:
    # Read anew on every call: a caller may change what it was given, and nobody else sees it.
    tables: dict[str, dict[str, Any]] = {}
    for name in _FILES:
        tables.update(json.loads(resources.files(__name__).joinpath(name).read_text("utf-8")))
    return tables


def labels() -> list[str]:
    """Return the labels of all tables that are stored, sorted."""
    return sorted(_tables())


def published(label: str) -> dict[str, Any]:
    """Return one table of the paper: caption, source and cells, accuracies in percent.

    A table of one setting has `flip` (the probability that a label is flipped) and `rows`; one of
    several settings has `parts`, a list of such pairs. `rows` maps a method's key to its cells,
    each `[mean, standard deviation]`, or to None where the paper says that it was not possible.

    Args:
        label: the LaTeX label of the table, such as `"table:cmnist_25"`.
    """
    tables = _tables()
    if label not in tables:
        raise ValueError(_unknown("table", label, sorted(tables)))
    return tables[label]


def published_rows(label: str, flip: float) -> dict[str, dict[str, list[float]] | None]:
    """Return the rows of one table of the paper in the setting with this share of flipped labels.

    Args:
        label: as for `published`.
        flip: 0.25 or 0.0 on Colored MNIST.
    """
    table = published(label)
    parts: dict[float, dict[str, dict[str, list[float]] | None]] = {
        part["flip"]: part["rows"] for part in table.get("parts", [table])
    }
    if flip not in parts:
        choices = ", ".join(f"{known:g}" for known in parts)
        raise ValueError(f"{label} has no cells for flip {flip:g}; one of: {choices}")
    return parts[flip]


def _unknown(what: str, name: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} One of: {', '.join(choices)}"
