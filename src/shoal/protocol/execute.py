"""Carry out a run in its folder: from the data to records and a model."""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..algorithms.base import Algorithm
from ..datasets import Domain, DomainDataset, splits
from ..datasets.cache import ImageCache
from ..distributed import processes, rank
from ..networks import measure_inputs
from ..storage import write_json, write_text
from ..training.batches import Batches, Normalise, scaled
from ..training.checkpoints import Checkpoints
from ..training.evaluation import Evaluation, Outcome, Part, Place
from ..training.loop import Progress, Schedule, Timing, train
from ..training.placing import Placed, Wanted, place
from ..training.step import Kind, Update, precision_context
from . import model
from .folder import Folder, writing
from .gaps import EXAMPLES, Gaps
from .keeping import Keeping
from .run import Run

TIMING, PREDICTIONS, CONFUSION = "timing.json", "predictions.jsonl", "confusion.json"
Record = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """How a run is carried out here: nothing of it changes what the run is.

    Args:
        device: where it is trained.
        step: how far a step is captured; the method may stop before.
        place: of the images: "auto", "device" or "host".
        weights: what the network begins with: "imagenet", a file, or None.
        checkpoint_every: seconds; by default as few checkpoints as cost 2 % of the time.
        predictions: whether to write what the model says of every image.
        gaps: whether records hold the gaps between the training domains.
        keep_best: rules of selection; weights that they may choose are kept.
        micro_batch: images that go through a large network at a time; by default all of an
            update, and fewer where memory runs out.
    """

    device: torch.device
    step: Kind = "compiled"
    place: str = "auto"
    weights: str | Path | None = None
    checkpoint_every: float | None = None
    predictions: bool = False
    gaps: bool = False
    keep_best: tuple[str, ...] = ()
    micro_batch: int | None = None


@dataclass(frozen=True)
class Result:
    """The records of a run, and what it took this process."""

    records: list[Record]
    timing: Timing | None


def execute(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: Folder,
    machine: Machine,
    told: Callable[[Progress], object] = lambda _: None,
    recorded: Callable[[list[Record]], object] = lambda _: None,
    noted: Callable[[str], object] = lambda _: None,
) -> Result:
    """Train to the end, from where the folder is, and leave records and model in it.

    In several processes all must call it, and the first alone writes.

    Args:
        method: the class that ``run.algorithm`` names.
        told, recorded: as in ``train``.
        noted: called with what a user should know, a line each.
    """
    if rank() > 0:
        return _assist(run, method, dataset, cache, folder, machine)
    checkpoints = Checkpoints(folder.checkpoints, run.identity, machine.checkpoint_every)

    def save(path: Path, record: Mapping[str, Any]) -> None:
        about = (placed.shape, dataset.classes, trained, record)
        model.save(path, update.algorithm, run, *about)

    keep = Keeping(run, machine.keep_best, folder.path, save)
    if folder.done:
        checkpoints.delete()  # a kill may have come before it
        if machine.predictions and not (folder.path / PREDICTIONS).exists():
            noted(f"{folder.path} is of a run that was made without predictions, and is done")
        records = folder.records()
        if not records:
            raise ValueError(f"{folder.path} is done and has no records; move it away")
        keep.note(records, noted)
        recorded(records)
        return Result(records, None)
    model.check_saving()
    trained = dataset.without(run.test_domains).names
    placed, update = prepare(run, method, dataset, cache, machine)
    for note in notes(run, dataset):
        noted(note)

    def write(records: list[Record]) -> None:
        while checkpoints.refused:
            noted(checkpoints.refused.pop(0))
        with writing(folder.path):
            keep(records)
            folder.write_records(records)
        recorded(records)

    evaluate = evaluation_of(update, placed.parts, machine.step == "compiled")
    measured = _measured(update, placed, machine)
    records, timing = train(
        update, evaluate, _schedule(run), machine.step, checkpoints, told, write, measured, noted
    )
    about = asdict(timing) | {"machine": _machine(machine), "place": placed.where}
    with writing(folder.path):
        save(folder.path, records[-1])
        keep.finish(records)
        if machine.predictions:
            _write_predictions(folder, dataset, placed.parts, evaluate())
        write_json(folder.path / TIMING, about)
        folder.finish()
    checkpoints.delete()
    keep.note(records, noted)
    return Result(records, timing)


def _assist(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    folder: Folder,
    machine: Machine,
) -> Result:
    """Take part in a run that another process carries out: train, evaluate, and write nothing."""
    if folder.done:
        return Result(folder.records(), None)
    placed, update = prepare(run, method, dataset, cache, machine)
    evaluate = evaluation_of(update, placed.parts, machine.step == "compiled")
    checkpoints = Checkpoints(folder.checkpoints, run.identity, writes=False)
    measured = _measured(update, placed, machine)
    records, timing = train(
        update, evaluate, _schedule(run), machine.step, checkpoints, measured=measured
    )
    if machine.predictions:
        evaluate()
    return Result(records, timing)


