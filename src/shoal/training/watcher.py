"""Watchers: callers that follow a training. Free of torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..results.records import Record

__all__ = ["Progress", "Watcher"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a training: updates done of ``steps``, images a second, the newest record."""

    done: int
    steps: int
    rate: float
    seconds_left: float | None
    record: Record | None


class Watcher:
    """Follows a training. Override the methods of interest; here all of them do nothing."""

    def starts(self) -> None:
        """Called just before a run is trained."""

    def progress(self, progress: Progress) -> None:
        """Called every half a second or so while updates are made."""

    def records(self, records: Sequence[Record]) -> None:
        """Called at the start and after every new record, with all records so far."""

    def note(self, line: str) -> None:
        """Called with a line that a user should read."""


SILENT = Watcher()
