"""Carry out a run in its folder: from the data to records and a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..algorithms.base import Algorithm
from ..catalogue import LOGS
from ..choices import choose
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..distributed import rank
from ..results.records import TIMING, Record, RunResult
from ..storage import explain_write_errors, write_json
from ..training.checkpoints import Checkpoints
from ..training.evaluation import Evaluation
from ..training.loop import Schedule, train
from ..training.placement import RunData
from ..training.step import Update
from ..training.watcher import SILENT, Progress, Watcher
from . import model
from .best_weights import WeightKeeper
from .diagnosis import Diagnoses, Gaps
from .folder import PREDICTIONS, RunFolder, write_predictions
from .machine import Machine, about_machine
from .prepare import evaluation_of_run, notes, prepare
from .run import Run


def execute(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: RunFolder,
    machine: Machine,
    watcher: Watcher = SILENT,
) -> RunResult:
    """Train to the end, from where the folder is, and leave records and model in it.

    In several processes all must call it, and the first alone writes.

    Args:
        method: the class that ``run.algorithm`` names.
    """
    if rank() > 0:
        return _assist(run, method, dataset, cache, folder, machine)
    checkpoints = Checkpoints(folder.checkpoints, run.identity, machine.checkpoint_every)

    def save(path: Path, record: Record) -> None:
        model.save(path, update.algorithm, run, placed.shape, dataset.classes, trained, record)

    keep = WeightKeeper(run, machine.keep_best, folder.path, save)
    if folder.done:
        checkpoints.delete()  # a kill may have come before it
        if machine.predictions and not (folder.path / PREDICTIONS).exists():
            watcher.note(
                f"{folder.path} is of a run that was made without predictions, and is done"
            )
        records = folder.records()
        if not records:
            raise ValueError(f"{folder.path} is done and has no records; move it away")
        keep.report_missing(records, watcher)
        watcher.records(records)
        return run.result(records, folder.path)
    model.check_saving()
    trained = dataset.without(run.test_domains).names
    placed, update = prepare(run, method, dataset, cache, machine)
    for note in notes(run, dataset, update.algorithm):
        watcher.note(note)
    evaluate = evaluation_of_run(update, placed.parts, machine.step == "compiled")
    records, timing = train(
        update,
        evaluate,
        _schedule(run),
        machine.step,
        checkpoints,
        _RecordWriter(folder, keep, checkpoints, watcher),
        _extra_metrics(update, placed, machine),
    )
    about = replace(timing, about=about_machine(machine)).to_json() | {
        "place": placed.where,
        "micro_batch": update.algorithm.micro_batch,  # if memory did not hold a whole update
    }
    with explain_write_errors(folder.path):
        save(folder.path, records[-1])
        keep.finish(records)
        if machine.predictions:
            write_predictions(folder, dataset, placed.parts, evaluate())
        write_json(folder.path / TIMING, about)
        folder.finish()
    checkpoints.delete()
    keep.report_missing(records, watcher)
    return run.result(records, folder.path)


class _RecordWriter(Watcher):
    """Writes new records, and the weights that a rule may choose, before ``watcher`` sees them."""

    def __init__(
        self, folder: RunFolder, keep: WeightKeeper, checkpoints: Checkpoints, watcher: Watcher
    ) -> None:
        self.folder, self.keep, self.checkpoints, self.watcher = folder, keep, checkpoints, watcher

    def progress(self, progress: Progress) -> None:
        self.watcher.progress(progress)

    def records(self, records: Sequence[Record]) -> None:
        while self.checkpoints.refused:
            self.note(self.checkpoints.refused.pop(0))
        with explain_write_errors(self.folder.path):
            self.keep(records)
            self.folder.write_records(records)
        self.watcher.records(records)

    def note(self, line: str) -> None:
        self.watcher.note(line)


def _assist(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: RunFolder,
    machine: Machine,
) -> RunResult:
    """Take part in a run that another process carries out: train, evaluate, and write nothing."""
    if folder.done:
        return run.result(folder.records(), folder.path)
    placed, update = prepare(run, method, dataset, cache, machine)
    evaluate = evaluation_of_run(update, placed.parts, machine.step == "compiled")
    checkpoints = Checkpoints(folder.checkpoints, run.identity, writes=False)
    extra = _extra_metrics(update, placed, machine)
    records, _ = train(
        update, evaluate, _schedule(run), machine.step, checkpoints, extra_metrics=extra
    )
    if machine.predictions:
        evaluate()
    return run.result(records, folder.path)


def _extra_metrics(
    update: Update, placed: RunData, machine: Machine
) -> Callable[[], Mapping[str, Any]]:
    """Return a function that computes the metrics of ``machine.log``."""
    if machine.log is None:
        return dict
    kinds: dict[str, Callable[[Evaluation], Callable[[], Mapping[str, Any]]]]
    kinds = {"gaps": Gaps, "diagnosis": Diagnoses}
    kind = kinds[choose("log", machine.log, LOGS)]
    return kind(evaluation_of_run(update, placed.samples, False))


def _schedule(run: Run) -> Schedule:
    return Schedule(run.protocol.steps, run.protocol.record_every)
