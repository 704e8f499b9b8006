"""Progress lines: the course of a training on stderr, one line for each record."""

from collections.abc import Sequence

from ..report.screen import print_lines
from ..results.records import Record
from ..training.watcher import Watcher


class ProgressLines(Watcher):
    """Writes the step and the mean terms of the loss of every new record."""

    def __init__(self) -> None:
        self._written = 0

    def records(self, records: Sequence[Record]) -> None:
        for record in records[self._written :]:
            terms = ", ".join(f"{name} {value:.4g}" for name, value in record.terms.items())
            print_lines(f"step {record.step + 1}: {terms}", stderr=True)
        self._written = len(records)
