"""A run from its data to its records and its model, all in the folder of the run."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..algorithms.base import Algorithm
from ..catalogue import AVERAGES, LOGS
from ..choices import choose
from ..datasets import DomainDataset, splits
from ..datasets.cache import ImageCache
from ..distributed import rank
from ..results.averages import about_average, average_folder, by_average, read_averages
from ..results.records import HELD_OUT, TIMING, Record, RunResult, RunTiming
from ..storage import explain_write_errors, write_json, write_text
from ..tensor_files import write_safetensors
from ..training.averages import Averaging
from ..training.checkpoints import Checkpoints
from ..training.evaluation import Evaluation, EvaluationSet, Outcome, SplitKey, record_of
from ..training.loop import Schedule, train
from ..training.placement import DataRequest, RunData, place
from ..training.step import Update
from ..training.stopping import Stopping
from ..training.watcher import SILENT, Progress, Watcher
from . import model
from .best_weights import WeightKeeper
from .diagnosis import Diagnoses, Gaps
from .fitted import Fitted, training_rows
from .folder import CONFUSION, LOGITS, PREDICTIONS, RunFolder
from .machine import Machine, about_machine, one_thread
from .prepare import cautions_for, evaluation_of_run, prepare
from .run import Run
from .start import begin


def execute(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: RunFolder,
    machine: Machine,
    watcher: Watcher = SILENT,
) -> RunResult:
    """Train the run to its end, from its last checkpoint if it has one; return its records.

    In several processes all must call it; they share the batches, and only the first one writes.

    Args:
        method: the class that ``run.algorithm`` names.
    """
    # A small network on vectors is faster on one core of a CPU: threads wait for each other.
    small = dataset.kind == "vectors" and machine.device.type == "cpu"
    with one_thread() if small else nullcontext():
        return _execute(run, method, dataset, cache, folder, machine, watcher)


def _execute(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: RunFolder,
    machine: Machine,
    watcher: Watcher,
) -> RunResult:
    writes = rank() == 0
    checkpoints = Checkpoints(folder.checkpoints, run.identity, machine.checkpoint_every, writes)

    def save(path: Path, record: Record) -> None:
        with _measured(averaging, record):
            model.save(
                path,
                update.algorithm,
                run=run,
                shape=placed.shape,
                classes=dataset.classes,
                domains=trained,
                record=record,
                about=about_average(record),
            )

    keepers = {
        name: WeightKeeper(run, machine.keep_best, average_folder(folder.path, name), save)
        for name in ("", *AVERAGES)
    }
    if folder.done:
        if writes:
            checkpoints.delete()  # a kill may have come before it
        return _finished(run, folder, machine, keepers, watcher)
    model.check_saving()
    if issubclass(method, Fitted):
        return _fit(run, method, dataset, folder, machine, watcher)
    trained = dataset.without(run.test_domains).names
    placed, update = prepare(run, method, dataset, cache, machine)
    for line in cautions_for(run, dataset, update.algorithm):
        watcher.note(line)
    before = time.perf_counter()
    begin(run, update, placed, folder.path, watcher if writes else SILENT)
    beginning = time.perf_counter() - before
    evaluate = evaluation_of_run(update, placed.parts, machine.step)
    averaging = _averaging(run, update, evaluate, machine)
    writer = _RecordWriter(folder, keepers, checkpoints, averaging, watcher)
    records, timing = train(
        update,
        evaluate,
        schedule=Schedule(run.protocol.steps, run.protocol.record_every),
        kind=machine.step,
        checkpoints=checkpoints,
        watcher=writer if writes else SILENT,
        extra_metrics=_extra_metrics(update, placed, machine),
        averaging=averaging,
        stopping=_stopping(run, update, evaluate),
    )
    rows = {"": records, **by_average(_averaged(averaging))}
    outcomes = evaluate() if machine.predictions else None
    logits = _logits(evaluate, averaging, rows) if machine.predictions else {}
    if not writes:
        return run.result(records, folder.path)
    with explain_write_errors(folder.path):
        if run.protocol.stop != "last":
            folder.write_records(records)  # without the later ones
        folder.tidy_averages(rows)
        for name, own in rows.items():
            save(average_folder(folder.path, name), own[-1])
            keepers[name].finish(own)
        if outcomes is not None:
            _write_predictions(folder, dataset, placed.parts, outcomes)
            write_safetensors(folder.path / LOGITS, logits)
        timing = replace(
            timing, preparing=timing.preparing + beginning, about=about_machine(machine)
        )
        about = {
            **timing.to_json(),
            "place": placed.where,
            "micro_batch": update.algorithm.micro_batch,  # if memory did not hold a whole update
        }
        write_json(folder.path / TIMING, about)
        folder.finish()
    checkpoints.delete()
    for name, own in rows.items():
        keepers[name].report_missing(own, watcher)
    return run.result(records, folder.path)


def _fit(
    run: Run,
    method: type[Fitted],
    dataset: DomainDataset,
    folder: RunFolder,
    machine: Machine,
    watcher: Watcher,
) -> RunResult:
    """Fit the run's model to all kept rows at once, in the first process, and write its files."""
    if rank() > 0:
        return run.result([], folder.path)
    begin = time.perf_counter()
    waiting = Progress(done=0, steps=1, rate=0.0, seconds_left=None, record=None)
    watcher.progress(waiting)
    parts = splits(dataset, run.trial, run.protocol.holdout)
    wanted = DataRequest(test_domains=run.test_domains, trial=run.trial, size=1)
    placed = place(dataset, parts, None, wanted, torch.device("cpu"))
    trained = dataset.without(run.test_domains)
    rows = training_rows(run, trained, {name: parts[name].kept for name in trained.names})
    network = method.fit_network(
        run,
        torch.cat([domain.tensor[rows[domain.name]] for domain in trained.domains]),
        torch.cat([domain.labels[rows[domain.name]] for domain in trained.domains]),
        torch.cat([torch.full((len(rows[name]),), e) for e, name in enumerate(trained.names)]),
        len(dataset.classes),
    )
    algorithm = method(network, len(trained.domains))
    fitted = time.perf_counter()
    evaluate = Evaluation(algorithm, placed.parts, lambda rows: rows, nullcontext)
    outcomes, logits = evaluate.with_logits()
    records = [record_of(0, {}, outcomes, {})]
    done = time.perf_counter()
    timing = RunTiming(
        preparing=0.0,
        updating=fitted - begin,
        evaluating=done - fitted,
        updates=1,
        about=about_machine(machine),
    )
    with explain_write_errors(folder.path):
        folder.write_records(records)
        model.save(
            folder.path,
            algorithm,
            run=run,
            shape=placed.shape,
            classes=dataset.classes,
            domains=trained.names,
            record=records[-1],
        )
        if machine.predictions:
            _write_predictions(folder, dataset, placed.parts, outcomes)
            write_safetensors(folder.path / LOGITS, _by_name(placed.parts, {"": logits}))
        write_json(folder.path / TIMING, timing.to_json())
        folder.finish()
    watcher.records(records)
    watcher.progress(replace(waiting, done=1, seconds_left=0.0, record=records[-1]))
    return run.result(records, folder.path)


