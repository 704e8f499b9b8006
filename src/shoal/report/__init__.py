"""Tables beside the paper's cells, and pages; nothing here imports torch.

- ``tables``, ``sheets``: tables of experiments and of any numbers;  ``demo``, ``demo_charts``: the
  demo's page;  ``analyses``, ``ablations``, ``diagnosis``, ``figures``: the paper's analyses
- ``benchmark``, ``grid``, ``grid_views``, ``markup``: a table of accuracies, as text of any format
- ``published``: the published cells;  ``departures``: which runs may not stand beside them
- ``sweeps``: the chapters of a sweep's report, with ``paired``, ``doubled``, ``failed``, ``order``
  and what ``sweep_notes`` says;  ``sweep_numbers``: all of it as data
- ``page``, ``page_data``, ``page_curves``: a sweep's page;  ``fit_page``, ``fit_chart``: a fit's
"""

from __future__ import annotations

from .demo_page import demo_page, demo_table
from .tables import Cell, markdown, terminal

__all__ = ["Cell", "demo_page", "demo_table", "markdown", "terminal"]
