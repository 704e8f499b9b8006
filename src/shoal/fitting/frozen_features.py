"""Frozen features: images go once through a network, and only a head is trained on what comes out.

In the end the head is put onto that network, so that the model is one like any other.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ..algorithms.base import Algorithm, UpdateAlgorithm
from ..datasets import Domain, DomainDataset
from ..datasets.cache import ImageCache, sources
from ..networks import Network, folded, for_data
from ..randomness import stream
from ..runs.model import build
from ..runs.run import Run
from ..storage import load_tensors, save_tensors
from ..training.batches import Normalise, scaled

Item = TypeVar("Item")
Made = TypeVar("Made")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let every operation inside run on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_threads(
    work: Callable[[Item], Made], items: Iterable[Item], device: torch.device
) -> Iterator[Made]:
    """Yield what ``work`` makes of each item, in order; on a CPU as many at once as it has cores.

    What is yielded is made a little ahead, so that nothing waits for who takes it.
    """
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    left, waiting = iter(items), deque[Future[Made]]()
    with (
        one_thread() if device.type == "cpu" else nullcontext(),
        ThreadPoolExecutor(workers) as pool,
    ):
        try:
            for item in islice(left, 2 * workers):
                waiting.append(pool.submit(work, item))
            while waiting:
                made = waiting.popleft().result()
                for item in islice(left, 1):
                    waiting.append(pool.submit(work, item))
                yield made
        finally:
            for future in waiting:
                future.cancel()


FEATURES = "features.pt"
SHAPE = (3, 224, 224)
# Images that go through the network together: more do not fit the caches of a CPU.
TOGETHER = {"cpu": 4, "cuda": 256}


def frozen_features(
    dataset: DomainDataset,
    cache: Callable[[], ImageCache],
    backbone: str,
    device: torch.device,
    path: Path,
    told: Callable[[int, int], object],
) -> DomainDataset:
    """Return the data set with the features of its images in their place, float32 ``[n, p]``.

    They are kept in the file ``path``, so that all runs see the same, also when a command goes on.

    Args:
        cache: called only where features have to be computed.
        told: called with how many images are done, of how many.
    """
    about = " ".join([dataset.fingerprint, backbone, *map(sources, dataset.domains)])
    kept = load_tensors(path) if path.exists() else {}
    before = f"{dataset.fingerprint} {backbone}"  # without the times at which files changed
    if kept.get("about") not in (about, before):
        found = _computed(dataset, cache(), backbone, device, told)
        kept = {"about": about, "features": found}
        save_tensors(path, kept)
    vectors = kept["features"]
    domains = (Domain(d.name, d.labels, vectors[d.name]) for d in dataset.domains)
    return replace(dataset, domains=tuple(domains))


def _computed(
    dataset: DomainDataset,
    cache: ImageCache,
    backbone: str,
    device: torch.device,
    told: Callable[[int, int], object],
) -> dict[str, Tensor]:
    network = pretrained(backbone, len(dataset.classes), device)
    normalise = Normalise(network.preprocessing, True, device)
    total, done = sum(map(len, dataset.domains)), 0

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            rows: Tensor = network.features(normalise(scaled(images.to(device))))
        return rows.float().cpu()

    found: dict[str, Tensor] = {}
    for name in dataset.names:
        rows = []
        chunks = cache[name].evaluation.split(TOGETHER[device.type])
        for made in in_threads(features, chunks, device):
            rows.append(made)
            done += len(made)
            told(done, total)
        found[name] = torch.cat(rows)
    return found


def pretrained(backbone: str, classes: int, device: torch.device) -> Network:
    """Return the network with its weights of ImageNet, ready to predict."""
    network = for_data(
        SHAPE, classes, name=backbone, weights="imagenet", generator=stream("features", backbone)
    )
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval()


def check_frozen(name: str, method: type[Algorithm]) -> None:
    """Raise where a method predicts with more than its network."""
    if not issubclass(method, UpdateAlgorithm) or method.extra_channels:
        raise ValueError(
            f"{name} does not work on frozen features, because it predicts with more than its "
            "network; leave it out, or train the whole network: --train all"
        )


def whole_network(
    head: Algorithm, run: Run, fingerprint: str, backbone: str, domains: int
) -> tuple[Algorithm, Run]:
    """Return the method with the whole network for images, and the run that says so.

    Args:
        head: what was trained on features, by ``run``.
        fingerprint: of the images.
        domains: how many there were to train on.
    """
    if not isinstance(head.model, Network):
        raise TypeError(f"{type(head).__name__} has no network of shoal's")
    protocol = replace(run.protocol, network=backbone, weights="imagenet", augment=False)
    whole = replace(run, fingerprint=fingerprint, protocol=protocol)
    weight, bias = folded(head.model)
    algorithm = build(
        whole, type(head), SHAPE, len(weight), domains, "imagenet", torch.device("cpu")
    )
    with torch.no_grad():
        algorithm.model.classifier.weight.copy_(weight)  # type: ignore[union-attr, operator]
        algorithm.model.classifier.bias.copy_(bias)  # type: ignore[union-attr, operator]
    return algorithm.eval(), whole