def _measured(update: Update, placed: Placed, machine: Machine) -> Callable[[], Record]:
    """Return what measures what records hold beside accuracies."""
    return Gaps(evaluation_of(update, placed.samples, False)) if machine.gaps else dict


def _schedule(run: Run) -> Schedule:
    return Schedule(run.protocol.steps, run.protocol.record_every)


def prepare(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    machine: Machine,
) -> tuple[Placed, Update]:
    """Return the run's data, and its method with its batches before the first update."""
    protocol, device = run.protocol, machine.device
    wanted = Wanted(
        run.test_domains,
        run.trial,
        run.hparams["batch_size"],
        protocol.balanced,
        protocol.augment,
        protocol.images == "exact",
        protocol.evaluate,
        EXAMPLES if machine.gaps else 0,
    )
    parts = splits(dataset, run.trial, protocol.holdout)
    placed = place(dataset, parts, cache, wanted, device, machine.place)
    # Tensor cores want channels last; small images only gain by it where layers are fused.
    fused = device.type == "cuda" and machine.step == "compiled"
    channels_last = model.lies_last(placed.shape) or (fused and len(placed.shape) == 3)
    algorithm = model.build(
        run,
        method,
        placed.shape,
        len(dataset.classes),
        len(placed.sources),
        machine.weights,
        device,
        channels_last,
    )
    if len(placed.shape) == 1:
        # Of what is trained on alone: nothing is known of a domain that is left out.
        trained = dataset.without(run.test_domains).domains
        measure_inputs(
            algorithm, torch.cat([_vectors(domain)[parts[domain.name].kept] for domain in trained])
        )
    algorithm.optimise(protocol.optimisation)
    algorithm.micro_batch = machine.micro_batch
    normalise = Normalise(getattr(algorithm.model, "preprocessing", None), channels_last, device)
    return placed, Update(algorithm, Batches(placed.sources, normalise), protocol.precision)


def _vectors(domain: Domain) -> Tensor:
    if not isinstance(domain.images, Tensor):
        raise TypeError(f"the domain {domain.name!r} has files, and no vectors")
    return domain.images


def notes(run: Run, dataset: DomainDataset) -> list[str]:
    """Return what a user should know of the data before the run, a line each."""
    found = []
    size = run.hparams["batch_size"]
    for name, split in splits(dataset, run.trial, run.protocol.holdout).items():
        if name not in run.test_domains and len(split.kept) < size:
            found.append(
                f"the domain {name!r} has {len(split.kept)} images to train on, fewer than a batch "
                f"of {size}: images repeat within a batch"
            )
        if not len(split.held_out):
            found.append(
                f"the domain {name!r} has {len(dataset[name])} images, too few to hold any out: "
                "it has no part in the selection of models"
            )
    large = not isinstance(dataset.domains[0].images, torch.Tensor)
    if large and run.protocol.weights is None and run.protocol.frozen_statistics:
        found.append(
            "the network begins with drawn weights, and the statistics of batch norm stay at 0 and "
            "1, which normalises nothing; let them follow the data, or begin with weights"
        )
    for name, classes in dataset.missing_classes().items():
        found.append(f"the domain {name!r} has no images of {', '.join(classes)}")
    return found


def evaluation_of(update: Update, parts: dict[Place, Part], compiled: bool) -> Evaluation:
    """Return what measures the update's method on these parts of its data."""
    compiled = compiled and processes() == 1
    normalise = update.batches.normalise
    precision = partial(precision_context, update.precision, update.algorithm.device)
    return Evaluation(
        update.algorithm, parts, lambda images: normalise(scaled(images)), precision, compiled
    )


def _write_predictions(
    folder: Folder, dataset: DomainDataset, parts: Mapping[Place, Part], found: dict[Place, Outcome]
) -> None:
    """Write what the model says of every image that was evaluated, and how it confuses classes."""
    lines: list[str] = []
    confusion: dict[str, dict[str, Any]] = {}
    for (domain, split), outcome in found.items():
        images = dataset[domain].images
        for k, index in enumerate(parts[domain, split].indices.tolist()):
            line: dict[str, Any] = {"domain": domain, "split": split, "index": index}
            if not isinstance(images, torch.Tensor):
                line["file"] = images[index].name
            line["label"] = dataset.classes[int(outcome.labels[k])]
            line["prediction"] = dataset.classes[int(outcome.predictions[k])]
            line["probability"] = float(outcome.confidences[k])
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        table = outcome.confusion(len(dataset.classes)).tolist()
        confusion.setdefault(domain, {})[split] = table
    write_text(folder.path / PREDICTIONS, "".join(lines))
    write_json(folder.path / CONFUSION, {"classes": list(dataset.classes), "counts": confusion})


def _machine(machine: Machine) -> dict[str, Any]:
    cuda = machine.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(machine.device) if cuda else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