def _finished(
    run: Run,
    folder: RunFolder,
    machine: Machine,
    keepers: Mapping[str, WeightKeeper],
    watcher: Watcher,
) -> RunResult:
    """Return the records of a run that is done; note what it was trained without."""
    if machine.predictions and not (folder.path / PREDICTIONS).exists():
        watcher.note(f"{folder.path} is done and was trained without --predictions")
    records = folder.records()
    if not records:
        raise ValueError(f"{folder.path} is done but has no records; move it away")
    if machine.keep_best:
        rows = {"": records, **by_average(read_averages(folder.path))}
        for name, own in rows.items():
            keepers[name].report_missing(own, watcher)
    watcher.records(records)
    return run.result(records, folder.path)


class _RecordWriter(Watcher):
    """Writes records, and weights that a rule may choose, before ``watcher`` sees them."""

    def __init__(
        self,
        folder: RunFolder,
        keepers: Mapping[str, WeightKeeper],
        checkpoints: Checkpoints,
        averaging: Averaging | None,
        watcher: Watcher,
    ) -> None:
        self.folder, self.keepers = folder, keepers
        self.checkpoints, self.averaging, self.watcher = checkpoints, averaging, watcher

    def progress(self, progress: Progress) -> None:
        self.watcher.progress(progress)

    def records(self, records: Sequence[Record]) -> None:
        while self.checkpoints.refused:
            self.note(self.checkpoints.refused.pop(0))
        averaged = _averaged(self.averaging)
        rows = {"": records, **by_average(averaged)}
        with explain_write_errors(self.folder.path):
            for name, keeper in self.keepers.items():
                keeper(rows.get(name, ()))
            self.folder.write_averages(averaged)
            self.folder.write_records(records)
        self.watcher.records(records)

    def note(self, line: str) -> None:
        self.watcher.note(line)


