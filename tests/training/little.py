"""A training of a few weights on images of 8 × 8, in memory: every part of it at hand."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.erm import ERM
from shoal.catalogue import AVERAGES
from shoal.datasets import Domain, DomainDataset, splits
from shoal.networks.base import Preprocessing
from shoal.randomness import stream
from shoal.training.averages import Averaging
from shoal.training.batches import Batches, Normalise, scaled
from shoal.training.evaluation import Evaluation
from shoal.training.loop import Schedule, train
from shoal.training.placement import DataRequest, RunData, place
from shoal.training.step import Update
from shoal.training.watcher import Watcher
from tests.algorithms.test_contract import CHANNELS, CLASSES, SIDE, make

from .cut import large

CPU = torch.device("cpu")


def watching(kind: type[Watcher] = Watcher, **methods: Any) -> Any:
    """Return a watcher with these methods, by name."""
    watcher = kind()
    vars(watcher).update(methods)
    return watcher


SIZES = (23, 31, 27, 20)


def little(sizes: tuple[int, ...] = SIZES) -> DomainDataset:
    """Return domains of noise whose labels show in its brightness."""
    domains = []
    for number, size in enumerate(sizes):
        draws = stream("little", number)
        labels = torch.randint(CLASSES, (size,), generator=draws)
        images = torch.randint(90, (size, CHANNELS, SIDE, SIDE), generator=draws)
        images += 50 * labels.view(-1, 1, 1, 1) + 10 * number
        domains.append(Domain("abcd"[number], labels, images.to(torch.uint8)))
    return DomainDataset("little", tuple("xyz"), tuple(domains))


def placed(
    where: str = "device",
    size: int = 4,
    device: torch.device = CPU,
    sizes: tuple[int, ...] = SIZES,
    **changes: Any,
) -> RunData:
    """Return the data of a training on all domains but the last."""
    dataset = little(sizes)
    wanted = DataRequest(**{"test_domains": ("d",), "trial": 0, "size": size} | changes)
    return place(dataset, splits(dataset, 0), None, wanted, device, where)


def training(
    method: str | Algorithm = "erm",
    where: str = "device",
    size: int = 4,
    device: torch.device = CPU,
    sizes: tuple[int, ...] = SIZES,
    **hparams: Any,
) -> tuple[Update, Evaluation]:
    """Return a method with its batches, and its evaluation, before the first update."""
    data = placed(where, size, device, sizes)
    if isinstance(method, str):
        method = make(method, len(data.sources), dtype=torch.float32, **hparams)
    method.to(device)
    update = Update(method, Batches(data.sources, Normalise(None, False, device)), "float32")
    return update, Evaluation(method, data.parts, scaled, nullcontext)


def averages_of_training(micro_batch: int | None = None) -> dict[str, Tensor]:
    """Return the averages of a training in float64, what SWAD saw, and the accuracies recorded.

    The network is one whose passes can be cut into micro-batches and shared by processes.
    """
    data, steps = placed(), 120
    method = ERM(large(CHANNELS).double(), len(data.sources), ERM.Hparams(lr=0.03))
    method.micro_batch = micro_batch
    none = Preprocessing((0.0,) * CHANNELS, (1.0,) * CHANNELS)
    normalise = Normalise(none, False, CPU).double()  # its float64 makes that of the images
    update = Update(method, Batches(data.sources, normalise), "float32")
    evaluate = Evaluation(method, data.parts, lambda x: normalise(scaled(x)), nullcontext)
    validation = [data.parts[domain, "held_out"] for domain in "abc"]
    averaging = Averaging(update, evaluate, validation, steps)
    train(update, evaluate, Schedule(steps, 60), "eager", averaging=averaging)
    found = {"losses": averaging.averages.losses.clone()}
    for name in AVERAGES:
        current = averaging.averages.current(name, steps - 1)
        assert current is not None, f"{name} has not begun"
        found |= {f"{name}, weight {k}": weight for k, weight in enumerate(current[0])}
    for one in averaging.records:
        rows = [list(splits.values()) for splits in one.accuracy.values()]
        kept = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
        found[f"{one.extra['average']}, accuracies after update {one.step}"] = kept
    return found
