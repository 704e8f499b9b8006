"""Published numbers as data: the paper's tables by LaTeX label, and DomainBed's by data set."""

from .tables import (
    BENCHMARKS,
    PublishedRow,
    PublishedTable,
    Remarks,
    labels,
    published,
    published_rows,
    published_rules,
    published_table,
    remarks,
)

__all__ = [
    "BENCHMARKS",
    "PublishedRow",
    "PublishedTable",
    "Remarks",
    "labels",
    "published",
    "published_rows",
    "published_rules",
    "published_table",
    "remarks",
]
