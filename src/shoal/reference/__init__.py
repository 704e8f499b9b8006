"""Published numbers as data: the paper's tables by LaTeX label, and DomainBed's by data set."""

from __future__ import annotations

from .benchmark import (
    BENCHMARKS,
    PublishedRow,
    PublishedTable,
    Remarks,
    published_rules,
    published_table,
    remarks,
)
from .stored import labels, published, published_rows

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
