"""Reports: tables, figures and pages of results, some next to published cells; free of torch.

- ``sweep``: the report of a sweep for each selection rule, with ``notes``; ``comparable`` decides
  which runs are shown next to published cells, ``published`` has those cells
- ``grid``, ``views``: tables of accuracies, and all tables and reports in every text format;
  ``as_json``: a report as data; ``tables``: results next to the paper's cells
- ``page``, ``fit_page``, ``demo_page`` with ``demo_charts``: HTML pages
- ``diagnosis``, ``figures``: figures and their style
"""

from .demo_page import demo_page, demo_table
from .tables import Cell, markdown, terminal

__all__ = ["Cell", "demo_page", "demo_table", "markdown", "terminal"]
