"""Frozen features: images go through a pretrained network once, and only a head is trained.

At the end the head is put onto that network, so the model is a whole network like any other.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..algorithms import find
from ..algorithms.base import Algorithm, UpdateAlgorithm
from ..algorithms.hparams import defaults, values_for_run
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache, hash_files
from ..networks import Network, fold_standardisation, for_data
from ..networks.inference import for_inference
from ..randomness import stream
from ..runs.fitted import Fitted
from ..runs.model import build
from ..runs.run import Run
from ..tensor_files import load_tensors, save_tensors
from ..training.batches import Normalise, scaled
from .predictor import in_threads

FEATURES = "features.pt"
PLAIN = "erm"
SHAPE = (3, 224, 224)
# Images in a batch, by device: on a CPU, larger batches do not fit the caches.
TOGETHER = {"cpu": 4, "cuda": 256, "mps": 32}


def frozen_features(
    dataset: DomainDataset,
    cache: Callable[[], ImageCache],
    backbone: str,
    device: torch.device,
    path: Path,
    progress: Callable[[int, int], object],
) -> DomainDataset:
    """Return the data set with features in place of its images, float32 ``[n, p]``.

    The features are kept in the file ``path``, so that all runs see the same ones, also after a
    command resumes.

    Args:
        cache: called only if features must be computed.
        progress: called with the number of images done and the total.
    """
    about = " ".join([dataset.fingerprint, backbone, *map(hash_files, dataset.domains)])
    kept = load_tensors(path) if path.exists() else {}
    # Files of older versions do not list the times at which images changed.
    before = f"{dataset.fingerprint} {backbone}"
    if kept.get("about") not in (about, before):
        found = compute_features(dataset, cache, backbone, device, progress)
        kept = {"about": about, "features": found}
        save_tensors(path, kept)
    vectors = kept["features"]
    domains = (replace(d, images=vectors[d.name]) for d in dataset.domains)
    return replace(dataset, domains=tuple(domains))


def compute_features(
    dataset: DomainDataset,
    open_cache: Callable[[], ImageCache],
    backbone: str,
    device: torch.device,
    progress: Callable[[int, int], object],
) -> dict[str, Tensor]:
    """Return the features of every domain's images, float32 ``[n, p]``."""
    # Before images are decoded, which takes long: its weights may not be available.
    network = pretrained(backbone, len(dataset.classes), device)
    cache = open_cache()
    normalise = Normalise(network.preprocessing, True, device)
    if device.type == "cpu":
        noise = torch.rand(2, *SHAPE, generator=stream("inference")).mul(256).byte()
        network = for_inference(network, lambda one: one.features(normalise(scaled(noise))))
    total, done = sum(map(len, dataset.domains)), 0

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            rows: Tensor = network.features(normalise(scaled(images.to(device))))
        return rows.float().cpu()

    found: dict[str, Tensor] = {}
    for name in dataset.names:
        rows = []
        chunks = cache[name].evaluation.split(TOGETHER[device.type])
        for output in in_threads(features, chunks, device):
            rows.append(output)
            done += len(output)
            progress(done, total)
        found[name] = torch.cat(rows)
    return found


def pretrained(backbone: str, classes: int, device: torch.device) -> Network:
    """Return the network with ImageNet weights, in evaluation mode."""
    network = for_data(
        SHAPE, classes, name=backbone, weights="imagenet", generator=stream("features", backbone)
    )
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval()


def works_frozen(method: type[Algorithm]) -> bool:
    """Return whether a method predicts with its network alone, and so can train a head."""
    return issubclass(method, UpdateAlgorithm) and not method.extra_channels


def check_frozen(name: str, method: type[Algorithm]) -> None:
    """Raise if a method cannot train a head on frozen features."""
    if not works_frozen(method):
        raise ValueError(
            f"{name} does not work on frozen features, because it predicts with more than its "
            "network; drop it, or train the whole network: --train all"
        )


def whole_network(
    head: Algorithm, run: Run, fingerprint: str, backbone: str, domains: int
) -> tuple[Algorithm, Run]:
    """Return the method with the whole network for images, and the run that describes it.

    Args:
        head: the method trained on features, in ``run``. A logistic regression becomes a network
            of plain training, with its weights.
        fingerprint: of the images.
        domains: number of training domains.
    """
    if not isinstance(head.model, Network):
        raise TypeError(f"{type(head).__name__} must have a shoal.networks.Network as its model")
    protocol = replace(run.protocol, network=backbone, weights="imagenet", augment=False)
    whole = replace(run, fingerprint=fingerprint, protocol=protocol)
    kind = type(head)
    if isinstance(head, Fitted):
        kind = find(PLAIN)
        hparams = values_for_run(defaults(kind.Hparams, "large"))
        whole = replace(whole, algorithm=PLAIN, draw=0, hparams=hparams)
    weight, bias = fold_standardisation(head.model)
    algorithm = build(
        whole,
        kind,
        shape=SHAPE,
        classes=len(weight),
        num_domains=domains,
        weights="imagenet",
        device=torch.device("cpu"),
    )
    with torch.no_grad():
        algorithm.model.classifier.weight.copy_(weight)  # type: ignore[union-attr, operator]
        algorithm.model.classifier.bias.copy_(bias)  # type: ignore[union-attr, operator]
    return algorithm.eval(), whole
