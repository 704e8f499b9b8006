"""Published tables of DomainBed's protocol: the paper's main tables and ablations, DomainBed's own.

Methods have the names of shoal's registry and its variants, columns those of its data sets and
domains; what the publication prints for them is kept beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .stored import chosen, published, read

BENCHMARKS: Mapping[str, str] = {
    "test-domain": "table:db_all_oracle",
    "training-domain": "table:db_all_training",
}
"""The label of the paper's main table for each selection rule."""


@dataclass(frozen=True)
class PublishedRow:
    """One method: cells `(mean, standard error)` by column, and its other numbers, all as printed.

    `ranking` has `arithmetic`, `geometric` and `median` in the paper's main tables, and is empty
    elsewhere.
    """

    name: str
    cells: Mapping[str, tuple[float, float]]
    average: float
    ranking: Mapping[str, float]


@dataclass(frozen=True)
class PublishedTable:
    """One table for one selection rule; `columns` maps a data set or a domain to its heading."""

    label: str
    rule: str
    caption: str
    source: str
    note: str
    slip: str
    """Where the publication's own marks are wrong; mostly empty."""
    columns: Mapping[str, str]
    rows: Mapping[str, PublishedRow]


@dataclass(frozen=True)
class Remarks:
    """What published cells were obtained with, where today's code differs."""

    sweep: tuple[str, ...]
    """Of the whole sweep behind the rows ERM to RSC."""
    methods: Mapping[str, str]
    """Of single methods."""


def published_rules(label: str) -> list[str]:
    """Return the selection rules that a published table has; none where there is no such table."""
    try:
        table = published(label)
    except ValueError:
        return []
    return [part["rule"] for part in table.get("parts", [table]) if "rule" in part]


def published_table(label: str, rule: str) -> PublishedTable:
    """Return one published table for one selection rule.

    Args:
        label: as for `published`.
        rule: `"test-domain"`, `"training-domain"` or `"leave-one-domain-out"`.
    """
    table = published(label)
    rows = {part["rule"]: part["rows"] for part in table.get("parts", [table]) if "rule" in part}
    if not rows:
        raise ValueError(f"{label} is no table of DomainBed's protocol; read it with published")
    return PublishedTable(
        label,
        chosen(f"selection rule of {label}", rule, rows),
        table["caption"],
        table["source"],
        table.get("note", ""),
        table.get("slip", ""),
        table["columns"],
        {
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
    """Return what to know about the published cells of DomainBed's protocol."""
    stored = read("remarks.json")
    return Remarks(tuple(stored["sweep"]), stored["methods"])
