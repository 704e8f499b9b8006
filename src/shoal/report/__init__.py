"""Tables beside the paper's cells, and the demo's page; nothing here imports torch."""

from __future__ import annotations

from shoal.report.demo import demo_page, demo_table
from shoal.report.tables import Cell, markdown, terminal

__all__ = ["Cell", "demo_page", "demo_table", "markdown", "terminal"]
