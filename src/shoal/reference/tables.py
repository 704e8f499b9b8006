"""Published tables: the paper's main tables and ablations, and DomainBed's own.

Methods, data sets and domains have shoal's names; the names that a publication prints are stored
with them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..choices import choose

_FILES = ("colored_mnist.json", "benchmark.json", "domainbed.json", "analyses.json")


def read(file: str) -> Any:
    """Return the JSON of one file of this package."""
    # Read again on every call, so that a caller can change what it gets.
    return json.loads(resources.files("shoal.reference").joinpath(file).read_text("utf-8"))


def labels() -> list[str]:
    """Return the labels of all stored tables, sorted."""
    return sorted(_tables())


def published(label: str) -> dict[str, Any]:
    """Return one table: caption, source and cells, accuracies in percent.

    A table of one setting has the setting and ``rows``; a table of several settings has ``parts``,
    a list of such tables. The setting is ``flip`` (the probability that a label is flipped) in the
    IRM setup, and ``rule`` (the selection rule) in DomainBed's. ``published_rows`` reads the first
    kind, ``published_table`` the second.

    Args:
        label: the LaTeX label of the paper's table, such as ``"table:cmnist_25"``, or
            ``"domainbed:"`` and a data set.
    """
    tables = _tables()
    return tables[choose("table", label, tables)]


def published_rows(label: str, flip: float) -> dict[str, dict[str, list[float]] | None]:
    """Return the rows of one table of the paper in the setting with this share of flipped labels.

    A row maps a column to ``[mean, standard deviation]``; None if the paper states that it was not
    possible.

    Args:
        label: as for ``published``.
        flip: 0.25 or 0.0 on Colored MNIST.
    """
    table = published(label)
    parts: dict[float, dict[str, dict[str, list[float]] | None]] = {
        part["flip"]: part["rows"] for part in table.get("parts", [table]) if "flip" in part
    }
    if not parts:
        raise ValueError(f"{label} is not a table of the IRM setup; read it with published_table")
    if flip not in parts:
        choices = ", ".join(f"{known:g}" for known in parts)
        raise ValueError(f"{label} has no cells for flip {flip:g}; one of: {choices}")
    return parts[flip]


def _tables() -> dict[str, dict[str, Any]]:
    return {label: table for file in _FILES for label, table in read(file).items()}


#: The label of the paper's main table for each selection rule.
BENCHMARKS: Mapping[str, str] = {
    "test-domain": "table:db_all_oracle",
    "training-domain": "table:db_all_training",
}


@dataclass(frozen=True)
class PublishedRow:
    """One method: cells ``(mean, standard error)`` by column, and its other numbers, as printed.

    ``ranking`` has ``arithmetic``, ``geometric`` and ``median`` in the paper's main tables, and is
    empty elsewhere.
    """

    name: str
    cells: Mapping[str, tuple[float, float]]
    average: float
    ranking: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One table for one selection rule.

    Args:
        slip: an error in the publication's own marks; mostly empty.
        columns: the heading of each data set or domain.
    """

    label: str
    rule: str
    caption: str
    source: str
    note: str
    slip: str
    columns: Mapping[str, str]
    rows: Mapping[str, PublishedRow]


@dataclass(frozen=True)
class Remarks:
    """How published cells were obtained, if today's code differs.

    Args:
        sweep: on the whole sweep behind the rows ERM to RSC.
        methods: on single methods.
    """

    sweep: tuple[str, ...]
    methods: Mapping[str, str]


def published_rules(label: str) -> list[str]:
    """Return the selection rules of a published table; none if there is no such table."""
    try:
        table = published(label)
    except ValueError:
        return []
    return [part["rule"] for part in table.get("parts", [table]) if "rule" in part]


def published_table(label: str, rule: str) -> PublishedTable:
    """Return one published table for one selection rule.

    Args:
        label: as for ``published``.
        rule: ``"test-domain"``, ``"training-domain"`` or ``"leave-one-domain-out"``.
    """
    table = published(label)
    rows = {part["rule"]: part["rows"] for part in table.get("parts", [table]) if "rule" in part}
    if not rows:
        raise ValueError(f"{label} is not a table of DomainBed's protocol; read it with published")
    return PublishedTable(
        label=label,
        rule=choose(f"selection rule of {label}", rule, rows),
        caption=table["caption"],
        source=table["source"],
        note=table.get("note", ""),
        slip=table.get("slip", ""),
        columns=table["columns"],
        rows={
            method: PublishedRow(
                row["name"],
                {column: (cell[0], cell[1]) for column, cell in row["cells"].items()},
                row["average"],
                row.get("ranking", {}),
            )
            for method, row in rows[rule].items()
        },
    )


def remarks() -> Remarks:
    """Return how the published cells of DomainBed's protocol were obtained."""
    stored = read("remarks.json")
    return Remarks(tuple(stored["sweep"]), stored["methods"])
