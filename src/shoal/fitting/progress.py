"""Progress: what a training or a fit shows to who calls it from Python."""

from collections.abc import Sequence
from datetime import timedelta

from ..notebook import Bars, in_notebook
from ..report.screen import print_lines
from ..results.records import Record
from ..training.watcher import SILENT, Progress, Watcher
from .leave_one_out import FitWatcher
from .schedule import FitProgress

ALL = "all runs"


def training_watcher(title: str, verbose: bool | int) -> Watcher:
    """Return what shows a training, if ``verbose``: a bar in a notebook, lines on stderr else."""
    if not verbose:
        return SILENT
    return TrainingBar(title) if in_notebook() else ProgressLines()


def fit_watcher() -> FitWatcher:
    """Return what shows a fit in a notebook; elsewhere nothing is shown."""
    return FitBars() if in_notebook() else FitWatcher()


class ProgressLines(Watcher):
    """Writes to stderr the step and the mean terms of the loss of every new record."""

    def __init__(self) -> None:
        self._written = 0

    def records(self, records: Sequence[Record]) -> None:
        for record in records[self._written :]:
            terms = ", ".join(f"{name} {value:.4g}" for name, value in record.terms.items())
            print_lines(f"step {record.step + 1}: {terms}", stderr=True)
        self._written = len(records)


class TrainingBar(Watcher):
    """Shows a training as a bar in a notebook."""

    def __init__(self, title: str) -> None:
        self.title, self.bars = title, Bars()

    def progress(self, progress: Progress) -> None:
        self.bars.show(self.title, progress.done, progress.steps, _words(progress))

    def note(self, line: str) -> None:
        self.bars.note(line)


class FitBars(FitWatcher):
    """Shows a fit in a notebook: a bar for all runs, one for the current run, and notes."""

    def __init__(self) -> None:
        self.bars, self.title = Bars(), ""

    def amount(self, name: str, done: int, total: int, unit: str = "images") -> None:
        self.bars.show(name, done, total, unit)
        if done == total:
            self.bars.remove(name)

    def run(self, title: str, progress: Progress | None, forecast: FitProgress) -> None:
        if title != self.title:
            self.bars.remove(self.title)
            self.title = title
        if forecast.total > 1:
            self.bars.show(ALL, forecast.done, forecast.total, _time_left(forecast.left))
        else:  # the last one, of the model that is deployed
            self.bars.remove(ALL)
        if progress is not None:
            self.bars.show(title, progress.done, progress.steps, _words(progress))
            if progress.done == progress.steps and forecast.total <= 1:
                self.bars.remove(title)

    def note(self, line: str) -> None:
        self.bars.note(line)


def _words(progress: Progress) -> str:
    """Return the loss and the time left, as far as they are known."""
    loss = progress.record.terms.get("loss") if progress.record else None
    left = "" if progress.done == progress.steps else _time_left(progress.seconds_left)
    return ", ".join(filter(None, ("" if loss is None else f"loss {loss:.3g}", left)))


def _time_left(seconds: float | None) -> str:
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"