def _extra_metrics(
    update: Update, placed: RunData, machine: Machine
) -> Callable[[], Mapping[str, Any]]:
    """Return a function that computes the metrics of ``machine.log``."""
    if machine.log is None:
        return dict
    kinds: dict[str, Callable[[Evaluation], Callable[[], Mapping[str, Any]]]]
    kinds = {"gaps": Gaps, "diagnosis": Diagnoses}
    kind = kinds[choose("log", machine.log, LOGS)]
    return kind(evaluation_of_run(update, placed.samples))


def _averaging(
    run: Run, update: Update, evaluate: Evaluation, machine: Machine
) -> Averaging | None:
    """Return what follows the averages of the run; None if none are asked for."""
    if not machine.averages:
        return None
    held_out = _held_out(run, evaluate)
    return Averaging(update, evaluate, held_out, run.protocol.steps, machine.averages)


def _stopping(run: Run, update: Update, evaluate: Evaluation) -> Stopping | None:
    """Return what decides which weights the run ends with; None for the last ones."""
    if run.protocol.stop == "last":
        return None
    algorithm = update.algorithm
    held_out = _held_out(run, evaluate)
    return Stopping(algorithm, evaluate, held_out, lambda: model.prediction_tensors(algorithm))


def _held_out(run: Run, evaluate: Evaluation) -> list[EvaluationSet]:
    """Return the held-out part of each training domain."""
    return [
        part
        for (domain, split), part in evaluate.parts.items()
        if split == HELD_OUT and domain not in run.test_domains
    ]


def _averaged(averaging: Averaging | None) -> list[Record]:
    """Return the records of averages so far."""
    return [] if averaging is None else averaging.records


def _measured(averaging: Averaging | None, record: Record) -> AbstractContextManager[None]:
    """Return a context in which the method has the weights that the newest record measured."""
    return nullcontext() if averaging is None else averaging.as_recorded(record)


def _logits(
    evaluate: Evaluation, averaging: Averaging | None, rows: Mapping[str, Sequence[Record]]
) -> dict[str, Tensor]:
    """Return the logits of every evaluated split, and the labels, as ``_by_name`` does."""
    found = {}
    for name, records in rows.items():
        with _measured(averaging, records[-1]):
            found[name] = evaluate.with_logits()[1]
    return _by_name(evaluate.parts, found)


def _by_name(
    parts: Mapping[SplitKey, EvaluationSet], logits: Mapping[str, Mapping[SplitKey, Tensor]]
) -> dict[str, Tensor]:
    """Return labels and logits by their names in a file.

    They are "labels/domain/split", "last/domain/split", and that with the name of each average.
    """
    found = {f"labels/{domain}/{split}": part.labels for (domain, split), part in parts.items()}
    for name, mine in logits.items():
        for (domain, split), one in mine.items():
            found[f"{name or 'last'}/{domain}/{split}"] = one
    return found


def _write_predictions(
    folder: RunFolder,
    dataset: DomainDataset,
    parts: Mapping[SplitKey, EvaluationSet],
    outcomes: Mapping[SplitKey, Outcome],
) -> None:
    """Write the prediction for every evaluated image, and the confusion matrices."""
    lines: list[str] = []
    confusion: dict[str, dict[str, Any]] = {}
    for (domain, split), outcome in outcomes.items():
        for index, label, prediction, probability in zip(
            parts[domain, split].indices.tolist(),
            outcome.labels.tolist(),
            outcome.predictions.tolist(),
            outcome.confidences.tolist(),
            strict=True,
        ):
            line: dict[str, Any] = {"domain": domain, "split": split, "index": index}
            if not dataset.in_memory:
                line["file"] = dataset[domain].files[index].name
            line["label"] = dataset.classes[label]
            line["prediction"] = dataset.classes[prediction]
            line["probability"] = probability
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        table = outcome.confusion(len(dataset.classes)).tolist()
        confusion.setdefault(domain, {})[split] = table
    write_text(folder.path / PREDICTIONS, "".join(lines))
    write_json(folder.path / CONFUSION, {"classes": list(dataset.classes), "counts": confusion})
