"""Preparation of a run: its data and its method, ready for the first update."""

from functools import partial

import torch
from torch import nn

from ..algorithms.base import Algorithm
from ..catalogue import STARTS, StepKind, title_of
from ..datasets import DomainDataset, splits
from ..datasets.cache import ImageCache
from ..distributed import processes
from ..networks import measure_inputs
from ..training.batches import Batches, Normalise, scaled
from ..training.evaluation import Evaluation, EvaluationSet, SplitKey
from ..training.placement import DataRequest, RunData, Sampling, place
from ..training.step import Update, precision_context
from . import model
from .diagnosis import EXAMPLES
from .machine import Machine
from .run import Run


def prepare(
    run: Run,
    method: type[Algorithm],
    dataset: DomainDataset,
    cache: ImageCache | None,
    machine: Machine,
    sampling: Sampling | None = None,
    network: nn.Module | None = None,
) -> tuple[RunData, Update]:
    """Return the data of the run, and its method with batches, before the first update.

    Args:
        sampling: the examples to train on and their weights; None for all that are not held out.
        network: to train, as in ``model.build``.
    """
    protocol, device = run.protocol, machine.device
    wanted = DataRequest(
        test_domains=run.test_domains,
        trial=run.trial,
        size=run.hparams["batch_size"],
        balanced=protocol.balanced,
        augment=protocol.augment,
        exact=protocol.images == "exact",
        evaluate=protocol.evaluate,
        samples=EXAMPLES if machine.log else 0,
        sampling=sampling,
    )
    parts = splits(dataset, run.trial, protocol.holdout)
    placed = place(dataset, parts, cache, wanted, device, machine.place)
    # Tensor cores want channels last; small images gain by it only if layers are fused.
    fused = device.type == "cuda" and machine.step == "compiled"
    channels_last = model.uses_channels_last(placed.shape) or (fused and len(placed.shape) == 3)
    algorithm = model.build(
        run,
        method,
        shape=placed.shape,
        classes=len(dataset.classes),
        num_domains=len(placed.sources),
        weights=machine.weights,
        device=device,
        channels_last=channels_last,
        network=network,
    )
    if len(placed.shape) == 1:
        # From training domains only: a test domain must not play a part.
        trained = dataset.without(run.test_domains).domains
        inputs = torch.cat([domain.tensor[parts[domain.name].kept] for domain in trained])
        weights = None
        if sampling is not None:
            rows = [sampling.weights[domain.name][parts[domain.name].kept] for domain in trained]
            weights = torch.cat(rows)
        measure_inputs(algorithm, inputs, weights)
    algorithm.optimise(protocol.optimisation)
    algorithm.micro_batch = machine.micro_batch
    normalise = Normalise(getattr(algorithm.model, "preprocessing", None), channels_last, device)
    return placed, Update(algorithm, Batches(placed.sources, normalise), protocol.precision)


def cautions_for(run: Run, dataset: DomainDataset, algorithm: Algorithm) -> list[str]:
    """Return warnings about the data and the network of a run, one line each."""
    found = []
    if run.protocol.holdout == 0:
        found.append("holdout is 0: nothing is held out, so no rule can select a model")
    size = run.hparams["batch_size"]
    for name, split in splits(dataset, run.trial, run.protocol.holdout).items():
        if name not in run.test_domains and len(split.kept) < size:
            found.append(
                f"the domain {name!r} has {len(split.kept)} images to train on, fewer than a batch "
                f"of {size}: images repeat within a batch"
            )
        if run.protocol.holdout > 0 and not len(split.held_out):
            found.append(
                f"the domain {name!r} has {len(dataset[name])} images, too few to hold any out: "
                "model selection ignores it"
            )
    if run.protocol.weights is None and _frozen_statistics(algorithm.model):
        found.append(
            "the network starts from random weights, and its batch-norm statistics stay at 0 and "
            "1, which normalises nothing; use --train-batch-norm, or initial weights"
        )
    if run.protocol.weights is None and run.protocol.start != STARTS[0]:
        found.append(
            "the network starts from random weights: a linear probe fits the little by which such "
            "features vary, and the first updates undo it; use --start network, or initial weights"
        )
    if run.protocol.weights is None and algorithm.stays_near_start:
        found.append(
            f"the network starts from random weights, and {title_of(run.algorithm)} keeps it near "
            "them; use initial weights, or another method"
        )
    for name, classes in dataset.missing_classes().items():
        found.append(f"the domain {name!r} has no images of {', '.join(classes)}")
    return found


def _frozen_statistics(network: nn.Module) -> bool:
    """Return whether a network in training mode has a batch norm with frozen statistics."""
    norms = (
        part for part in network.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)
    )
    return any(not norm.training for norm in norms)


def evaluation_of_run(
    update: Update, parts: dict[SplitKey, EvaluationSet], kind: StepKind = "eager"
) -> Evaluation:
    """Return the evaluation of the update's method on these parts of its data.

    Args:
        kind: as in ``Evaluation``; several processes evaluate eagerly.
    """
    kind = kind if processes() == 1 else "eager"
    normalise = update.batches.normalise
    precision = partial(precision_context, update.precision, update.algorithm.device)
    return Evaluation(
        update.algorithm, parts, lambda images: normalise(scaled(images)), precision, kind
    )
